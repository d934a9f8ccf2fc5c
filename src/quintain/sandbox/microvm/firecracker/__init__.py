"""A driver for Firecracker, written to its published API. UNVERIFIED: never run against a real one.

Source: the API's description (`firecracker.yaml`), `docs/jailer.md` and `docs/vsock.md` of the
repository firecracker-microvm/firecracker. Tested against a stub that checks every request against
the documented fields and their order.
"""
