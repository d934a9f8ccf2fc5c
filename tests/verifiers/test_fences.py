"""Which of a message's blocks is the code."""

import pytest

from quintain.verifiers.fences import fenced_code

CODE = "def f(n):\n    return n\n"


@pytest.mark.parametrize(
    "text",
    [
        f"```python\n{CODE}```",
        f"Thinking.\n\n~~~python\n{CODE}~~~\nDone.",
        f"````py\n{CODE}````",
        "1. Do:\n   ```python\n   def f(n):\n       return n\n   ```\n",
        f"```Python3\n{CODE}```",
        f"```python\n{CODE}```\n".replace("\n", "\r\n"),
        f"```\n{CODE}```",
        f"```python\nfirst = 1\n```\nBetter:\n```python\n{CODE}```",
        f"```python\n{CODE}```\nRun it:\n```bash\npython f.py\n```",
        f"~~~\n{CODE}~~~\n",
    ],
)
def test_the_code_of_a_message(text):
    assert fenced_code(text) == CODE


def test_a_shorter_fence_inside_does_not_end_it():
    text = "````python\nx = '''\n```\n'''\n````"
    assert fenced_code(text) == "x = '''\n```\n'''\n"


def test_what_defines_the_function_comes_before_an_example_of_its_use():
    text = f"```python\n{CODE}```\nFor example:\n```python\nprint(f(3))\n```"
    assert fenced_code(text, defines="f") == CODE
    assert fenced_code(text, defines="g") == fenced_code(text) == "print(f(3))\n"
    later = text + "\nBetter:\n```python\nf = lambda n: n\n```"
    assert fenced_code(later, defines="f") == "f = lambda n: n\n"


def test_without_a_closed_fence_the_message_is_the_code():
    assert fenced_code(CODE) == CODE
    assert fenced_code("```python\nx = 1") == "```python\nx = 1"
    assert fenced_code("```bash\nls\n```") == "```bash\nls\n```"
