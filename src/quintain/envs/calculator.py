"""The multi-turn tool task: call a calculator that runs in the sandbox, then say what it found.

The calculator does one operation a call. In `environment` a question needs one call, in `hard` the
second of two calls needs the first one's result::

    user       What is 340 times 25?
    assistant  <calc>340*25</calc>
    tool       result: 8500
    assistant  The answer is 8500

Two examples like this one stand before the question, because a small model never calls a tool
without. (How a call is written is the policy's matter: a served model sees its own tool syntax.)

The verdict wants three things: an accepted call, the right value among the calculator's results,
and a last message that states that value and nothing else as the answer. Saying the number without
the tool earns nothing, and so does using the tool and guessing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from quintain.envs.environment import Environment, Script
from quintain.envs.tasks import Generated
from quintain.envs.tools import FunctionTool, ToolError
from quintain.errors import ConfigError, SandboxError
from quintain.messages import (
    Message,
    Sampling,
    TextPart,
    ToolCall,
    ToolResult,
    assistant,
    tool_results,
    user,
)
from quintain.protocols import JudgeContext, Sandbox
from quintain.record import derive_seed
from quintain.task import Limits, SandboxSpec, Split, Task
from quintain.trajectory import Trajectory
from quintain.verdict import Check, Kind, Verdict

WORDS = {"+": "plus", "-": "minus", "*": "times"}
_ANSWER = re.compile(r"answer is:?[ \t]*\$?(-?[0-9][0-9,]*)(?![0-9]*\.?[0-9])", re.IGNORECASE)

PROGRAM = """\
import sys
text = sys.stdin.read().replace(" ", "")
place = next((i for i in range(1, len(text)) if text[i] in "+-*/"), 0)
try:
    left, right = int(text[:place]), int(text[place + 1:])
    sign = text[place]
    if sign == "/":
        print(left // right if left % right == 0 else left / right)
    else:
        print(left + right if sign == "+" else left - right if sign == "-" else left * right)
except ZeroDivisionError:
    sys.exit("division by zero")
except (ValueError, OverflowError):
    sys.exit("expected one operation on two whole numbers, such as 12+7")
"""
"""What the calculator is, inside the sandbox; it parses and never evaluates."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question: what is asked, which calls answer it, what each of them gives."""

    text: str
    expressions: tuple[str, ...]
    values: tuple[int, ...]

    @property
    def value(self) -> int:
        """The answer."""
        return self.values[-1]

    def calls(self, name: str = "call") -> list[Message]:
        """The calls, numbered where there are several; their ids begin with `name`.

        The numbers tell a small model that after the first result comes another call.
        """
        steps = len(self.expressions)
        return [
            _call(f"{name}_{n}", expression, f"Step {n + 1}: " if steps > 1 else "")
            for n, expression in enumerate(self.expressions)
        ]

    def script(self) -> tuple[Message, ...]:
        """What a policy says that solves it: the calls, then the answer."""
        return (*self.calls(), _says(self.value))

    def conversation(self, name: str = "call") -> list[Message]:
        """Question, calls (their ids begin with `name`), results and answer."""
        out = [user(self.text)]
        for call, value in zip(self.calls(name), self.values, strict=True):
            out += [call, _result(call.tool_calls[0].id, value)]
        return [*out, _says(self.value)]


def _call(call_id: str, expression: str, before: str = "") -> Message:
    call = ToolCall(id=call_id, name="calc", arguments={"expression": expression})
    return assistant(before, call)


def _result(call_id: str, value: int) -> Message:
    content = (TextPart(text=str(value)),)
    return tool_results(ToolResult(call_id=call_id, name="calc", content=content))


def _says(value: int) -> Message:
    return assistant(f"The answer is {value}")


def one_step(left: int, sign: str, right: int) -> Question:
    """`What is 340 times 25?`."""
    return Question(
        f"What is {left} {WORDS[sign]} {right}?",
        (f"{left}{sign}{right}",),
        (_compute(left, sign, right),),
    )


def two_steps(left: int, sign: str, right: int, then: str, last: int) -> Question:
    """`What is 12 plus 47, then times 25?`; the second call needs the first one's result."""
    middle = _compute(left, sign, right)
    return Question(
        f"What is {left} {WORDS[sign]} {right}, then {WORDS[then]} {last}?",
        (f"{left}{sign}{right}", f"{middle}{then}{last}"),
        (middle, _compute(middle, then, last)),
    )


def _compute(left: int, sign: str, right: int) -> int:
    return left + right if sign == "+" else left - right if sign == "-" else left * right


async def _calc(expression: str, sandbox: Sandbox) -> str:  # noqa: D417
    """Does one arithmetic operation on two whole numbers, such as 12+7, and returns the result.

    Args:
        expression: the operation.
    """
    # Without site and user folders Python starts in half the time.
    run = await sandbox.exec(["python3", "-I", "-S", "-c", PROGRAM], stdin=expression)
    if run.killed:
        # No expression can do this: it is the host that is slow or full.
        raise SandboxError(f"the calculator was killed: {run.killed} limit")
    if not run.ok:
        raise ToolError(run.error_text.strip() or f"the calculator ended with {run.exit_code}")
    return run.text.strip()


CALC = FunctionTool(_calc, name="calc")
"""The calculator."""


class UsedAndAnswered:
    """Passes who called the calculator, got the right value from it, and answered with it."""

    name = "calculator"
    kind: Kind = "formal"

    async def judge(self, context: JudgeContext) -> Verdict:
        """The verdict; every check must hold."""
        expected = str(context.task.answer["value"])
        results = accepted_results(context.trajectory)
        said = final_answer(context.trajectory)
        checks = (
            Check(
                name="called",
                passed=bool(results),
                detail=f"{len(results)} accepted calls of the calculator",
            ),
            Check(
                name="computed",
                passed=expected in results,
                detail=f"results: {', '.join(results[:8]) or 'none'}; expected {expected}",
            ),
            Check(
                name="answered",
                passed=said == expected,
                detail=f"answered {said or 'nothing'}, expected {expected}",
            ),
        )
        missing = [check.name for check in checks if not check.passed]
        return Verdict.of(
            not missing,
            f"not {missing[0]}" if missing else "called, computed and answered",
            checks=checks,
            metrics={"calls": float(len(results))},
        ).model_copy(update={"verifier": self.name})


def accepted_results(trajectory: Trajectory) -> list[str]:
    """What the calculator answered to the calls that it accepted, in order."""
    return [
        result.text
        for step in trajectory.steps
        for message in step.observation.messages
        for result in message.tool_results
        if result.name == "calc" and not result.is_error
    ]


def final_answer(trajectory: Trajectory) -> str:
    """The number that the last message gives as the answer; empty: none, or more than one."""
    if not trajectory.steps or trajectory.steps[-1].action.message.tool_calls:
        return ""
    found = _ANSWER.findall(trajectory.text)
    return found[0].replace(",", "") if len(found) == 1 else ""


# --- the two tiers ------------------------------------------------------------------------------


def _draw_one(rng: random.Random, smallest: int, largest: int) -> Question:
    sign = rng.choice("+-*")
    return one_step(rng.randint(smallest, largest), sign, rng.randint(smallest, largest))


def _draw_two(rng: random.Random, smallest: int, largest: int) -> Question:
    return two_steps(
        rng.randint(smallest, largest),
        rng.choice("+-*"),
        rng.randint(smallest, largest),
        rng.choice("+-*"),
        rng.randint(smallest, largest),
    )


EXAMPLES_ONE = (one_step(12, "+", 7), one_step(340, "*", 25))
EXAMPLES_TWO = (
    two_steps(12, "+", 47, "*", 25),
    two_steps(34, "*", 25, "-", 61),
    two_steps(58, "-", 83, "+", 46),
)


def environment(
    seed: int = 0,
    eval: int = 200,
    heldout: int = 200,
    shots: int = 2,
    smallest: int = 10,
    largest: int = 999,
) -> Environment:
    """One operation, one call.

    Args:
        seed: of the tasks.
        eval: tasks in the eval split.
        heldout: tasks in the held-out split.
        shots: worked examples before the question, at most 2.
        smallest: of the operands.
        largest: of the operands.
    """
    return _tier(
        "calculator", _draw_one, EXAMPLES_ONE, seed, eval, heldout, shots, smallest, largest
    )


def hard(
    seed: int = 0,
    eval: int = 200,
    heldout: int = 200,
    shots: int = 3,
    smallest: int = 10,
    largest: int = 99,
) -> Environment:
    """Two operations, two calls, the second on the first one's result; see `environment`.

    Up to three examples are shown; the numbers are smaller, because a small model already slips
    when it copies them.
    """
    return _tier(
        "calculator-hard", _draw_two, EXAMPLES_TWO, seed, eval, heldout, shots, smallest, largest
    )


def _tier(
    name: str,
    draw: Callable[[random.Random, int, int], Question],
    examples: Sequence[Question],
    seed: int,
    eval: int,
    heldout: int,
    shots: int,
    smallest: int,
    largest: int,
) -> Environment:
    if not 0 <= shots <= len(examples):
        raise ConfigError(f"shots is 0 to {len(examples)} for {name}, got {shots}")
    if smallest > largest:
        raise ConfigError(f"smallest is at most largest, got {smallest} and {largest}")
    shown = [
        message
        for n, example in enumerate(examples[:shots])
        for message in example.conversation(f"example_{n}")
    ]

    known = [_without_order(example.expressions) for example in examples]

    def make(rng: random.Random, number: int) -> dict[str, Any]:
        content = known[0]
        while content in known:
            question = draw(rng, smallest, largest)
            content = _without_order(question.expressions)
        return {
            "prompt": (*shown, user(question.text)),
            "answer": {"value": question.value, "expressions": list(question.expressions)},
            "content": content,
            "source": "generated",
        }

    tasks = Generated(make, name=name, seed=seed, eval=eval, heldout=heldout)

    def demonstrations(n: int, seed: int = 0) -> list[list[Message]]:
        start = derive_seed(seed, "demonstrations")
        found = Generated(make, name=name, seed=start, train=n).split(Split.TRAIN)
        return [[*shown, *_question(task).conversation()] for task in found]

    return Environment(
        tasks=tasks,
        verifier=UsedAndAnswered(),
        name=name,
        tools=[CALC],
        sandbox=SandboxSpec(memory_mb=128, disk_mb=16, max_pids=16),
        limits=Limits(max_steps=len(examples[0].expressions) + 2, max_malformed=2, wall_s=600),
        sampling=Sampling(max_tokens=28),
        oracle=_oracle,
        fakes=_fakes,
        demonstrations=demonstrations,
    )


def _without_order(expressions: Sequence[str]) -> list[str]:
    """Equal for questions that differ in the order of a sum's or a product's operands."""
    first, *rest = expressions
    for sign in "+*":
        left, found, right = first.partition(sign)
        if found:
            first = sign.join(sorted((left, right)))
    return [first, *rest]


def _question(task: Task) -> Question:
    expressions = tuple(task.answer["expressions"])
    values = tuple(_compute(*_split(expression)) for expression in expressions)
    return Question(task.prompt[-1].text, expressions, values)


def _split(expression: str) -> tuple[int, str, int]:
    place = next(i for i in range(1, len(expression)) if expression[i] in WORDS)
    return int(expression[:place]), expression[place], int(expression[place + 1 :])


def _oracle(task: Task) -> Script:
    return _question(task).script()


def _fakes(task: Task) -> Sequence[Script]:
    value = task.answer["value"]
    *calls, answer = _oracle(task)
    return (
        (answer,),
        (_call("call_0", str(value)), answer),
        (_call("call_0", "1+1"), answer),
        (*calls, _says(value + 1)),
        (*calls, assistant(f"The answer is {value} or the answer is {value + 1}")),
        (assistant(f"<calc>1+1</calc> result: {value} The answer is {value}"),),
    )
