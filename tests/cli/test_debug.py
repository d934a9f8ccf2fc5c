"""`quintain debug`: a person plays, here with piped input."""

from __future__ import annotations

import io

import pytest

TOOLED = '''\
import quintain as q


def double(n: int) -> int:
    """Doubles a number.

    Args:
        n: which.
    """
    return 2 * n


environment = q.Environment(
    name="doubling",
    tasks=[
        {
            "id": "one", "prompt": "Twice 21?", "answer": "42", "world": {"mood": "secretive"},
            "hidden_files": {"check.py": "print('only the judge sees this')"},
        }
    ],
    tools=[double],
    verifier=lambda text, answer: q.Verdict.of(
        answer in text, checks=(q.Check(name="said", passed=answer in text),)
    ),
)
'''


@pytest.fixture
def play(here, quintain, monkeypatch):
    (here / "doubling_env.py").write_text(TOOLED)

    def with_input(text: str, *arguments: str):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        return quintain("debug", "doubling_env.py", *arguments)

    return with_input


def test_a_task_is_solved_by_hand(play):
    called = play('{"name": "double", "arguments": {"n": 21}}\nIt is 42\n')
    assert called.code == 0, called.out + called.err
    assert "Twice 21?" in called.out
    assert '"description": "which."' in called.out
    assert "← double:\n  42" in called.out
    assert "solved: reward 1" in called.out
    assert "✓ said" in called.out


def test_a_wrong_answer_ends_with_1(play):
    called = play("43\n")
    assert called.code == 1
    assert "✗ said" in called.out


def test_hidden_state_and_verdict_on_demand(play):
    called = play(":state\n:verdict\n:prompt\n:tools\n:help\n42\n")
    assert called.code == 0, called.out + called.err
    assert "secretive" in called.out
    assert "only the judge sees this" in called.out
    assert "failed: reward 0" in called.out
    assert "solved: reward 1" in called.out
    assert ":verdict " in called.out


def test_hidden_state_is_not_shown_unasked(play):
    called = play("42\n")
    assert "secretive" not in called.out
    assert "only the judge" not in called.out


def test_a_malformed_call_is_explained_and_not_sent(play):
    called = play('{"name": 3}\n[1]\n{"name": "double", "arguments": {}}\n42\n')
    assert called.code == 0
    assert called.out.count("not sent") == 2
    assert "n: Field required" in called.out


def test_several_lines(play):
    assert play(":text\nfirst\n42\n.\n").code == 0


@pytest.mark.parametrize("text", ["", ":quit\n", '{"name": "double", "arguments": {"n": 1}}\n'])
def test_leaving_judges_nothing(play, text):
    called = play(text)
    assert called.code == 0
    assert "nothing was judged" in called.out
    assert "reward" not in called.out


def test_an_unknown_task_is_misuse(play):
    called = play("", "--task", "two")
    assert called.code == 2
    assert "no task 'two'" in called.err


def test_a_shell_in_the_sandbox_is_kept_open(quintain, monkeypatch):
    monkeypatch.setattr(
        "sys.stdin",
        io.StringIO(
            ":sh echo from-the-debugger > note\nThe answer is 1\n"
            "cat note\ncd /tmp\nexport SEEN=yes\necho $PWD-$SEEN\nexit\n"
        ),
    )
    called = quintain("debug", "calculator", "--keep-sandbox")
    assert called.code == 1, called.err
    assert "\nfrom-the-debugger\n" in called.out.replace("sandbox $ cat note", "")
    assert "/tmp-yes" in called.out
