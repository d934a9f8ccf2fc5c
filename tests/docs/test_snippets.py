"""Every example in README and documentation runs, against a real server where a model is needed."""

from __future__ import annotations

import ast
import asyncio
import shlex
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from openai_server import OpenAIServer
from quintain.cli import main
from quintain.dialects.wire import Request
from quintain.messages import Message, ToolCall, assistant

from .pages import ROOT, Block, blocks, pages

SERVER = "http://localhost:8000/v1"
"""What the pages write; the test puts its own server's address in its place."""


def _writes_a_program(request: Request) -> Message:
    """Writes a program in the sandbox; a wrong one for about half of the seeds."""
    if request.messages[-1].role == "tool":
        return assistant("done")
    total = "sum(map(int, input().split()))" if (request.sampling.seed or 0) % 2 else "3"
    command = f"echo 'print({total})' > /work/run.py"
    return assistant("", ToolCall(id="c", name="shell", arguments={"command": command}))


def _says(text: str) -> Callable[[Request], Message]:
    return lambda request: assistant(text)


def _says_by_seed(*texts: str) -> Callable[[Request], Message]:
    return lambda request: assistant(texts[(request.sampling.seed or 0) % len(texts)])


SCRIPTS: dict[str, Callable[[Request], Message]] = {
    "README.md": _writes_a_program,
    "envs.md": _says_by_seed("4", "5"),
}
DEFAULT = _says_by_seed("The answer is 7", "7", "I do not know")


@pytest.fixture
def server(request) -> Iterator[OpenAIServer]:
    """The page's model."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = OpenAIServer(SCRIPTS.get(request.param.name, DEFAULT))
    asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(10)
    yield server
    asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def _cases() -> list[object]:
    return [
        pytest.param(page, page, id=page.relative_to(ROOT).as_posix())
        for page in pages()
        if any(block.run and block.language in ("python", "console") for block in blocks(page))
    ]


@pytest.mark.parametrize(("page", "server"), _cases(), indirect=["server"])
def test_the_examples_of_a_page_run(page, server, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    path = list(sys.path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    try:
        for block in blocks(page):
            text = block.text.replace(SERVER, server.base_url)
            if block.title:
                file = tmp_path / block.title
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            elif block.run and block.language == "python":
                exec(compile(text, f"{page.name}:{block.line}", "exec"), namespace)
            elif block.run and block.language == "console":
                _run_lines(text, f"{page.name}:{block.line}")
    finally:
        sys.path[:] = path
        for name, module in list(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
                del sys.modules[name]


def _run_lines(text: str, where: str) -> None:
    for line in text.splitlines():
        if not line.startswith("$ quintain"):
            continue
        command, _, note = line.removeprefix("$ ").partition("  #")
        expected = 1 if "exit code 1" in note else 0
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(command)[1:])
        assert (ended.value.code or 0) == expected, f"{where}: {line}"


def _python(block: Block) -> bool:
    return block.language == "python"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_examples_are_short_and_compile(page):
    most = 20 if page.name == "README.md" else 15
    for block in filter(_python, blocks(page)):
        ast.parse(block.text)
        lines = [line for line in block.text.splitlines() if line.strip()]
        assert len(lines) <= most, f"{page.name}:{block.line} has {len(lines)} lines"


def test_the_readme_shows_one_program_and_every_folder():
    readme = ROOT / "README.md"
    assert len(list(filter(_python, blocks(readme)))) == 1
    text = readme.read_text()
    for command in ("make quickstart", "make test"):
        assert command in text
    for path in sorted((ROOT / "src" / "quintain").iterdir()):
        if path.name.startswith("_") or path.name == "py.typed":
            continue
        assert path.name in text, f"the README's tree lacks {path.name}"


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    for page in sorted((ROOT / "docs").rglob("*.md")):
        assert page.relative_to(ROOT / "docs").as_posix() in navigation, page
