"""Names and addresses in one spelling, and the rules that are made of a policy's entries.

Every name that is compared (a policy's entry, a request's host, the name in a TLS hello) goes
through `canonical` first, so that case, a trailing dot, Unicode spellings and odd forms of an
address (`2130706433`, `0x7f.1`, `0177.0.0.1`) mean one thing to every part of the proxy.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

import idna

from quintain.errors import ConfigError
from quintain.task import NetworkPolicy

_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*")
_LOCAL = (
    "localhost",
    "localdomain",
    "local",
    "internal",
    "intranet",
    "lan",
    "home",
    "corp",
    "arpa",
)
"""Last labels that no public host has."""


class BadName(ValueError):
    """Neither a host name nor an address in its plain form."""


def canonical(host: str) -> str:
    """The one spelling of a host: lower-case ASCII without a trailing dot, or a plain address.

    Args:
        host: a name, an IPv4 address, or an IPv6 address in brackets.

    Raises:
        BadName: it is none of these, or an address in an unusual form.
    """
    if host.startswith("["):
        return _ipv6(host)
    if not host.isascii():
        try:
            host = idna.encode(host, uts46=True).decode()
        except (idna.IDNAError, UnicodeError) as error:
            raise BadName(f"{host[:80]!r} is no host name: {error}") from error
    name = host.lower().removesuffix(".")
    labels = name.split(".")
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise BadName(f"{host[:80]!r} is no host name")
    if _NUMERIC.fullmatch(labels[-1]):
        try:
            return str(ipaddress.IPv4Address(name))
        except ValueError as error:
            raise BadName(f"{host[:80]!r} is no plain address") from error
    return name


def _ipv6(host: str) -> str:
    if not host.endswith("]") or "%" in host:
        raise BadName(f"{host[:80]!r} is no plain address")
    try:
        return str(ipaddress.IPv6Address(host[1:-1]))
    except ValueError as error:
        raise BadName(f"{host[:80]!r} is no plain address") from error


def is_address(name: str) -> bool:
    """Whether a canonical host is an address."""
    return ":" in name or _NUMERIC.fullmatch(name.rpartition(".")[2]) is not None


def bracketed(name: str) -> str:
    """A canonical host as it stands in a URL."""
    return f"[{name}]" if ":" in name else name


def split_port(authority: str, default: int | None) -> tuple[str, int]:
    """The host, in its one spelling, and the port of `host[:port]`.

    Raises:
        BadName: either is malformed, or there is no port and no default.
    """
    host, colon, port = authority.rpartition(":")
    if not colon or authority.endswith("]"):
        host, port = authority, ""
    if colon and not port and host != authority:
        raise BadName(f"{authority[:80]!r} has an empty port")
    if not port and default is None:
        raise BadName(f"{authority[:80]!r} has no port")
    if port and not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        raise BadName(f"{authority[:80]!r} has no valid port")
    return canonical(host), int(port) if port else default or 0


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")
_TRANSITION = tuple(
    ipaddress.IPv6Network(net)
    for net in ("::/96", "64:ff9b:1::/48", "2001::/23", "2002::/16", "fec0::/10", "100::/64")
)
"""Ranges that carry IPv4 addresses or tunnels, or are no public hosts' by their registration."""


def is_public(address: str) -> bool:
    """Whether an address belongs to the public internet and to nothing else.

    Loopback, private and link-local ranges (cloud metadata among them), carrier NAT, multicast,
    documentation and reserved ranges are not public, nor are they as IPv4 inside IPv6; NAT64's
    well-known prefix is what its IPv4 address is.
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found in _NAT64 or found in _MAPPED:
            return is_public(str(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)))
        if any(found in net for net in _TRANSITION):
            return False
    return found.is_global and not (found.is_multicast or found.is_reserved or found.is_unspecified)


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of a policy."""

    name: str
    """In its one spelling; of a wildcard what stands behind `*.`."""
    wildcard: bool
    ports: frozenset[int]
    private: bool
    """Whether it may be at any address."""

    def names(self, name: str) -> bool:
        """Whether it speaks of that name."""
        return name.endswith("." + self.name) if self.wildcard else name == self.name


@dataclass(frozen=True, slots=True)
class Rules:
    """A policy, ready to decide."""

    rules: tuple[Rule, ...]
    open: bool
    """Whether any public host may be reached."""
    ports: frozenset[int]

    @classmethod
    def of(cls, policy: NetworkPolicy, private: tuple[str, ...] = ()) -> Rules:
        """The rules of a policy.

        Args:
            policy: as the user wrote it.
            private: further entries that may be at any address, from presets.

        Raises:
            ConfigError: an entry is no host; the message names it.
        """
        ports = frozenset(policy.ports)
        rules = [_rule(entry, ports, private=False) for entry in policy.hosts]
        rules += [_rule(entry, ports, private=True) for entry in (*policy.private_hosts, *private)]
        return cls(tuple(rules), policy.mode == "open", ports)

    def decide(self, name: str, port: int) -> tuple[str, bool]:
        """Why a host is refused (empty: it is not), and whether it may be at any address.

        Args:
            name: in its one spelling.
            port: of the host.
        """
        named = [rule for rule in self.rules if rule.names(name)]
        found = [rule for rule in named if port in rule.ports]
        if found:
            return "", any(rule.private for rule in found)
        if self.open and not is_address(name) and not _is_local(name):
            return ("" if port in self.ports else f"port {port} is not allowed"), False
        if named:
            return f"port {port} is not allowed", False
        return ("an address that is not listed" if is_address(name) else "not listed"), False


def _is_local(name: str) -> bool:
    return "." not in name or name.rpartition(".")[2] in _LOCAL


def _rule(entry: str, ports: frozenset[int], *, private: bool) -> Rule:
    wildcard = entry.startswith("*.")
    rest = entry[2:] if wildcard else entry
    try:
        name, port = split_port(rest, 0)
        if wildcard and is_address(name):
            raise BadName("a wildcard of an address")
    except BadName as error:
        raise ConfigError(f"network host {entry!r}: {error}") from error
    return Rule(name, wildcard, frozenset({port}) if port else ports, private)
