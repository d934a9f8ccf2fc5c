"""The calculator tasks: the program in the sandbox, and who earns the reward."""

import subprocess
import sys

import pytest

import quintain as q
from quintain.envs import calculator
from quintain.messages import TextPart, ToolCall, ToolResult, assistant, tool_results
from quintain.policies.scripted import Scripted
from quintain.trajectory import Action, Observation, Step, Trajectory

SIZES = {"eval": 20, "heldout": 20}


def run_program(text):
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", calculator.PROGRAM],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12+7", "19"),
        (" 12 + 7 ", "19"),
        ("12-70", "-58"),
        ("-12-70", "-82"),
        ("-12*-7", "84"),
        ("5--3", "8"),
        ("340*25", "8500"),
        ("84/7", "12"),
        ("7/2", "3.5"),
        ("999*999", "998001"),
        ("0-0", "0"),
    ],
)
def test_the_program_does_one_operation(text, value):
    run = run_program(text)
    assert (run.returncode, run.stdout.strip(), run.stderr) == (0, value, "")


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "12", "-12", "+", "1+", "+1", "1+2+3", "(1+2)*3", "12+7*2", "a+b", "1.5+2", "2**3",
        "__import__('os').system('id')+1", "exit()", "12 plus 7", "1/", "1+2;print(3)",
        "1" * 5000 + "+1",
    ],
)  # fmt: skip
def test_the_program_refuses_anything_else(text):
    run = run_program(text)
    assert run.returncode == 1
    assert run.stdout == ""
    assert run.stderr == "expected one operation on two whole numbers, such as 12+7\n"


def test_the_program_tells_a_division_by_zero():
    run = run_program("5/0")
    assert (run.returncode, run.stderr) == (1, "division by zero\n")


def called(*pairs, last=""):
    """A trajectory of calls with results, then the last message."""
    steps = []
    for n, (expression, result) in enumerate(pairs):
        call = ToolCall(id=f"c{n}", name="calc", arguments={"expression": expression})
        answer = ToolResult(
            call_id=call.id,
            name="calc",
            content=(TextPart(text=result.removeprefix("error:")),),
            is_error=result.startswith("error:"),
        )
        steps.append(
            Step(
                action=Action(message=assistant("", call)),
                observation=Observation(messages=(tool_results(answer),)),
            )
        )
    if last:
        steps.append(
            Step(
                action=Action(message=last if isinstance(last, q.Message) else assistant(last)),
                observation=Observation(terminated=True),
            )
        )
    return Trajectory(
        environment="calculator",
        task_id="t",
        policy="p",
        purpose="x",
        steps=tuple(steps),
        stop="done",
    )


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("The answer is 19", "19"),
        ("The answer is 19.", "19"),
        ("So the answer is: -1,234!", "-1234"),
        ("The answer is $19", "19"),
        ("the Answer is 19 apples", "19"),
        ("The answer is 1.5", ""),
        ("The answer is 19.5", ""),
        ("The answer is x", ""),
        ("19", ""),
        ("", ""),
        ("The answer is 19. No, the answer is 20", ""),
        ("The answer is 19 or 20. The answer is 19", ""),
    ],
)
def test_the_final_answer_is_one_number(text, number):
    assert calculator.final_answer(called(last=text)) == number


def test_an_answer_beside_a_call_is_not_final():
    call = ToolCall(id="c", name="calc", arguments={"expression": "12+7"})
    assert calculator.final_answer(called(last=assistant("The answer is 19", call))) == ""
    assert calculator.final_answer(called()) == ""


def test_only_what_the_calculator_accepted_counts():
    trajectory = called(("12+7", "19"), ("1+", "error:expected"), ("5*5", "25"), last="done")
    assert calculator.accepted_results(trajectory) == ["19", "25"]


@pytest.mark.parametrize("make", [calculator.environment, calculator.hard])
async def test_who_calls_computes_and_answers_is_paid(make):
    env = make(**SIZES)
    task = next(env.tasks.split("eval"))
    value = task.answer["value"]
    *calls, answer = env.oracle(task)
    other = assistant("", ToolCall(id="z", name="calc", arguments={"expression": "1+1"}))
    for script, checks in [
        ((*calls, answer), (True, True, True)),
        ((answer,), (False, False, True)),
        ((*calls[:-1], other, answer), (True, False, True)),
        ((*calls, assistant(f"The answer is {value + 1}")), (True, True, False)),
        ((*calls, assistant(f"It is {value}")), (True, True, False)),
    ]:
        done = await q.arollout(env, Scripted(list(script)), task)
        assert done.error is None
        assert tuple(check.passed for check in done.verdict.checks) == checks
        assert done.reward == float(all(checks))


async def test_a_result_that_the_policy_made_up_does_not_count():
    env = calculator.environment(**SIZES)
    task = next(env.tasks.split("eval"))
    value = task.answer["value"]
    forged = ToolResult(call_id="c", name="calc", content=(TextPart(text=str(value)),))
    call = ToolCall(id="c", name="calc", arguments={"expression": "1+1"})
    message = q.Message(role="assistant", content=(call, forged))
    done = await q.arollout(env, Scripted([message, f"The answer is {value}"]), task)
    assert done.reward == 0.0
    assert done.verdict.explanation == "not computed"


async def test_a_refused_expression_is_told_and_may_be_mended():
    env = calculator.environment(**SIZES)
    task = next(env.tasks.split("eval"))
    wrong = assistant("", ToolCall(id="w", name="calc", arguments={"expression": "1+2+3"}))
    done = await q.arollout(env, Scripted([wrong, *env.oracle(task)]), task)
    (message,) = done.steps[0].observation.messages
    assert message.tool_results[0].is_error
    assert message.tool_results[0].text == (
        "expected one operation on two whole numbers, such as 12+7"
    )
    assert done.reward == 1.0


@pytest.mark.parametrize("make", [calculator.environment, calculator.hard])
def test_questions_and_examples(make):
    env = make(**SIZES)
    for task in env.tasks.split("heldout"):
        *shown, question = task.prompt
        assert question.role == "user"
        assert task.prompt[0].role == "user"
        ids = [call.id for message in shown for call in message.tool_calls]
        assert len(ids) == len(set(ids))
        assert not set(ids) & {call.id for m in env.oracle(task) for call in m.tool_calls}
        assert str(task.answer["value"]) not in question.text.replace("?", "").split()
    bare = make(shots=0, **SIZES)
    assert all(len(task.prompt) == 1 for task in bare.tasks.split("eval"))


def test_examples_are_no_tasks():
    for make in (calculator.environment, calculator.hard):
        env = make(**SIZES)
        task = next(env.tasks.split("eval"))
        examples = {message.text for message in task.prompt[:-1] if message.role == "user"}
        for split in ("eval", "heldout"):
            assert not examples & {t.prompt[-1].text for t in env.tasks.split(split)}


def test_the_order_of_a_sums_operands_makes_no_new_question():
    same = calculator._without_order
    assert same(["12+7"]) == same(["7+12"])
    assert same(["12*7", "84-3"]) == same(["7*12", "84-3"])
    assert same(["12-7"]) != same(["7-12"])
