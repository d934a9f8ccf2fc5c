"""Sandboxes: isolated places to run what a model wrote.

`native` is the built-in backend: plain Linux, no daemon. It meets the rest of the package through
`quintain.protocols.SandboxBackend` and the registry (`quintain.registry.sandboxes`).
"""
