"""A process that lives on cannot answer, replace or disturb later cases."""

from judging import SQUARE, all_of, outcomes

SPAWN = """
import os, signal, time
def spawn(work):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(s, signal.SIG_IGN)
            work()
            os._exit(0)
        os._exit(0)
"""
LATER = {
    "writes_answers": "def work():\n"
    "    while True:\n"
    "        for fd in range(1, 64):\n"
    "            try: os.write(fd, b'9')\n"
    "            except OSError: pass\n",
    "kills_the_next": "def work():\n"
    "    time.sleep(0.01)\n"
    "    while True:\n"
    "        for pid in range(2, 400):\n"
    "            if pid != os.getpid():\n"
    "                try: os.kill(pid, 9)\n"
    "                except OSError: pass\n",
    "waits": "def work(): time.sleep(300)\n",
}


async def test_wrong_answers_stay_wrong(bench):
    variants = {
        name: SPAWN + work + "def f(n):\n    spawn(work)\n    return -1"
        for name, work in LATER.items()
    }
    assert await outcomes(bench, variants, SQUARE) == all_of(variants, "failed")


async def test_a_right_answer_with_a_sleeping_process_left_is_right(bench):
    code = SPAWN + LATER["waits"] + "def f(n):\n    spawn(work)\n    return n * n"
    assert await outcomes(bench, {"waits": code}, SQUARE) == {"waits": "solved"}


async def test_an_answer_left_to_a_background_process_never_comes(bench):
    code = SPAWN + (
        "def f(n):\n"
        "    spawn(lambda: (time.sleep(1), os.write(3, b'%d' % (n * n))))\n"
        "    os._exit(0)"
    )
    assert await outcomes(bench, {"late": code}, SQUARE) == {"late": "failed"}
