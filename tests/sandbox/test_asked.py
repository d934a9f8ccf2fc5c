"""Wrong arguments are the caller's fault, told at once, and never run half."""

from __future__ import annotations

import math

import pytest

from quintain.errors import ConfigError
from quintain.sandbox.asked import check_command
from quintain.sandbox.native import NativeBackend
from quintain.task import NetworkPolicy, SandboxSpec
from quintain.verifiers.function import verifier

WRONG = [
    (TypeError, "argv is a list", {"argv": "echo hi"}),
    (TypeError, "argv is a list", {"argv": 5}),
    (ValueError, "argv is empty", {"argv": []}),
    (TypeError, "an argument is text, got 1", {"argv": ["echo", 1]}),
    (ValueError, "holds a NUL", {"argv": ["echo", "a\0b"]}),
    (TypeError, "stdin is bytes or text", {"stdin": 5}),
    (TypeError, "env\\['A'\\] is text", {"env": {"A": 1}}),
    (TypeError, "timeout_s is a number", {"timeout_s": "3"}),
    (ValueError, "positive, finite", {"timeout_s": 0}),
    (ValueError, "positive, finite", {"timeout_s": -1}),
    (ValueError, "positive, finite", {"timeout_s": math.nan}),
    (ValueError, "positive, finite", {"timeout_s": math.inf}),
]


@pytest.mark.parametrize(("error", "words", "given"), WRONG)
def test_what_is_refused(error, words, given):
    with pytest.raises(error, match=words):
        check_command(**{"argv": ["true"], **given})


async def test_a_sandbox_runs_nothing_of_it():
    backend = NativeBackend(allow_weaker=True)
    try:
        box = await backend.open(SandboxSpec())
        shell, python = await box.session(), await box.python()
        with pytest.raises(TypeError, match="argv is a list"):
            await box.exec("touch /work/x")
        for console, line in ((shell, "touch /work/x"), (python, "open('/work/x', 'w')")):
            for wrong in (0, -1, math.nan):
                with pytest.raises(ValueError, match="positive"):
                    await console.run(line, timeout_s=wrong)
            with pytest.raises(TypeError, match="is text"):
                await console.run(5)
            with pytest.raises(ValueError, match="NUL"):
                await console.run("a\0b")
        with pytest.raises(FileNotFoundError):
            await box.read("/work/x")
        assert (await shell.run("echo on")).text == "on\n"
    finally:
        await backend.close()


@pytest.mark.parametrize("wrong", ["/work/run.py", [5], ["/work/"], [""]])
def test_a_clean_room_is_a_list_of_files(wrong):
    async def judge(sandbox):
        return True

    with pytest.raises(ConfigError, match="clean_room is a list"):
        verifier(judge, clean_room=wrong)


@pytest.mark.parametrize("field", ["packages", "apt", "setup"])
def test_a_text_in_place_of_a_list_is_refused_in_plain_words(field):
    with pytest.raises(ValueError, match=rf"{field} is a list such as \['numpy'\], got the text"):
        SandboxSpec(**{field: "numpy"})


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"hosts": ("10.0.0.1",)}, "'10.0.0.1' is no public address.*private_hosts"),
        ({"hosts": ("127.0.0.1:80",)}, "is no public address"),
        ({"hosts": ("[::1]:80",)}, "is no public address"),
        ({"hosts": ("[fd00::1]",)}, "is no public address"),
        ({"hosts": ("site.test:99999",)}, "ports are numbers from 1 to 65535, got '99999'"),
        ({"private_hosts": ("site.test:0",)}, "ports are numbers"),
        ({"hosts": ("site.test:",)}, "ports are numbers"),
        ({"hosts": ("*",)}, "'\\*' stands for names below a suffix.*mode 'open'"),
        ({"hosts": ("*.",)}, "stands for names below a suffix"),
        ({"private_hosts": ("a.*.test:80",)}, "stands for names below a suffix"),
    ],
)
def test_hosts_that_cannot_be_are_refused_by_name(fields, told):
    with pytest.raises(ValueError, match=f"(?s){told}"):
        NetworkPolicy(**fields)


def test_hosts_that_can_be_are_taken():
    hosts = ("example.org", "*.example.org:8443", "1.1.1.1", "[2606:4700::1111]:443")
    assert NetworkPolicy(hosts=hosts).mode == "allowlist"
    NetworkPolicy(private_hosts=("10.0.0.1", "127.0.0.1:80", "[::1]:80", "localhost:1"))
