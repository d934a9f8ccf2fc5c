"""`quintain quickstart --policy tiny`: the main job, on a model made here and now."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from quintain.loop import TrainRun

pytestmark = pytest.mark.model


def test_the_tiny_model_gets_better_beyond_chance(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "quintain.cli", "quickstart", "--policy", "tiny", "--json",
         "--out", "r"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["gain"]["tasks"] == 200
    assert told["gain"]["low"] > 0
    assert told["heldout"]["after"]["excluded"] == 0
    assert "sandbox native available" in done.stderr
    assert "oracle 1, empty answer and fakes 0" in done.stderr
    assert set(told["times_s"]) >= {"the sandbox", "the model", "training", "in all"}
    page = (tmp_path / "r" / "report.html").read_text()
    assert "heldout" in page

    run = TrainRun(tmp_path / "r")
    assert run.store.meta("training.mode")["mode"] == "async"
    chosen = run.select()
    assert chosen.version > 0
    assert len({t.task_id for t in chosen.heldout.trajectories()}) == 200
    trained = {row.key.task_id for row in run.store.rows(purpose="train")}
    held = {row.key.task_id for row in run.store.rows(purpose=chosen.heldout.purpose)}
    assert not trained & held

    again = subprocess.run(
        [sys.executable, "-m", "quintain.cli", "eval", "--config", "r/config.toml",
         "--checkpoint", "r", "--limit", "20", "--json", "--out", "e"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["samples"] == 20
