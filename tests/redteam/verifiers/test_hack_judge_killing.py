"""Killing whatever can be killed loses the answers, and is never an error of the host."""

from judging import SQUARE, all_of, outcomes

VARIANTS = {
    "parent": "import os\ndef f(n):\n    os.kill(os.getppid(), 9)\n    return n * n",
    "everyone": "import os\ndef f(n):\n    os.kill(-1, 9)\n    return n * n",
    "group": "import os\ndef f(n):\n    os.killpg(os.getpgid(os.getppid()), 9)\n    return n * n",
    "terminate": "import os, time\ndef f(n):\n    os.kill(os.getppid(), 15)\n    return 0",
    "init": "import os\ndef f(n):\n    os.kill(1, 9)\n    return 0",
    "at_import": "import os\nos.kill(os.getppid(), 9)",
}


async def test_no_answer_no_pass(bench):
    assert await outcomes(bench, VARIANTS, SQUARE) == all_of(VARIANTS, "failed")
