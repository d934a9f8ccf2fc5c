"""`run`, `list`, `doctor`, `export`, `report`, `init`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from quintain import registry
from quintain.trajectory import Trajectory

PARROT = ("--policy", "adding.py:parrot")


def test_run_prints_a_transcript(quintain, here):
    called = quintain("run", "adding.py", *PARROT, "--only", "1+2")
    assert called.code == 0, called.err
    assert "What is 1 + 2?" in called.out
    assert "solved: reward 1" in called.out
    assert not (here / "runs").exists()


def test_run_plays_samples_in_the_order_asked_for(quintain):
    called = quintain(
        "run", "adding.py", *PARROT, "--only", "1+2:3", "--only", "0+1", "--samples", "2", "--json"
    )
    played = [(t["task_id"], t["sample_index"]) for t in called.json]
    assert played == [("1+2", 3), ("0+1", 0), ("0+1", 1)]


def test_run_takes_the_first_tasks_of_a_split(quintain):
    called = quintain("run", "adding.py", *PARROT, "--limit", "2", "--json")
    assert [t["task_id"] for t in called.json] == ["0+0", "0+1"]
    called = quintain("run", "adding.py", *PARROT, "--split", "heldout")
    assert called.code == 2
    assert "no tasks in heldout" in called.err


def test_list_names_what_is_registered(quintain):
    called = quintain("list", "--json")
    assert called.json["environments"]["arithmetic"] == registry.environments.target("arithmetic")
    assert "smollm2" in quintain("list", "policies").out
    called = quintain("list", "nothing")
    assert called.code == 2
    assert "environments" in called.err


def test_doctor_tries_the_sandbox(quintain):
    called = quintain("doctor", "--sandbox", "native", "--json")
    native = called.json["sandboxes"]["native"]
    assert called.code == (0 if native["available"] else 1)
    assert native["enforced"] or native["missing"] or native["advice"]
    assert "torch" in called.json["extras"]["train"]["needs"]
    assert called.json["recommendation"][0]["for"].startswith("training")
    assert "sandbox native" in quintain("doctor", "--sandbox", "native").out
    called = quintain("doctor", "--sandbox", "nativ")
    assert called.code == 2, "a misspelt name is no finding"
    assert "did you mean native" in called.err


def test_export_and_report_of_a_run(quintain, here):
    quintain("eval", "adding.py", *PARROT, "--out", "r")
    called = quintain("export", "r", "--out", "all.jsonl")
    assert called.code == 0
    lines = (here / "all.jsonl").read_text().splitlines()
    assert len({Trajectory.model_validate_json(line).key for line in lines}) == 20
    called = quintain("export", "r", "--out", "x.jsonl", "--purpose", "train")
    assert called.code == 2
    assert "eval:eval@v0" in called.err
    called = quintain("report", "r")
    assert called.code == 0
    page = (here / "r" / "report.html").read_text()
    assert "adding" in page
    assert "<script" not in page
    for verb in (("report", "nowhere"), ("export", "nowhere", "--out", "x")):
        called = quintain(*verb)
        assert called.code == 2
        assert "holds no run" in called.err


def test_init_writes_a_package_whose_tests_pass(quintain, here):
    called = quintain("init", "my_words")
    assert called.code == 0, called.err
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=here / "my_words",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "7 passed" in done.stdout
    source = (here / "my_words/src/my_words/__init__.py").read_text()
    environment = source[source.index("environment = ") :].strip().splitlines()
    assert len(environment) <= 15
    played = quintain(
        "run", "my_words/src/my_words/__init__.py", "--policy", "scripted",
        "--set", 'policy.script="1"', "--json",
    )  # fmt: skip
    assert played.json[0]["outcome"] == "solved", played.err
    assert quintain("init", "my_words").code == 2


@pytest.mark.parametrize("name", ["My-Env", "1st", "a/b", ".."])
def test_init_refuses_a_name_that_is_none(quintain, here, name):
    called = quintain("init", name)
    assert called.code == 2
    assert "package's name" in called.err
    assert sorted(path.name for path in Path(here).iterdir()) == ["adding.py"]


def test_json_of_run_is_a_list_of_trajectories(quintain):
    called = quintain("run", "adding.py", *PARROT, "--json")
    Trajectory.model_validate_json(json.dumps(called.json[0]))


def test_list_says_what_each_is_without_importing_it(quintain):
    called = quintain("list", "policies")
    assert "Answers from a script." in called.out
    for table in registry.TABLES.values():
        for name in table.names():
            assert table.summary(name), (table.table, name)


@pytest.mark.parametrize("name", ["os", "class", "quintain"])
def test_init_refuses_names_that_hide_others(quintain, name):
    called = quintain("init", name)
    assert called.code == 2
    assert "choose another" in called.err


def test_a_backend_that_there_is_not(quintain):
    called = quintain("run", "calculator", "--policy", "scripted", "--set", "policy.script=one",
                      "--limit", "1", "--backend", "dockre")  # fmt: skip
    assert called.code == 2
    assert "did you mean docker" in called.err
