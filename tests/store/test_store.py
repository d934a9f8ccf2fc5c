from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from quintain.errors import ConfigError, StoreError
from quintain.messages import assistant, user
from quintain.store import SCHEMA, Store, blob_hash, run_file
from quintain.trajectory import (
    Action,
    Observation,
    Step,
    StopReason,
    TokenSpan,
    Trajectory,
    TrajectoryKey,
)
from quintain.verdict import Outcome, Verdict

GOLDEN = Path(__file__).parent.parent / "golden"


def made(sample: int = 0, attempt: int = 0, task: str = "t", purpose: str = "eval:e@v0",
         outcome: Outcome = Outcome.SOLVED) -> Trajectory:  # fmt: skip
    judged = outcome.judged
    return Trajectory(
        environment="e",
        task_id=task,
        policy="p",
        purpose=purpose,
        sample_index=sample,
        attempt=attempt,
        opening=Observation(messages=(user("hi"),)),
        steps=(
            Step(
                action=Action(
                    message=assistant("5"),
                    tokens=(
                        TokenSpan(
                            prompt_delta_ids=(1, 2),
                            token_ids=(3,),
                            logprobs=(-0.25,),
                            policy_version=7,
                        ),
                    ),
                ),
                observation=Observation(terminated=True),
            ),
        ),
        stop=StopReason.DONE if judged else StopReason.ERROR,
        outcome=outcome,
        verdict=Verdict.of(outcome is Outcome.SOLVED) if judged else None,
    )


def begin(folder: Path, resume: bool = False, **identity: object) -> Store:
    return Store.begin(folder, kind="eval", identity=identity or {"env": "e"}, resume=resume)


async def test_a_trajectory_comes_back_as_it_was(tmp_path: Path) -> None:
    with begin(tmp_path / "run") as store:
        await store.commit(made())
        key = made().key
        assert store.get(key) == made()
        assert list(store.trajectories(outcome="solved")) == [made()]
        assert [row.key for row in store.rows()] == [key]
    with Store.read(tmp_path / "run") as reader:
        assert reader.get(key) == made()
        with pytest.raises(StoreError, match="no trajectory"):
            reader.get(TrajectoryKey("train", "e", "t", 0, 0))


async def test_one_bad_item_does_not_take_the_batch_with_it(tmp_path: Path) -> None:
    with begin(tmp_path / "run") as store:
        await store.commit(made(0))
        results = await asyncio.gather(
            store.commit(made(1)), store.commit(made(0)), store.commit(made(2)),
            return_exceptions=True,
        )  # fmt: skip
        assert isinstance(results[1], StoreError)
        assert "stored already" in str(results[1])
        assert [row.key.sample_index for row in store.rows()] == [0, 1, 2]


async def test_exactly_one_attempt_is_final(tmp_path: Path) -> None:
    with begin(tmp_path / "run") as store:
        await store.commit(made(attempt=0, outcome=Outcome.INFRA_ERROR), final=False)
        assert store.rows() == []
        assert store.next_attempt("eval:e@v0", "e", "t", 0) == 1
        await store.commit(made(attempt=1))
        with pytest.raises(StoreError, match="stored already"):
            await store.commit(made(attempt=2))
        assert [row.key.attempt for row in store.rows(final=None)] == [0, 1]


async def test_errors_can_be_made_to_run_again(tmp_path: Path) -> None:
    with begin(tmp_path / "run") as store:
        await store.commit(made(0, outcome=Outcome.POLICY_ERROR))
        await store.commit(made(1))
        assert await store.unfinal("eval:e@v0", ["policy_error", "infra_error"]) == 1
        assert [row.key.sample_index for row in store.rows()] == [1]
        assert store.next_attempt("eval:e@v0", "e", "t", 0) == 1


async def test_an_unjudged_trajectory_is_refused(tmp_path: Path) -> None:
    with begin(tmp_path / "run") as store, pytest.raises(StoreError, match="no outcome"):
        await store.commit(made().model_copy(update={"outcome": None}))


async def test_blobs_lie_under_their_hash(tmp_path: Path) -> None:
    data = os.urandom(1000)
    name = blob_hash(data)
    with begin(tmp_path / "run") as store:
        await store.commit(
            made().model_copy(update={"artifacts": {"/work/a": name}}), blobs={name: data}
        )
        assert store.blob(name) == data
        with pytest.raises(StoreError, match="not the hash"):
            store.blob("../run.sqlite")
        with pytest.raises(StoreError, match="no blob"):
            store.blob("0" * 64)


async def test_readers_do_not_block_the_writer_and_see_a_snapshot(tmp_path: Path) -> None:
    with begin(tmp_path / "run") as store:
        for sample in range(20):
            await store.commit(made(sample))
        with Store.read(tmp_path / "run") as reader:
            half_read = reader.trajectories()
            next(half_read)
            for sample in range(20, 40):
                async with asyncio.timeout(10):
                    await store.commit(made(sample))
            assert len(list(half_read)) == 19
            assert len(reader.rows()) == 40


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with begin(tmp_path / "run"), pytest.raises(StoreError, match=f"pid {os.getpid()}"):
        begin(tmp_path / "run", resume=True)
    begin(tmp_path / "run", resume=True).close()


def test_a_run_is_never_overwritten_and_resumes_only_as_itself(tmp_path: Path) -> None:
    begin(tmp_path / "run", env="e", samples=4).close()
    with pytest.raises(ConfigError, match="already holds a run"):
        begin(tmp_path / "run", env="e", samples=4)
    with pytest.raises(ConfigError, match="samples was 4, now 8"):
        begin(tmp_path / "run", resume=True, env="e", samples=8)
    with pytest.raises(ConfigError, match="kind 'eval', not 'train'"):
        Store.begin(tmp_path / "run", kind="train", identity={}, resume=True)
    begin(tmp_path / "run", resume=True, env="e", samples=4).close()


def test_a_newer_schema_is_refused_by_name(tmp_path: Path) -> None:
    begin(tmp_path / "run").close()
    connection = sqlite3.connect(run_file(tmp_path / "run"))
    connection.execute(f"PRAGMA user_version={SCHEMA + 1}")
    connection.close()
    for opening in (Store.read, lambda folder: begin(folder, resume=True)):
        with pytest.raises(StoreError, match=f"schema {SCHEMA + 1}, this one knows {SCHEMA}"):
            opening(tmp_path / "run")


@pytest.mark.parametrize("how", ["read", "resume"])
async def test_an_older_schema_is_migrated(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(GOLDEN / "store_v1.sqlite", run_file(folder))
    if how == "read":
        store = Store.read(folder)
    else:
        store = Store.begin(folder, kind="eval", identity={"environment": "sums"}, resume=True)
    with store:
        trajectories = list(store.trajectories())
        assert [t.sample_index for t in trajectories] == [0, 1, 2]
        assert trajectories[0].steps[0].action.tokens[0].logprobs == (-0.5,)
        assert store.groups() == []
        assert store.meta("id") == "golden"
    with Store.begin(folder, kind="eval", identity={"environment": "sums"}, resume=True) as again:
        group = await again.admit_group("sums", "a", 4, 0)
        assert list(group.sample_indexes) == [0, 1, 2, 3]


def test_what_is_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no run"):
        Store.read(tmp_path)
    run_file(tmp_path).write_text("this is not a database, not at all, not even a little bit")
    with pytest.raises(StoreError, match="cannot"):
        Store.read(tmp_path)


async def test_export_writes_one_line_a_final_trajectory(tmp_path: Path) -> None:
    with begin(tmp_path / "run") as store:
        await store.commit(made(0, attempt=0, outcome=Outcome.INFRA_ERROR), final=False)
        await store.commit(made(0, attempt=1))
        await store.commit(made(1, outcome=Outcome.FAILED))
        assert store.export_jsonl(tmp_path / "out.jsonl") == 2
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [Trajectory.model_validate_json(line).attempt for line in lines] == [1, 0]
    assert json.loads(lines[1])["verdict"]["reward"] == 0.0


async def test_groups_fix_sample_indexes_and_are_given_back_by_rewind(tmp_path: Path) -> None:
    with begin(tmp_path / "run") as store:
        first = await store.admit_group("e", "a", 8, version=0)
        second = await store.admit_group("e", "a", 8, version=1)
        other = await store.admit_group("e", "b", 8, version=1)
        assert (first.first_sample, second.first_sample, other.first_sample) == (0, 8, 0)
        await store.consume_groups([first.id], step=1)
        await store.consume_groups([second.id], step=2)
        await store.metrics(1, {"reward": 0.5})
        await store.metrics(2, {"reward": float("nan")})
        await store.checkpoint(
            version=1, step=1, path=store.folder / "checkpoints/1", hash="h", state={"cursor": 3}
        )
        assert store.metric_rows() == [(1, "reward", 0.5), (2, "reward", None)]
        assert await store.rewind(1) == 1
        assert [group.id for group in store.groups(consumed=False)] == [second.id, other.id]
        assert store.metric_rows() == [(1, "reward", 0.5)]
        (checkpoint,) = store.checkpoints()
        assert (checkpoint.path, checkpoint.state) == ("checkpoints/1", {"cursor": 3})


def test_killed_at_fifty_random_moments_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """The driver kills a running schedule with SIGKILL 50 times, resuming each time."""
    driver = Path(__file__).parent / "kill_driver.py"
    result = subprocess.run(
        [sys.executable, str(driver), str(tmp_path / "run"), "50"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    told = json.loads(result.stdout.splitlines()[-1])
    assert told["kills"] == 50
    assert told["kills_with_work_lost"] > 0, "no kill came while anything ran: proves nothing"
    assert told["finals"] == told["samples"]
    assert told["lost"] == []
    assert told["repeated"] == []


def test_a_run_that_is_just_being_made_can_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    run_file(folder).touch()
    threading.Timer(0.2, lambda: begin(folder, resume=True).close()).start()
    with Store.read(folder) as reader:
        assert reader.meta("kind") == "eval"
    (tmp_path / "empty").mkdir()
    run_file(tmp_path / "empty").touch()
    with pytest.raises(StoreError, match=r"its run\.sqlite is empty"):
        Store.read(tmp_path / "empty")
