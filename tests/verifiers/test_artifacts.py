"""What a candidate left, and whose fault it is when it cannot be read."""

from __future__ import annotations

import pytest

from quintain.errors import RolloutError, SandboxTimeout
from quintain.task import SandboxSpec
from quintain.verifiers.artifacts import candidate_file
from quintain.verifiers.tests import Tests


class Late:
    """A sandbox whose host does not answer."""

    spec = SandboxSpec()
    capabilities = frozenset()

    def __init__(self, error):
        self.error = error

    async def read(self, path, *, max_bytes=0):
        raise self.error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError("x"), "missing in the episode's sandbox"),
        (IsADirectoryError("a folder"), "cannot be read: a folder"),
        (OSError("too long"), "cannot be read: too long"),
    ],
)
async def test_what_the_candidate_caused_is_told(bench, error, words):
    found = await candidate_file(bench.context(sandbox=Late(error)), "/work/x", 10)
    assert found == (None, words)


@pytest.mark.parametrize("error", [TimeoutError("late"), SandboxTimeout("late")])
async def test_a_late_host_fails_no_candidate(bench, error):
    context = bench.context(answer={"cases": [{"stdin": "", "stdout": "x"}]}, sandbox=Late(error))
    with pytest.raises((TimeoutError, SandboxTimeout)):
        await candidate_file(context, "/work/x", 10)
    with pytest.raises(RolloutError):
        await Tests(source="/work/x").judge(context)


async def test_kept_files_have_the_same_bound(bench):
    context = bench.context()
    kept = {"/work/x": b"12345"}
    object.__setattr__(context, "artifact", kept.get)
    assert await candidate_file(context, "/work/x", 5) == (b"12345", "")
    assert (await candidate_file(context, "/work/x", 4))[0] is None
    assert await candidate_file(context, "/work/y", 5) == (None, "not kept with the trajectory")
