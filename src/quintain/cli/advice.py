"""Which sandbox for what on this machine, from what the probes found."""

from __future__ import annotations

from collections.abc import Sequence

from quintain.protocols import Probe

CORE = frozenset({"files", "network", "processes", "seccomp", "namespaces", "memory", "pids"})
"""Walls without which a sandbox is not recommended for code that nobody has read."""
IMAGES = ("docker", "podman")
STRONGER = ("microvm", "gvisor")
INSTALL = {
    "docker": "apt-get install docker.io, and start its engine",
    "gvisor": "apt-get install runsc",
    "microvm": "apt-get install qemu-system-x86",
    "ray": "pip install 'quintain[ray]'",
    "weak": "pip install 'quintain[weak]'",
}


def costs(found: Probe) -> str:
    """What a sandbox costs here, in words; empty where it was not measured."""
    times, memory = found.details.get("latency_ms"), found.details.get("density")
    parts = []
    if times:
        parts.append(
            f"fresh, run, gone {times['fresh_true']:g} ms (open {times['open']:g}, "
            f"run {times['exec_true']:g}, close {times['close']:g})"
        )
    if memory:
        parts.append(
            f"about {memory['memory_mb_each']:g} MB each, {memory['fits']:,} fit in the free memory"
        )
    return "; ".join(parts)


def recommend(probes: Sequence[Probe]) -> list[dict[str, str]]:
    """One line a purpose: what it is for, what to use, and why (or what is missing for it)."""
    here = {found.backend: found for found in probes if found.available}
    known = {found.backend: found for found in probes}
    lines = [_many(here, known)]
    if set(STRONGER) & known.keys():
        lines.append(_hostile(here))
    if set(IMAGES) & known.keys():
        lines.append(_images(here))
    if "ray" in known:
        lines.append(_machines(here, known["ray"]))
    return lines


def _line(purpose: str, use: str, why: str) -> dict[str, str]:
    return {"for": purpose, "use": use, "why": why}


def _fresh_ms(found: Probe) -> float:
    return float((found.details.get("latency_ms") or {}).get("fresh_true", 1e9))


def _many(here: dict[str, Probe], known: dict[str, Probe]) -> dict[str, str]:
    purpose = "training and evals, many sandboxes"
    whole = [
        found
        for found in here.values()
        if set(found.enforced) >= CORE and found.backend not in ("ray", "weak")
    ]
    if whole:
        best = min(whole, key=_fresh_ms)
        return _line(purpose, best.backend, f"the fastest that holds: {costs(best)}")
    native = known.get("native")
    if native is not None and native.available:
        lacks = ", ".join(sorted(CORE - set(native.enforced)))
        return _line(purpose, "native --allow-weaker", f"without {lacks}; {native.advice}")
    if "weak" in here:
        why = "no stronger one opens here; it has no namespaces and must be asked for by name"
        return _line(purpose, "weak, if that is acceptable", why)
    advice = native.advice if native is not None else f"or the weaker tier: {INSTALL['weak']}"
    return _line(purpose, "none here", advice)


def _hostile(here: dict[str, Probe]) -> dict[str, str]:
    purpose = "code that may attack the kernel"
    for name in STRONGER:
        if name in here:
            told = [costs(here[name])]
            if unmeasured := CORE & set(here[name].details.get("not_measured") or ()):
                told.append(f"not measured: {', '.join(sorted(unmeasured))}")
            words = "; ".join(filter(None, told)) or "its cost was not measured"
            return _line(purpose, name, f"a kernel of its own: {words}")
    ways = "; or ".join(INSTALL[name] for name in reversed(STRONGER))
    return _line(purpose, "none here", f"all others share the host's kernel: {ways}")


def _images(here: dict[str, Probe]) -> dict[str, str]:
    purpose = "whole Dockerfiles and images of registries"
    for name in IMAGES:
        if name in here:
            return _line(purpose, name, costs(here[name]))
    return _line(purpose, "none here", f"{INSTALL['docker']}; or apt-get install podman")


def _machines(here: dict[str, Probe], ray: Probe) -> dict[str, str]:
    purpose = "more than one machine"
    if "ray" in here:
        slots, nodes = ray.details.get("slots"), ray.details.get("nodes")
        return _line(purpose, "ray", f"{slots} slots on {nodes} nodes")
    return _line(purpose, "ray, once it is there", ray.advice or INSTALL["ray"])
