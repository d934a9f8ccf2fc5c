"""`quintain eval`: scores, JSON, budgets, resuming, errors, and what is stored."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from openai_server import Status
from quintain.errors import StoreError
from quintain.messages import assistant
from quintain.store import Store
from quintain.task import Split
from quintain.trajectory import Action, Usage

from .conftest import served

PARROT = ("--policy", "adding.py:parrot")


def test_scores_and_failures_are_printed(quintain):
    called = quintain("eval", "adding.py", *PARROT)
    assert called.code == 0, called.err
    assert "4 solved, 16 failed" in called.out
    assert "pass@1" in called.out
    assert "0.200 [" in called.out
    assert "with 0 excluded as failures" in called.out
    assert "quintain run adding.py --policy adding.py:parrot --only 0+0:0 --seed 0" in called.out
    assert "quintain report runs/adding-" in called.out


def test_json_alone_is_on_standard_output(quintain):
    called = quintain("eval", "adding.py", *PARROT, "--samples", "2", "--json", "--out", "there")
    assert called.json["outcomes"]["solved"] == 8
    assert called.json["pass_at"]["1"]["value"] == pytest.approx(0.2)
    assert called.json["folder"] == "there"
    assert len(called.json["failures"]) == 32


def test_a_stored_sample_is_reproduced_by_its_line(quintain):
    line = quintain("eval", "adding.py", *PARROT, "--json").json["failures"][0]["reproduce"]
    words = line.split()
    assert words[:2] == ["quintain", "run"]
    called = quintain(*words[1:], "--json")
    (trajectory,) = called.json
    (stored,) = [
        t
        for t in Store.read(next(iter_runs())).trajectories()
        if t.task_id == trajectory["task_id"]
    ]
    assert trajectory["seed"] == stored.seed
    assert trajectory["outcome"] == str(stored.outcome)


def iter_runs():
    return iter(sorted(os.path.join("runs", name) for name in os.listdir("runs")))


def test_a_served_model_and_its_budget(quintain):
    answer = Action(
        message=assistant("3"), usage=Usage(calls=1, prompt_tokens=10, completion_tokens=100)
    )
    with served(answer) as server:
        common = ("eval", "adding.py", "--model", "m", "--base-url", server.base_url)
        prices = ("--set", "policy.usd_per_million_completion=100", "--concurrency", "1")
        first = quintain(*common, *prices, "--max-cost-usd", "0.05", "--out", "r", "--json")
        assert first.code == 1
        assert first.json["samples"] == 5
        assert "$0.05" in first.json["stopped"]
        again = quintain("eval", "--resume", "--out", "r", "--max-cost-usd", "1", "--json")
        assert again.code == 0, again.err
        assert again.json["samples"] == 20
        assert again.json["outcomes"]["solved"] == 4
        assert len(server.bodies) == 20


def test_errors_of_the_host_are_counted_and_run_again(quintain):
    with served(Status(400)) as server:
        common = ("eval", "adding.py", "--model", "m", "--base-url", server.base_url, "--json")
        first = quintain(*common, "--out", "r", "--limit", "3", "--set", "retries=0")
        assert first.code == 1
        assert first.json["outcomes"]["policy_error"] == 3
        assert first.json["pass_at"] == {}
        server.script = ["0"]
        again = quintain(*common, "--out", "r", "--limit", "3", "--retry-errors")
        assert again.code == 0, again.err
        assert again.json["outcomes"] == {
            **again.json["outcomes"], "solved": 1, "failed": 2, "policy_error": 0,
        }  # fmt: skip


def test_a_key_comes_from_the_environment_and_is_never_written(quintain, here, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-very-secret-1")
    with served("3") as server:
        called = quintain(
            "eval", "adding.py", "--model", "m", "--base-url", server.base_url,
            "--set", "policy.api_key_env=MY_KEY", "--limit", "2", "--verbose",
        )  # fmt: skip
        assert server.headers[0]["Authorization"] == "Bearer sk-very-secret-1"
    assert called.code == 0
    assert "sk-very-secret" not in called.out + called.err
    for path in here.rglob("*"):
        assert path.is_dir() or b"sk-very-secret" not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eval"], "no environment"),
        (["eval", "adding.py"], "no policy"),
        (["eval", "arithmetik", *PARROT], "did you mean arithmetic"),
        (["eval", "nowhere.py", *PARROT], "no such file: nowhere.py"),
        (["eval", "adding.py:nothing", *PARROT], "has no 'nothing'"),
        (["eval", "adding.py:not_one", *PARROT], "is a int; expected an Environment"),
        (["eval", "adding.py:sized", *PARROT], "needs --set options.largest"),
        (["eval", "adding.py", *PARROT, "--set", "options.a=1"], "takes no options"),
        (["eval", "adding.py", *PARROT, "--set", "policy.wrod=4"], "it takes: policy.word"),
        (["eval", "adding.py", *PARROT, "--split", "test"], "'train', 'eval' or 'heldout'"),
        (["eval", "adding.py", *PARROT, "--split", "train"], "there are some in: eval"),
        (["eval", "adding.py", *PARROT, "--samples", "0"], "eval.samples"),
        (["eval", "adding.py", *PARROT, "--set", "eval.sample=2"], "did you mean samples"),
        (["eval", "adding.py", *PARROT, "--only", "9+9"], "no task '9+9'"),
        (["eval", "adding.py", *PARROT, "--resume"], "need --out"),
        (["eval", "adding.py", *PARROT, "--base-url", "http://x/v1"], "goes with a served model"),
        (["eval", "adding.py", "--model", "m", "--set", "policy.api_key=k"], "api_key_env"),
    ],
)
def test_misuse_is_one_clear_line(quintain, arguments, message):
    called = quintain(*arguments)
    assert called.code == 2, called.out + called.err
    assert called.err.startswith("error:")
    assert message in called.err
    assert "Traceback" not in called.err
    assert called.out == ""


def test_a_broken_file_is_told_with_its_line(quintain, here):
    (here / "broken_one.py").write_text("import quintain\n\nx = quintain.nothing\n")
    called = quintain("eval", "broken_one.py", *PARROT)
    assert called.code == 2
    assert "broken_one.py, line 3: AttributeError" in called.err


def test_a_folder_in_use_is_refused(quintain):
    assert quintain("eval", "adding.py", *PARROT, "--out", "r").code == 0
    called = quintain("eval", "adding.py", *PARROT, "--out", "r")
    assert called.code == 2
    assert "already holds a run; resume it (--resume)" in called.err
    called = quintain("eval", "--resume", "--out", "r", "--seed", "7")
    assert called.code == 2
    assert "seed was 0, now 7" in called.err


def test_settings_come_from_a_file_and_go_back_to_one(quintain, here):
    (here / "run.toml").write_text(
        'environment = "adding.py:sized"\n[options]\nlargest = 40\n'
        '[policy]\nname = "adding.py:parrot"\nword = "7"\n[eval]\nsamples = 2\nsplit = "train"\n'
    )
    first = quintain("eval", "--config", "run.toml", "--temperature", "0.5", "--out", "a", "--json")
    assert first.code == 0, first.err
    again = quintain("eval", "--config", "a/config.toml", "--out", "b", "--json")
    assert again.json["outcomes"] == first.json["outcomes"]
    with Store.read("b") as store:
        stored = store.meta("config")
        sampling = {t.steps[0].sampling.temperature for t in store.trajectories()}
    assert sampling == {0.5}
    assert stored["settings"]["options"] == {"largest": 40}
    assert stored["settings"]["eval"]["split"] == Split.TRAIN
    assert stored["versions"]["quintain"]
    assert stored["command"]["environment"] == "adding.py:sized"


@pytest.mark.parametrize("how", ["ctrl-c", "terminated in the background"])
def test_a_stopped_run_goes_on(here, how):
    background = how != "ctrl-c"
    quintain = [sys.executable, "-m", "quintain.cli"]
    arguments = ["eval", "adding.py", "--policy", "adding.py:parrot", "--samples", "20"]
    (here / "adding.py").write_text(
        (here / "adding.py").read_text().replace('name="parrot"', 'name="parrot", latency_s=0.05')
    )
    started = subprocess.Popen(
        [*quintain, *arguments, "--out", "r", "--concurrency", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell starts a background job with SIGINT ignored.
        preexec_fn=(lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if background else None,
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not _stored():
        time.sleep(0.05)
    assert _stored(), "nothing was stored within a minute"
    started.send_signal(signal.SIGTERM if background else signal.SIGINT)
    _, told = started.communicate(timeout=60)
    assert started.returncode == 130, told
    assert "quintain eval --resume --out r" in told
    with pytest.raises(ProcessLookupError):
        os.killpg(started.pid, 0)
    before = _stored()
    assert 0 < before < 400
    done = subprocess.run(
        [*quintain, "eval", "--resume", "--out", "r", "--concurrency", "64"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "80 solved, 320 failed" in done.stdout


def _stored() -> int:
    try:
        with Store.read("r") as store:
            return len(store.rows())
    except StoreError:
        return 0  # not begun yet


def test_resuming_with_another_policy_set_up_is_refused(quintain):
    scripted = ("eval", "adding.py", "--policy", "scripted", "--out", "r")
    assert quintain(*scripted, "--set", "policy.script=one").code == 0
    called = quintain(*scripted, "--set", "policy.script=two", "--resume")
    assert called.code == 2
    assert "policy.script was 'one' and is 'two' now" in called.err.replace("\n", " ")


def test_a_moved_server_is_let_through_and_told(quintain):
    answer = Action(message=assistant("3"), usage=Usage(calls=1, completion_tokens=1))
    common = ("eval", "adding.py", "--model", "m", "--out", "r", "--limit")
    with served(answer) as server:
        assert quintain(*common, "2", "--base-url", server.base_url).code == 0
    with served(answer) as server:
        called = quintain(*common, "4", "--base-url", server.base_url, "--resume", "--json")
    assert called.json["samples"] == 4, called.err
    assert "policy.base_url was" in called.err


def test_a_budget_that_can_stop_nothing_is_told(quintain):
    called = quintain("eval", "adding.py", *PARROT, "--max-cost-usd", "1", "--max-tokens", "5")
    assert "max_cost_usd=1 could stop nothing" in called.out
    assert "max_tokens=5 could stop nothing" in called.out


RAISING = """
import quintain as q

def judge(text, answer):
    return answer["no such key"]

environment = q.Environment(
    name="raising", tasks=[{"prompt": "1?", "answer": {"a": 1}}], verifier=judge
)
"""


def test_verbose_shows_where_a_verifier_raised(quintain, here):
    (here / "raising_one.py").write_text(RAISING)
    scripted = ("--policy", "scripted", "--set", "policy.script=one", "--split", "train")
    called = quintain("eval", "raising_one.py", *scripted, "--set", "retries=0", "--verbose")
    assert called.code == 1
    assert "raising_one.py" in called.err
    assert 'return answer["no such key"]' in called.err
