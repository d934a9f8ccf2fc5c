"""The programming tasks: the hidden cases tell right from nearly right."""

import ast
import random

import pytest

from quintain.envs import python
from quintain.envs.python_problems import TEMPLATES, cases_of, draw_problem

OTHER = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.FloorDiv: ast.Mult,
}  # fmt: skip


class Slip(ast.NodeTransformer):
    """Makes one slip: the n-th number is off by one, text too short, or operator another."""

    def __init__(self, place):
        self.place = place
        self.seen = 0

    def _is_it(self):
        self.seen += 1
        return self.seen - 1 == self.place

    def visit_Constant(self, node):
        if type(node.value) is int and self._is_it():
            return ast.copy_location(ast.Constant(node.value + 1), node)
        if type(node.value) is str and node.value and self._is_it():
            return ast.copy_location(ast.Constant(node.value[:-1]), node)
        return node

    def visit_Compare(self, node):
        self.generic_visit(node)
        for index, operator in enumerate(node.ops):
            if type(operator) in OTHER and self._is_it():
                node.ops[index] = OTHER[type(operator)]()
        return node

    def visit_BinOp(self, node):
        self.generic_visit(node)
        if type(node.op) in OTHER and self._is_it():
            node.op = OTHER[type(node.op)]()
        return node


def slips(source):
    place = 0
    while True:
        slip = Slip(place)
        tree = ast.fix_missing_locations(slip.visit(ast.parse(source)))
        if slip.seen <= place:
            return
        place += 1
        yield ast.unparse(tree)


def passes(source, name, cases):
    scope = {}
    try:
        exec(compile(source, "slip", "exec"), scope)
        return all(scope[name](*arguments) == expected for arguments, expected in cases)
    except Exception:
        return False


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.__name__)
def test_the_cases_catch_slips(template):
    caught = wrong = 0
    for seed in range(12):
        problem = template(random.Random(seed))
        cases = cases_of(problem, random.Random(seed), 12)
        assert passes(problem.source, problem.name, cases)
        many = cases_of(problem, random.Random(-seed), 400)
        for slip in slips(problem.source):
            # A slip that 400 inputs do not show changes nothing, like `x > 3` for `x > 2` of evens.
            if not passes(slip, problem.name, [*cases, *many]):
                wrong += 1
                caught += not passes(slip, problem.name, cases)
    assert wrong >= 24
    assert caught / wrong > 0.95, f"{caught} of {wrong} slips caught"


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.__name__)
def test_one_template_is_many_problems(template):
    assert len({template(random.Random(seed)).does for seed in range(300)}) >= 30
    assert template(random.Random(4)).source == template(random.Random(4)).source


def test_cases_are_different_and_say_different_things():
    for seed in range(150):
        problem = draw_problem(random.Random(seed))
        cases = cases_of(problem, random.Random(seed), 12)
        assert len(cases) >= 12
        assert len({repr(arguments) for arguments, _ in cases}) == len(cases)
        assert len({repr(expected) for _, expected in cases}) >= 2, problem.does


def test_the_reference_leaves_its_arguments_alone():
    for seed in range(100):
        problem = draw_problem(random.Random(seed))
        arguments = problem.draw(random.Random(seed))
        before = repr(arguments)
        problem.reference()(*arguments)
        assert repr(arguments) == before, problem.name


def test_a_prompt_shows_a_true_example_that_is_no_hidden_case():
    env = python.environment(eval=20, heldout=20)
    for task in env.tasks.split("eval"):
        text = task.prompt[0].text
        name = task.answer["entry_point"]
        (line,) = [line for line in text.split("\n") if line.startswith("Example: ")]
        call, _, value = line.removeprefix("Example: ").partition(" == ")
        (script,) = env.oracle(task)
        scope = {}
        exec(script.text.removeprefix("```python\n").removesuffix("```"), scope)
        assert eval(call, scope) == ast.literal_eval(value)
        assert len(task.answer["cases"]) == 12
        shown = ast.literal_eval(f"[{call.removeprefix(name)[1:-1]}]")
        assert shown not in [case["input"] for case in task.answer["cases"]]
        assert f"`{name}(" in text


def test_the_solution_is_nowhere_in_the_task():
    env = python.environment(eval=20, heldout=20)
    for task in env.tasks.split("heldout"):
        (script,) = env.oracle(task)
        body = script.text.split("\n", 2)[2].removesuffix("```").strip()
        assert body not in task.model_dump_json()
        assert not task.hidden_files
