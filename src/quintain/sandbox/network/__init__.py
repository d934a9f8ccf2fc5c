"""What a sandbox may reach: a proxy in the owner that decides by name.

A sandbox has a network namespace with loopback only. One listening socket in it belongs to the
owner (`PORT` on 127.0.0.1); the owner accepts there, decides by the *name* that is asked for,
resolves it itself, and connects to the very address that it checked. So nothing inside resolves
names, addresses may rotate, and no packet of the sandbox's own ever leaves.
"""

from quintain.sandbox.network.gate import Gate
from quintain.sandbox.network.inside import (
    CERTIFICATES,
    FOLDER,
    PORT,
    Inside,
    certificates,
    prepare,
)
from quintain.sandbox.network.listener import listen_inside
from quintain.sandbox.network.proxy import Proxy

__all__ = [
    "CERTIFICATES",
    "FOLDER",
    "PORT",
    "Gate",
    "Inside",
    "Proxy",
    "certificates",
    "listen_inside",
    "prepare",
]
