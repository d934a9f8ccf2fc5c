"""A few steps with the real language model: everything that training does, small."""

from __future__ import annotations

import pytest

from quintain.loop import TrainRun

pytestmark = pytest.mark.model


def test_smollm2_is_trained_for_two_steps_and_evaluated(quintain):
    called = quintain(
        "train", "calculator", "--policy", "smollm2", "--set", "policy.lora=8",
        "--set", "policy.threads=1", "--set", "train.learner_threads=1", "--steps", "2",
        "--set", "train.groups_per_step=2", "--set", "train.group_size=4",
        "--set", "train.mode=async", "--set", "train.max_staleness=1",
        "--set", "train.min_signal=0", "--set", "train.eval_every=2", "--set", "train.seed=3",
        "--set", "evaluation.limit=8", "--set", "evaluation.samples=1",
        "--set", "evaluation.heldout_limit=8", "--set", "evaluation.heldout_samples=1",
        "--set", "evaluation.signal_tasks=0", "--out", "r", "--json",
    )  # fmt: skip
    assert called.code == 0, called.err
    run = TrainRun("r")
    assert sorted(run.metrics) == [1, 2]
    chosen = run.select()
    assert chosen.gain.tasks == 8
    trained = list(run.store.trajectories(purpose="train"))
    assert len(trained) >= 16
    tools = [r for t in trained for m in t.messages for r in m.tool_results if r.name == "calc"]
    # The prompt's examples hold two results each; more of them come from the sandbox.
    assert len(tools) > 2 * len(trained)
    for trajectory in trained:
        for step in trajectory.steps:
            for span in step.action.tokens:
                assert span.token_ids
                assert all(value <= 0 for value in span.logprobs)
                assert span.policy_version in (0, 1)
    for metrics in run.metrics.values():
        assert metrics["staleness_max"] <= 1
        assert metrics["host_faults"] == 0
    weights = {row.hash for row in run.store.checkpoints()}
    moved = [m for m in run.metrics.values() if not m["skipped_quiet"] and not m["skipped_empty"]]
    assert len(weights) == 1 + (len(moved) > 0)
