"""Stored trajectories judged again: changed verdicts, what is not judged, and resuming."""

from __future__ import annotations

import pytest

import quintain as q
from quintain.errors import ConfigError, PolicyRefused, StoreError, VerifierError
from quintain.evals import EvalRun
from quintain.evals.rescoring import Rescored, _same
from quintain.verdict import Outcome, Verdict


async def lenient(text, answer):
    return Verdict.of(answer in text, "it is somewhere in the text")


async def strict(text, answer):
    return Verdict.of(text.strip() == answer, "compared whole")


def adder(verifier=lenient, **more):
    rows = [
        {"id": f"t{i}", "prompt": f"{i}+1", "answer": str(i + 1), "split": "eval"} for i in range(6)
    ]
    return q.Environment(rows, verifier, name="adder", **more)


def says(messages, tools, seed):
    number = int(messages[-1].text.split("+")[0]) + 1
    return str(number) if number % 2 else "1 2 3 4 5 6"


async def played(tmp_path, **more):
    return await q.aevaluate(adder(**more), q.scripted(says), samples=2, run=tmp_path / "old")


async def test_changed_verdicts_are_listed(tmp_path):
    run = await played(tmp_path)
    assert run.outcomes[Outcome.SOLVED] == 12
    again = await q.arescore(tmp_path / "old", strict, environment=adder(), out=tmp_path / "new")
    assert again.judged == 12
    assert not again.not_judged
    assert again.counts == {"solved → failed": 6}
    assert {change.key.task_id for change in again.changes} == {"t1", "t3", "t5"}
    change = again.changes[0]
    assert (change.reward_before, change.reward) == (1.0, 0.0)
    assert change.explanation_before == "it is somewhere in the text"
    assert change.explanation == "compared whole"
    assert "solved → failed" in str(again)
    assert again.to_json()["changed"] == 6
    # The old run is as it was; the new one reads as any run.
    assert EvalRun.open(tmp_path / "old").outcomes[Outcome.SOLVED] == 12
    new = EvalRun.open(tmp_path / "new")
    assert new.outcomes[Outcome.SOLVED] == new.outcomes[Outcome.FAILED] == 6
    assert new.planned == 12
    assert new.failures[0].trajectory.text == "1 2 3 4 5 6"


async def test_the_environments_own_verifier_as_it_is_today(tmp_path):
    await played(tmp_path)
    again = await q.arescore(tmp_path / "old", environment=adder(strict), out=tmp_path / "new")
    assert again.counts == {"solved → failed": 6}


async def test_nothing_is_overwritten(tmp_path):
    await played(tmp_path)
    for folder in ("old", "new"):
        if folder == "new":
            await q.arescore(tmp_path / "old", strict, environment=adder(), out=tmp_path / folder)
        with pytest.raises(ConfigError):
            await q.arescore(tmp_path / "old", strict, environment=adder(), out=tmp_path / folder)
    with pytest.raises(ConfigError, match="no trajectories"):
        await q.arescore(tmp_path / "old", strict, environment=adder(), purpose="train")
    with pytest.raises(StoreError):
        await q.arescore(tmp_path / "none", strict, environment=adder())
    with pytest.raises(ConfigError, match="no verdicts"):
        Rescored(tmp_path / "old")


async def test_it_goes_on_where_it_was_stopped(tmp_path):
    await played(tmp_path)
    judged = []

    async def stops(text, answer):
        judged.append(text)
        if len(judged) == 5:
            raise ConfigError("stopped")
        return text.strip() == answer

    where = {"environment": adder(), "out": tmp_path / "new", "concurrency": 1}
    with pytest.raises(ConfigError, match="stopped"):
        await q.arescore(tmp_path / "old", stops, **where)
    again = await q.arescore(tmp_path / "old", stops, resume=True, **where)
    assert len(judged) == 13
    assert again.judged == 12
    with pytest.raises(ConfigError, match="verifier"):
        await q.arescore(tmp_path / "old", strict, resume=True, **where)


async def test_what_broke_is_not_judged_and_a_broken_judge_is_mended(tmp_path):
    async def broken(text, answer):
        raise VerifierError("the judge broke")

    await q.aevaluate(adder(broken), q.scripted("3"), retries=0, run=tmp_path / "old")
    again = await q.arescore(tmp_path / "old", strict, environment=adder(), out=tmp_path / "new")
    assert again.counts == {"verifier_error → failed": 5, "verifier_error → solved": 1}
    assert "the judge broke" in again.changes[0].explanation_before

    def silent(messages, tools, seed):
        raise PolicyRefused("no")

    await q.aevaluate(adder(), q.scripted(silent), retries=0, run=tmp_path / "mute")
    again = await q.arescore(tmp_path / "mute", strict, environment=adder(), out=tmp_path / "m2")
    assert (again.judged, len(again.not_judged)) == (0, 6)
    assert "broke before its end" in next(iter(again.not_judged.values()))


async def any_way(text):
    return True


async def reads(context):
    data = context.artifact("/work/out.txt")
    return Verdict.of(data == b"42", f"found {data!r}")


def shelf(artifacts, files):
    row = {"id": "t", "prompt": "write", "split": "eval", "files": files}
    return q.Environment([row], any_way, name="shelf", sandbox=q.SandboxSpec(), artifacts=artifacts)


async def shelved(tmp_path, artifacts, files):
    """A run in which the candidate left these files; and the verdicts that read one of them."""
    environment = shelf(artifacts, files)
    run = await q.aevaluate(environment, q.scripted("done"), retries=0, run=tmp_path / "old")
    if run.errors:
        pytest.skip(str(run.errors[0]))
    return environment


async def test_kept_files_are_read_again(tmp_path):
    environment = await shelved(tmp_path, ["out.txt"], {"out.txt": "42"})
    again = await q.arescore(tmp_path / "old", reads, environment=environment, out=tmp_path / "a")
    assert (again.judged, again.changes) == (1, [])
    # A rescored run can be judged again, too.
    third = await q.arescore(tmp_path / "a", reads, environment=environment, out=tmp_path / "b")
    assert (third.judged, third.changes) == (1, [])
    for blob in (tmp_path / "old" / "blobs").iterdir():
        blob.unlink()
    again = await q.arescore(tmp_path / "old", reads, environment=environment, out=tmp_path / "c")
    assert list(again.not_judged.values()) == ["/work/out.txt: its content is gone from blobs/"]


async def test_a_file_that_the_candidate_did_not_write_fails_it(tmp_path):
    environment = await shelved(tmp_path, ["out.txt"], {})
    again = await q.arescore(tmp_path / "old", reads, environment=environment, out=tmp_path / "new")
    assert again.counts == {"solved → failed": 1}


async def test_a_file_that_was_never_kept_fails_nobody(tmp_path):
    environment = await shelved(tmp_path, [], {"out.txt": "42"})
    again = await q.arescore(tmp_path / "old", reads, environment=environment, out=tmp_path / "new")
    assert again.judged == 0
    assert list(again.not_judged.values()) == ["/work/out.txt: not kept with the run"]


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("out.txt", "/work/out.txt", True),
        ("/work/out.txt", "out.txt", True),
        ("a/out.txt", "b/out.txt", False),
        ("/a/out.txt", "/b/out.txt", False),
        ("ut.txt", "/work/out.txt", False),
    ],
)
def test_two_names_of_one_file(a, b, same):
    assert _same(a, b) is same
