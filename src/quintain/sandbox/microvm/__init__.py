"""Sandboxes that are small virtual machines: a kernel of their own between candidate and host."""
