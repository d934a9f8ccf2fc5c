"""Parametrised programming problems: a statement, a reference solution, inputs with edge cases.

Each template draws its parameters from a random generator, so that one template is hundreds of
different problems. Expected values are never written down: the reference computes them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quintain.record import Json

Arguments = list[Json]


@dataclass(frozen=True, slots=True)
class Problem:
    """One function to be written."""

    name: str
    parameters: str
    """As in the function's head: `numbers, limit`."""
    does: str
    """What it returns, after "that "."""
    body: str
    """The reference's statements, unindented."""
    draw: Callable[[random.Random], Arguments]
    """Random arguments."""
    edges: tuple[Arguments, ...]
    """Arguments that a careless solution gets wrong."""

    @property
    def source(self) -> str:
        """The reference solution."""
        lines = "\n".join(f"    {line}" for line in self.body.strip("\n").split("\n"))
        return f"def {self.name}({self.parameters}):\n{lines}\n"

    def reference(self) -> Callable[..., Json]:
        """The reference solution, compiled."""
        scope: dict[str, Any] = {}
        exec(compile(self.source, f"<{self.name}>", "exec"), scope)
        function: Callable[..., Json] = scope[self.name]
        return function


Template = Callable[[random.Random], Problem]


def _numbers(rng: random.Random, low: int = -40, high: int = 60, longest: int = 12) -> list[int]:
    return [rng.randint(low, high) for _ in range(rng.randint(3, longest))]


def _word(rng: random.Random, shortest: int = 1, longest: int = 8) -> str:
    return "".join(rng.choice("abcdeinorstuv") for _ in range(rng.randint(shortest, longest)))


def _sentence(rng: random.Random) -> str:
    return " ".join(
        rng.choice((str.lower, str.title, str.upper))(_word(rng)) for _ in range(rng.randint(2, 8))
    )


def _ordinal(k: int) -> str:
    return f"{k}{ {2: 'nd', 3: 'rd'}.get(k, 'th') }"


def count_divisible(rng: random.Random) -> Problem:
    """How many numbers are divisible by k and greater than m."""
    k, m = rng.randint(2, 12), rng.randint(-30, 30)
    return Problem(
        "count_divisible",
        "numbers",
        f"returns how many of the integers in the list `numbers` are divisible by {k} and "
        f"greater than {m}",
        f"return sum(1 for x in numbers if x % {k} == 0 and x > {m})",
        lambda r: [[r.choice((x, x * k)) for x in _numbers(r)]],
        ([[]], [[0]], [[m]], [[m - m % k, m - m % k + k, m - m % k + k]], [[-k, 0, k, 40 * k]]),
    )


def clamped_sum(rng: random.Random) -> Problem:
    """The sum of numbers forced into a range."""
    low = rng.randint(-20, 10)
    high = low + rng.randint(3, 30)
    return Problem(
        "clamped_sum",
        "numbers",
        f"returns the sum of the integers in the list `numbers` after each one below {low} is "
        f"replaced by {low} and each one above {high} is replaced by {high}",
        f"return sum(min(max(x, {low}), {high}) for x in numbers)",
        lambda r: [_numbers(r)],
        ([[]], [[low - 1, low, high, high + 1]], [[low - 100]], [[high + 100] * 3]),
    )


def scaled(rng: random.Random) -> Problem:
    """Each number but some, times a plus b."""
    a, b = rng.choice([-3, -2, 2, 3, 4, 5, 7]), rng.randint(-9, 9)
    which, test = rng.choice(
        [
            ("even", "x % 2 == 0"),
            ("odd", "x % 2 == 1"),
            ("negative", "x < 0"),
            ("positive", "x > 0"),
        ]
    )
    return Problem(
        "scaled",
        "numbers",
        f"returns the list of {a} * x + {b} for every x in the list of integers `numbers`, in "
        f"order, leaving out every x that is {which}",
        f"return [{a} * x + {b} for x in numbers if not ({test})]",
        lambda r: [_numbers(r)],
        ([[]], [[0]], [[-1, 1, -2, 2]], [[-3, -3, 4, 4]]),
    )


def kth_largest(rng: random.Random) -> Problem:
    """The k-th largest of the different numbers."""
    k, default = rng.randint(2, 6), rng.randint(-99, 99)
    return Problem(
        "kth_largest",
        "numbers",
        f"returns the {_ordinal(k)} largest of the different integers in the list `numbers` "
        f"(equal ones count once), or {default} when there are fewer than {k} different ones",
        f"""
values = sorted(set(numbers), reverse=True)
return values[{k - 1}] if len(values) >= {k} else {default}
""",
        lambda r: [_numbers(r, -9, 15)],
        ([[]], [[5] * 9], [list(range(k))], [list(range(k - 1))], [[7, 7, *range(k)]]),
    )


def mask_letters(rng: random.Random) -> Problem:
    """Some letters replaced, whatever their case."""
    letters = "".join(sorted(rng.sample("abcdeinorstuv", rng.randint(2, 4))))
    mark = rng.choice("*#_-.+")
    return Problem(
        "mask_letters",
        "text",
        f"returns the string `text` with every one of the letters {', '.join(letters)} "
        f"(lower-case or upper-case) replaced by {mark!r}",
        f"return ''.join({mark!r} if c.lower() in {letters!r} else c for c in text)",
        lambda r: [_sentence(r)],
        ([""], [letters.upper()], ["xyz 123"], [mark * 2 + letters[0]]),
    )


def long_words(rng: random.Random) -> Problem:
    """The words of some length, changed and joined."""
    n = rng.randint(1, 5)
    change, code = rng.choice(
        [
            ("in upper case", "w.upper()"),
            ("in lower case", "w.lower()"),
            ("written backwards", "w[::-1]"),
            ("without their first letter", "w[1:]"),
        ]
    )
    mark = rng.choice("-+/|,")
    return Problem(
        "long_words",
        "text",
        f"returns the words of the string `text` (separated by spaces) that have more than {n} "
        f"characters, in order, {change}, joined by {mark!r}",
        f"return {mark!r}.join({code} for w in text.split() if len(w) > {n})",
        lambda r: [_sentence(r)],
        ([""], ["   "], ["a" * n], [f"  {'Ab' * n}   {'c' * (n + 1)} "], ["b" * n + "Z z"]),
    )


def shifted(rng: random.Random) -> Problem:
    """A Caesar cipher."""
    k = rng.choice([*range(-12, 0), *range(1, 13)])
    where, test = rng.choice(
        [("lower-case letter", "islower"), ("upper-case letter", "isupper"), ("letter", "isalpha")]
    )
    return Problem(
        "shifted",
        "text",
        f"returns the string `text` with every {where} from a to z moved {abs(k)} places "
        f"{'forward' if k > 0 else 'back'} in the alphabet, around its end, keeping its case; "
        "everything else stays",
        f"""
out = ""
for c in text:
    if c.isascii() and c.{test}():
        first = ord("a") if c.islower() else ord("A")
        c = chr((ord(c) - first + {k}) % 26 + first)
    out += c
return out
""",
        lambda r: [_sentence(r)],
        ([""], ["azAZ"], ["1 + 1 = 2"], ["xyzXYZabcABC"]),
    )


def digit_sum(rng: random.Random) -> Problem:
    """The digits of a number in some base."""
    base, factor = rng.randint(2, 16), rng.randint(1, 9)
    return Problem(
        "digit_sum",
        "n",
        f"returns {factor} times the sum of the digits of the integer `n` written in base "
        f"{base}; the sign of a negative number is ignored",
        f"""
n, total = abs(n), 0
while n:
    n, digit = divmod(n, {base})
    total += digit
return {factor} * total
""",
        lambda r: [r.randint(-5000, 20000)],
        ([0], [base], [-base], [base - 1], [base**6 - 1]),
    )


def rotated(rng: random.Random) -> Problem:
    """A list turned, and every n-th element of it."""
    k, step = rng.randint(1, 9), rng.randint(1, 4)
    side = rng.choice(["left", "right"])
    sign = "" if side == "left" else "-"
    take = "it" if step == 1 else f"every element of it whose index is a multiple of {step}"
    return Problem(
        "rotated",
        "items",
        f"rotates the list `items` by {k} places to the {side} and returns {take}",
        f"""
if not items:
    return []
k = {sign}{k} % len(items)
return (items[k:] + items[:k])[::{step}]
""",
        lambda r: [_numbers(r, 0, 99)],
        ([[]], [[1]], [[1, 2]], [list(range(k))], [list(range(k + 1))]),
    )


def chunked(rng: random.Random) -> Problem:
    """A list in pieces, the last one filled up."""
    n, pad = rng.randint(2, 6), rng.randint(-9, 9)
    return Problem(
        "chunked",
        "items",
        f"splits the list `items` into lists of {n} elements and returns the list of them, the "
        f"last one filled up with {pad} to {n} elements",
        f"""
out = [items[i : i + {n}] for i in range(0, len(items), {n})]
if out:
    out[-1] = out[-1] + [{pad}] * ({n} - len(out[-1]))
return out
""",
        lambda r: [_numbers(r, 0, 99)],
        ([[]], [[1]], [list(range(n))], [list(range(n + 1))], [[pad] * (2 * n - 1)]),
    )


def longest_run(rng: random.Random) -> Problem:
    """The longest run that satisfies something."""
    m = rng.randint(-9, 20)
    kind, test = rng.choice(
        [
            (f"greater than {m}", f"x > {m}"),
            (f"less than {m}", f"x < {m}"),
            (f"different from {m}", f"x != {m}"),
        ]
    )
    score, code = rng.choice([("length", "1"), ("sum", "x")])
    return Problem(
        "longest_run",
        "numbers",
        f"looks at the runs of neighbouring integers in the list `numbers` that are all {kind} "
        f"and returns the {score} of the longest run (the first one of several that are equally "
        "long), or 0 when there is none",
        f"""
best = (0, 0)
length = score = 0
for x in numbers:
    if {test}:
        length, score = length + 1, score + {code}
        if length > best[0]:
            best = (length, score)
    else:
        length = score = 0
return best[1]
""",
        lambda r: [[r.choice((x, m, x + m)) for x in _numbers(r, -12, 25)]],
        (
            [[]],
            [[m]],
            [[m + 1, m - 1, m, m + 2, m + 3]],
            [[m + 1, m + 5, m, m + 9, m + 2, m, m + 7]],
            [[m - 1, m - 5, m, m - 9, m - 2, m, m - 7]],
        ),
    )


def fizz(rng: random.Random) -> Problem:
    """The children's game."""
    a, b = rng.sample(range(2, 8), 2)
    first, second = rng.sample(["ping", "pong", "zip", "zap", "tick", "tock"], 2)
    return Problem(
        "fizz",
        "n",
        f"returns a list with one string for each integer from 1 to `n`: {first!r} for multiples "
        f"of {a}, {second!r} for multiples of {b}, {first + second!r} for multiples of both, and "
        "the number itself as a string for the others",
        f"""
out = []
for i in range(1, n + 1):
    word = ({first!r} if i % {a} == 0 else "") + ({second!r} if i % {b} == 0 else "")
    out.append(word or str(i))
return out
""",
        lambda r: [r.randint(2, 40)],
        ([0], [1], [a], [a * b], [a * b + 1]),
    )


def capped_sums(rng: random.Random) -> Problem:
    """Running sums that start again."""
    cap, restart = rng.randint(15, 60), rng.randint(0, 9)
    return Problem(
        "capped_sums",
        "numbers",
        "returns the list of the running sums of the integers in the list `numbers`; whenever "
        f"the sum becomes greater than {cap} it is set to {restart} before it is written down",
        f"""
out, total = [], 0
for x in numbers:
    total += x
    if total > {cap}:
        total = {restart}
    out.append(total)
return out
""",
        lambda r: [_numbers(r, -10, 30)],
        ([[]], [[cap]], [[cap + 1]], [[cap, 1, cap - restart, 1]], [[-5, cap + 5, 1]]),
    )


def best_window(rng: random.Random) -> Problem:
    """The best window of k neighbours."""
    k, default = rng.randint(2, 5), rng.randint(-50, 50)
    which, code = rng.choice([("largest", "max"), ("smallest", "min")])
    return Problem(
        "best_window",
        "numbers",
        f"returns the {which} sum of {k} neighbouring integers in the list `numbers`, or "
        f"{default} when it has fewer than {k}",
        f"""
if len(numbers) < {k}:
    return {default}
return {code}(sum(numbers[i : i + {k}]) for i in range(len(numbers) - {k} + 1))
""",
        lambda r: [_numbers(r)],
        ([[]], [[1] * (k - 1)], [[-3] * k], [[-9, *[-1] * k, -9]], [[5] * (k + 1)]),
    )


def iterated(rng: random.Random) -> Problem:
    """A rule applied again and again."""
    times, a, b = rng.randint(2, 9), rng.choice([3, 5]), rng.randint(1, 9)
    return Problem(
        "iterated",
        "n",
        f"applies a rule {times} times to the integer `n` and returns the result; the rule: an "
        f"even number is halved, an odd number x becomes {a} * x + {b}",
        f"""
for _ in range({times}):
    n = n // 2 if n % 2 == 0 else {a} * n + {b}
return n
""",
        lambda r: [r.randint(-50, 400)],
        ([0], [1], [2**times], [-1], [-(2**times)]),
    )


def merged(rng: random.Random) -> Problem:
    """Intervals joined over small gaps."""
    gap = rng.randint(0, 9)
    longest = rng.randint(2, 20)
    return Problem(
        "merged",
        "intervals",
        "gets a list of intervals [start, end] of integers in any order, leaves out those longer "
        f"than {longest} (end - start), joins any two of the others where the second starts at "
        f"most {gap} after the first one's end, again and again, and returns the joined "
        "intervals sorted by their start",
        f"""
out = []
for start, end in sorted(pair for pair in intervals if pair[1] - pair[0] <= {longest}):
    if out and start <= out[-1][1] + {gap}:
        out[-1][1] = max(out[-1][1], end)
    else:
        out.append([start, end])
return out
""",
        lambda r: [[[s, s + r.randint(0, longest + 3)] for s in _numbers(r, 0, 90, 8)]],
        (
            [[]],
            [[[0, longest], [longest + gap, longest + gap + 1]]],
            [[[0, longest], [longest + gap + 1, longest + gap + 2]]],
            [[[5, 6], [0, 2], [1, 1]]],
            [[[0, longest + 1]]],
        ),
    )


TEMPLATES: tuple[Template, ...] = (
    count_divisible,
    clamped_sum,
    scaled,
    kth_largest,
    mask_letters,
    long_words,
    shifted,
    digit_sum,
    rotated,
    chunked,
    longest_run,
    fizz,
    capped_sums,
    best_window,
    iterated,
    merged,
)


def draw_problem(rng: random.Random) -> Problem:
    """A problem of a template chosen by the generator."""
    return rng.choice(TEMPLATES)(rng)


def cases_of(problem: Problem, rng: random.Random, count: int) -> list[tuple[Arguments, Json]]:
    """Edge cases first, then random ones, each with what the reference returns; all different."""
    reference = problem.reference()
    out: list[tuple[Arguments, Json]] = []
    seen: set[str] = set()
    edges = list(problem.edges)
    for _ in range(50 * count):
        arguments = edges.pop(0) if edges else problem.draw(rng)
        if (key := repr(arguments)) in seen:
            continue
        seen.add(key)
        out.append((arguments, reference(*_copy(arguments))))
        if len(out) >= count and not edges:
            break
    return out


def _copy(value: Json) -> Json:
    return [_copy(item) for item in value] if isinstance(value, list) else value
