"""Does a program hold on data that it never saw: run again, in a clean room, on data made for it.

The candidate's program is judged by `Tests`, on cases that a generator makes for this verdict from
a hidden seed and whose expected values a reference computes outside. What the program was tuned
to, remembers or has written down helps nothing.
"""

from __future__ import annotations

import math
import random
import secrets
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

from quintain.errors import ConfigError, TaskError, VerifierError
from quintain.protocols import JudgeContext
from quintain.record import Json, derive_seed
from quintain.task import SandboxSpec
from quintain.verdict import Kind, Verdict
from quintain.verifiers.cases import Comparison, Tolerance
from quintain.verifiers.tests import Tests
from quintain.verifiers.workers import BudgetExceeded, WorkerError


class UnseenData:
    """Judges a function or a program on cases made anew for each trajectory.

    Args:
        generate: from a `random.Random` to one input: the list of a function's arguments, or a
            program's standard input. Plain JSON, see `cases`.
        reference: from that input (a function: its arguments) to what is right.
        entry_point: the function's name; None: a program that reads and prints.
        count: cases of a verdict.
        secret: the hidden seed; None: drawn anew, so that a verdict cannot be given again in
            another process.
        compare: how a program's output is compared.
        tolerance: of floats.
        generate_s: CPU seconds for making all cases, in a worker.
        source: see `Tests`.
        cpu_s: see `Tests`.
        sandbox: see `Tests`.
        name: the verifier's name.

    Raises:
        ConfigError: a number is out of range.
    """

    def __init__(
        self,
        generate: Callable[[random.Random], Any],
        reference: Callable[..., Any],
        *,
        entry_point: str | None = None,
        count: int = 20,
        secret: str | None = None,
        compare: Comparison = "lines",
        tolerance: Tolerance | None = None,
        generate_s: float = 20.0,
        source: str = "text",
        cpu_s: float = 10.0,
        sandbox: SandboxSpec | None = None,
        name: str = "unseen_data",
    ) -> None:
        if count < 2:
            raise ConfigError(f"count is at least 2, got {count!r}")
        if not (math.isfinite(generate_s) and generate_s > 0):
            raise ConfigError(f"generate_s is positive, got {generate_s!r}")
        self.name = name
        self.kind: Kind = "formal"
        self.entry_point = entry_point
        self.count = count
        self.compare: Comparison = compare
        self.tolerance = tolerance
        self.generate_s = generate_s
        self._secret = secret or secrets.token_hex(16)
        self._tests = Tests(source=source, cpu_s=cpu_s, sandbox=sandbox, name=name)
        self._make = _Maker(generate, reference, entry_point is not None, count)

    async def judge(self, context: JudgeContext) -> Verdict:
        """All cases right, or not.

        Raises:
            TaskError: generator or reference failed, or a constant would pass.
            VerifierError: the clean room could not be used.
        """
        began = time.monotonic()
        task = context.task
        seed = derive_seed(self._secret, task.id, *context.trajectory.key)
        cases = await self._cases(context, seed)
        answer: dict[str, Json] = {"cases": cases, "compare": self.compare}
        if self.entry_point is not None:
            answer["entry_point"] = self.entry_point
        if self.tolerance is not None:
            answer["tolerance"] = self.tolerance.model_dump()
        made = task.model_copy(update={"answer": answer})
        verdict = await self._tests.judge(replace(context, task=made))
        return verdict.signed(self.name, self.kind, time.monotonic() - began)

    async def _cases(self, context: JudgeContext, seed: int) -> list[dict[str, Json]]:
        left = max(context.deadline - time.monotonic(), 0.001)
        try:
            cases: list[dict[str, Json]] = await context.workers.run(
                self._make, seed, cpu_s=self.generate_s, wall_s=left
            )
        except BudgetExceeded as error:
            raise TaskError(f"{self.name}: making the cases took too long: {error}") from error
        except WorkerError as error:
            raise VerifierError(f"{self.name}: {error}") from error
        except Exception as error:
            raise TaskError(
                f"{self.name}: generator or reference failed on seed {seed}: "
                f"{type(error).__name__}: {error}"
            ) from error
        key = "expected" if self.entry_point is not None else "stdout"
        if all(case[key] == cases[0][key] for case in cases):
            raise TaskError(
                f"{self.name}: the reference gives the same for all {len(cases)} inputs of seed "
                f"{seed}, and so does a constant; make the inputs differ more"
            )
        return cases


class _Maker:
    """Makes the cases of a seed; runs in a worker."""

    def __init__(
        self,
        generate: Callable[[random.Random], Any],
        reference: Callable[..., Any],
        function: bool,
        count: int,
    ) -> None:
        self.generate, self.reference = generate, reference
        self.function, self.count = function, count

    def __call__(self, seed: int) -> list[dict[str, Json]]:
        draw = random.Random(seed)
        cases: list[dict[str, Json]] = []
        for _ in range(self.count):
            given = self.generate(draw)
            if self.function:
                expected = self.reference(*deepcopy(given))
                cases.append({"input": list(given), "expected": expected})
            else:
                cases.append({"stdin": given, "stdout": self.reference(given)})
        return cases
