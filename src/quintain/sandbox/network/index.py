"""The package index of the host's own pip: its addresses, and the hosts that its files lie on.

Everything comes from pip itself: its configuration (files and variables), and where that names no
index, the default that its help tells. The hosts of the files are those that the index's own page
of one project links to.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import ssl
import subprocess
import sys
import urllib.parse
from dataclasses import dataclass
from html import unescape

import aiohttp

from quintain.errors import ConfigError
from quintain.sandbox.network.names import bracketed

ASK_S = 30.0
PROJECT = "pip"
"""Every index has it."""
MOST_PAGE_BYTES = 8_000_000
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.1"


@dataclass(frozen=True, slots=True)
class Index:
    """A package index as pip knows it."""

    urls: tuple[str, ...]
    """The index and the extra ones, without credentials."""
    hosts: tuple[str, ...]
    """`host:port` of the indexes and of their files."""
    trusted: tuple[str, ...]
    """Hosts that pip takes without a valid certificate."""


async def _settings() -> dict[str, str]:
    """pip's configuration: short name to value; its own index where none is configured.

    Raises:
        ConfigError: there is no pip to ask.
    """
    found: dict[str, str] = {}
    # Both at once: each starts an interpreter.
    listed, told = await asyncio.gather(
        asyncio.to_thread(_pip, "config", "list"), asyncio.to_thread(_pip, "install", "--help")
    )
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        try:
            found[key.rpartition(".")[2]] = str(ast.literal_eval(value))
        except (SyntaxError, ValueError):
            continue
    default = re.search(r"--index-url.*?\(default\s+(\S+?)\)", told, re.S)
    if "index-url" not in found and default is None:
        raise ConfigError("network preset 'pip': pip names no index; configure index-url")
    if default is not None:
        found.setdefault("index-url", default[1])
    return found


def _pip(*words: str) -> str:
    argv = [sys.executable, "-m", "pip", "--no-input", "--no-color", *words]
    env = {**os.environ, "COLUMNS": "1000"}
    try:
        run = subprocess.run(argv, capture_output=True, text=True, timeout=ASK_S, env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"network preset 'pip': pip does not answer: {error}") from error
    if run.returncode:
        raise ConfigError(
            "network preset 'pip': pip cannot be asked for its configuration (is it installed "
            f"beside this Python?): {run.stderr.strip()[-300:]}"
        )
    return run.stdout


async def package_index() -> Index:
    """The index of the host's pip; asked for once a process.

    Raises:
        ConfigError: there is no pip, or its index does not answer.
    """
    global _asking
    loop = asyncio.get_running_loop()
    if _asking is None or (_asking[0] is not loop and not _asking[1].done()):
        _asking = (loop, loop.create_task(_find()))
    task = _asking[1]
    try:
        return await asyncio.shield(task)
    except ConfigError:
        _asking = None
        raise


_asking: tuple[asyncio.AbstractEventLoop, asyncio.Task[Index]] | None = None


async def _find() -> Index:
    settings = await _settings()
    urls = [*settings["index-url"].split(), *settings.get("extra-index-url", "").split()]
    plain, hosts = [], []
    for at, url in enumerate(urls):
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            continue  # a folder: not to be seen from inside
        plain.append(
            urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        )
        hosts.append(_where(parts))
        hosts += await _file_hosts(url, settings, needed=at == 0)
    if not hosts:
        raise ConfigError("network preset 'pip': pip's index is no http:// or https:// URL")
    trusted = tuple(settings.get("trusted-host", "").split())
    return Index(tuple(plain), tuple(dict.fromkeys(hosts)), trusted)


def _where(parts: urllib.parse.SplitResult) -> str:
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{bracketed(parts.hostname or '')}:{port}"


async def _file_hosts(url: str, settings: dict[str, str], *, needed: bool) -> list[str]:
    """Where an index's files lie, from its page of one project."""
    page = f"{url.rstrip('/')}/{PROJECT}/"
    context: ssl.SSLContext | bool = True
    if cert := settings.get("cert"):
        context = ssl.create_default_context(cafile=cert)
    if (urllib.parse.urlsplit(url).hostname or "") in settings.get("trusted-host", "").split():
        context = False
    try:
        timeout = aiohttp.ClientTimeout(total=ASK_S)
        async with (
            aiohttp.ClientSession(trust_env=True, timeout=timeout) as session,
            session.get(page, headers={"Accept": _ACCEPT}, ssl=context) as answer,
        ):
            answer.raise_for_status()
            data = bytearray()
            async for piece in answer.content.iter_any():
                data += piece
                if len(data) > MOST_PAGE_BYTES:
                    raise ConfigError("network preset 'pip': the index's page is too long")
            body = data.decode("utf-8", "replace")
            page = str(answer.url)
    except (OSError, aiohttp.ClientError, TimeoutError) as error:
        if not needed:
            return []
        kind = type(error).__name__
        raise ConfigError(f"network preset 'pip': pip's index does not answer ({kind})") from error
    found = [urllib.parse.urlsplit(urllib.parse.urljoin(page, link)) for link in _links(body)]
    return list(dict.fromkeys(_where(link) for link in found if link.hostname))


def _links(body: str) -> list[str]:
    try:
        return [str(file["url"]) for file in json.loads(body)["files"]]
    except (ValueError, KeyError, TypeError):
        return [unescape(link) for link in re.findall(r"""href=["']([^"']+)["']""", body)]
