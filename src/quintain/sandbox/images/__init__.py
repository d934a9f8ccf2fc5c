"""Images: what sandboxes are based on, built once per content and shared read-only.

`recipe` says what a spec asks for and under which key, `dockerfile` reads the subset that is built
natively.
"""
