"""The command line called in this process, on a file with a small environment."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from openai_server import OpenAIServer
from quintain.cli import main

ADDING = '''\
"""Adding, from a file: twenty eval tasks."""

import quintain as q

environment = q.Environment(
    name="adding",
    tasks=[
        {"id": f"{a}+{b}", "prompt": f"What is {a} + {b}?", "answer": str(a + b), "split": "eval"}
        for a in range(5)
        for b in range(4)
    ],
    verifier=lambda text, answer: text.strip() == answer,
)


def sized(largest):
    return q.Environment(
        name="sized",
        tasks=[{"id": str(n), "prompt": str(n), "answer": str(n)} for n in range(largest)],
        verifier=lambda text, answer: text.strip() == answer,
    )


def parrot(word="3"):
    return q.scripted(word, name="parrot")


not_one = 5
'''


@dataclass
class Called:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.out, self.err
        return json.loads(self.out)


@pytest.fixture
def here(tmp_path, monkeypatch) -> Iterator[Path]:
    """An empty current folder with `adding.py` in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "adding.py").write_text(ADDING)
    path = list(sys.path)
    handlers, level = logging.root.handlers[:], logging.root.level
    yield tmp_path
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.fixture
def quintain(here, capsys):
    """Calls the command line; returns how it ended."""

    def call(*arguments: str) -> Called:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        printed = capsys.readouterr()
        code = ended.value.code
        return Called(code if isinstance(code, int) else 0, printed.out, printed.err)

    return call


@contextmanager
def served(script: Any) -> Iterator[OpenAIServer]:
    """A chat server on loopback, on a loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = OpenAIServer(script)
    asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(10)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
