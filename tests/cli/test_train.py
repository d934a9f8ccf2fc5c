"""`quintain train` on the tiny model, and its checkpoints afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quintain.errors import StoreError
from quintain.loop import TrainRun
from quintain.store import Store

pytestmark = pytest.mark.model

SAYING = '''\
"""Whatever is said: an even number of characters earns 1, so that noise has signal."""

import quintain as q

environment = q.Environment(
    name="saying",
    tasks=[
        {"id": f"{split}-{n}", "prompt": f"{split} {n}", "split": split}
        for split in q.Split
        for n in range(8)
    ],
    verifier=lambda text: len(text) % 2 == 0 and len(text) > 0,
    limits=q.Limits(max_steps=1),
    sampling=q.Sampling(max_tokens=4),
)
'''
SMALL = (
    "--steps", "2", "--set", "train.groups_per_step=2", "--set", "train.group_size=4",
    "--set", "train.eval_every=1", "--set", "train.min_signal=0", "--set", "evaluation.limit=4",
    "--set", "evaluation.heldout_limit=4", "--set", "evaluation.samples=1",
    "--set", "evaluation.heldout_samples=1", "--set", "policy.threads=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """The folder in which `quintain train … --out r` ran once."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "saying.py").write_text(SAYING)
    done = _quintain(
        folder, "train", "saying.py", "--policy", "tiny", "--out", "r", "--json", *SMALL
    )
    assert done.returncode == 0, done.stderr
    (folder / "told.json").write_text(done.stdout)
    return folder


def _quintain(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "quintain.cli", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.fixture
def there(trained, quintain, monkeypatch):
    monkeypatch.chdir(trained)
    return quintain


def test_training_is_told_selected_and_stored(trained):
    told = json.loads((trained / "told.json").read_text())
    run = TrainRun(trained / "r")
    assert told["selected"]["step"] == run.select().step
    assert told["gain"]["tasks"] == 4
    assert told["times_s"]["evaluations on the eval split"] > 0
    config = run.store.meta("config")
    assert config["settings"]["train"]["group_size"] == 4
    assert config["settings"]["train"]["sampling"]["max_tokens"] == 4
    assert config["versions"]["torch"]
    assert sorted(run.metrics) == [1, 2]


def test_the_same_run_is_not_begun_again_but_gone_on_with(there):
    called = there("train", "saying.py", "--policy", "tiny", "--out", "r", *SMALL)
    assert called.code == 2
    assert "already holds a run" in called.err
    before = len(Store.read("r").rows(final=None))
    called = there("train", "--resume", "--out", "r", "--json")
    assert called.code == 0, called.err
    assert len(Store.read("r").rows(final=None)) == before


@pytest.mark.parametrize("which", ["r", "r@2", "r@v1"])
def test_a_checkpoint_is_evaluated_as_the_version_that_it_is(there, which, tmp_path):
    out = tmp_path / "e"
    called = there("eval", "saying.py", "--checkpoint", which, "--out", str(out), "--json")
    assert called.code == 0, called.err
    (version,) = {v for t in Store.read(out).trajectories() for v in t.versions}
    rows = {row.version: row for row in Store.read("r").checkpoints()}
    expected = {"r": TrainRun("r").select().version, "r@v1": 1}.get(which)
    if expected is None:
        (expected,) = [v for v, row in rows.items() if row.step == 2]
    assert version == expected
    assert called.json["purpose"] == f"eval:eval@v{version}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--checkpoint", "r@99"], "holds no checkpoint '99'; it holds steps: 0 (v0)"),
        (["--checkpoint", "nowhere"], "holds no run"),
        (["--checkpoint", "r", "--policy", "tiny", "--set", "policy.seed=5"], "with seed=0"),
        (
            ["--checkpoint", "r", "--policy", "scripted", "--set", "policy.script=x"],
            "cannot be trained",
        ),
    ],
)
def test_a_wrong_checkpoint_is_misuse(there, arguments, message):
    called = there("eval", "saying.py", *arguments, "--out", "never")
    assert called.code == 2, called.err
    assert message in called.err
    assert not os.path.exists("never/run.sqlite")


def test_a_policy_without_weights_is_refused(there):
    called = there(
        "train", "saying.py", "--policy", "scripted", "--set", "policy.script=x", "--out", "no"
    )
    assert called.code != 0
    assert "cannot be trained" in called.err
    assert "Traceback" not in called.err


def test_a_report_shows_the_training(there):
    assert there("report", "r").code == 0
    page = Path("r/report.html").read_text()
    assert "reward" in page
    assert "heldout" in page


def test_ctrl_c_while_training_goes_on_later(trained):
    started = subprocess.Popen(
        [sys.executable, "-m", "quintain.cli", "train", "saying.py", "--policy", "tiny",
         "--out", "again", *SMALL, "--steps", "1000"],
        cwd=trained, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and not _steps(trained / "again"):
        assert started.poll() is None, started.communicate()
        time.sleep(0.1)
    started.send_signal(2)
    _, told = started.communicate(timeout=120)
    assert started.returncode == 130, told
    assert "quintain train --resume --out again" in told
    with pytest.raises(ProcessLookupError):
        os.killpg(started.pid, 0)
    last = _steps(trained / "again") + 2
    done = _quintain(trained, "train", "--resume", "--out", "again", "--steps", str(last))
    assert done.returncode == 0, done.stderr
    run = TrainRun(trained / "again")
    assert sorted(run.metrics) == list(range(1, last + 1))
    assert run.select()


def _steps(folder: Path) -> int:
    try:
        with Store.read(folder) as store:
            return len({step for step, _, _ in store.metric_rows()})
    except StoreError:
        return 0  # not begun yet
