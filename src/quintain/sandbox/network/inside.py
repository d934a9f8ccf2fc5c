"""What a networked sandbox finds inside: variables that lead its programs to the proxy."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from functools import cache

from quintain.sandbox.network.index import package_index
from quintain.task import NetworkPolicy

PORT = 3128
"""Of the proxy, on 127.0.0.1 inside."""
FOLDER = "/run/network"
CERTIFICATES = f"{FOLDER}/ca-certificates.crt"
"""Inside: what the host trusts, read-only."""
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem",
)  # fmt: skip
_TRUST = (
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Inside:
    """What a policy means for a sandbox."""

    environment: dict[str, str] = field(default_factory=dict)
    """Of every command, under what the spec says."""
    private_hosts: tuple[str, ...] = ()
    """What its presets add to the policy."""


@cache
def certificates() -> str:
    """The file of certificate authorities that this host trusts; empty: none is known."""
    chosen = [os.environ.get("SSL_CERT_FILE"), ssl.get_default_verify_paths().cafile, *_BUNDLES]
    return next((path for path in chosen if path and os.path.isfile(path)), "")


async def prepare(policy: NetworkPolicy, port: int = PORT) -> Inside:
    """What a sandbox with that policy needs inside.

    Args:
        policy: what it may reach.
        port: where its proxy listens, on 127.0.0.1 inside.

    Raises:
        ConfigError: a preset finds nothing on this host.
    """
    if policy.mode == "none":
        return Inside()
    proxy = f"http://127.0.0.1:{port}"
    found = {}
    for name in ("http_proxy", "https_proxy"):
        found[name] = found[name.upper()] = proxy
    found["NODE_USE_ENV_PROXY"] = "1"
    found["no_proxy"] = found["NO_PROXY"] = "localhost,127.0.0.1,::1"
    if certificates():
        found |= dict.fromkeys(_TRUST, CERTIFICATES)
    hosts: tuple[str, ...] = ()
    if "pip" in policy.presets:
        index = await package_index()
        hosts = index.hosts
        found["PIP_INDEX_URL"] = index.urls[0]
        found["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
        if index.urls[1:]:
            found["PIP_EXTRA_INDEX_URL"] = " ".join(index.urls[1:])
        if index.trusted:
            found["PIP_TRUSTED_HOST"] = " ".join(index.trusted)
    return Inside(found, hosts)
