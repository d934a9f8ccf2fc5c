"""Worker processes: budgets, isolation from call to call, and nothing left behind."""

import asyncio
import builtins
import os
import signal
import subprocess
import sys
import time
from fractions import Fraction

import pytest

from quintain.verdict import Verdict
from quintain.verifiers.workers import BudgetExceeded, WorkerError, WorkerPool


@pytest.fixture
async def pool():
    async with WorkerPool(4, memory_mb=256) as made:
        yield made


def double(value):
    return value * 2


def tower(exponent):
    return len(str(9**exponent))


def spin():
    while True:
        pass


def sleep(seconds):
    time.sleep(seconds)
    return "slept"


def eat(megabytes):
    return len(bytearray(megabytes << 20))


def poison():
    builtins.sorted = lambda _: 42
    sys.modules["poisoned"] = sys
    return True


def break_answer():
    builtins.len = lambda _: 42
    return True


def look():
    return sorted([]), "poisoned" in sys.modules, os.getpid()


def die():
    os.kill(os.getpid(), signal.SIGSEGV)


def fork_and_sleep(path):
    pid = os.fork()
    if pid == 0:
        time.sleep(300)
        os._exit(0)
    with open(path, "w") as file:
        file.write(str(pid))
    return pid


class Bomb:
    def __reduce__(self):
        return (os.system, ("touch /tmp/quintain-bomb",))


def bomb():
    return Bomb()


async def test_answers_in_order_of_asking(pool):
    answers = await asyncio.gather(*(pool.run(double, i, cpu_s=1, wall_s=20) for i in range(50)))
    assert answers == [2 * i for i in range(50)]


async def test_closures_and_lambdas_travel(pool):
    factor = 7
    assert await pool.run(lambda value: value * factor, 6, cpu_s=1, wall_s=20) == 42


async def test_large_arguments_and_results(pool):
    data = os.urandom(5_000_000)
    assert await pool.run(double, data, cpu_s=5, wall_s=30) == data * 2


async def test_plain_types_and_verdicts_come_back(pool):
    values = (None, True, 1.5, Fraction(1, 3), {1, 2}, {"a": [1]}, Verdict.of(True, "yes"))
    assert await pool.run(double, values, cpu_s=1, wall_s=20) == values * 2


async def test_exceptions_come_back_by_type(pool):
    with pytest.raises(ZeroDivisionError, match="division"):
        await pool.run(divmod, 1, 0, cpu_s=1, wall_s=20)


async def test_cpu_budget_ends_a_loop_and_a_long_c_call(pool):
    for function, args in ((spin, ()), (tower, (10**8,))):
        with pytest.raises(BudgetExceeded) as caught:
            await pool.run(function, *args, cpu_s=0.2, wall_s=60)
        assert caught.value.budget == "cpu"


async def test_wall_backstop_ends_what_burns_no_cpu(pool):
    with pytest.raises(TimeoutError) as caught:
        await pool.run(sleep, 60, cpu_s=5, wall_s=0.3)
    assert caught.value.budget == "wall"
    assert pool.kills == 1


async def test_a_hostile_call_keeps_nobody_waiting(pool):
    hostile = [asyncio.create_task(pool.run(sleep, 60, cpu_s=5, wall_s=5)) for _ in range(2)]
    assert await pool.run(double, 4, cpu_s=1, wall_s=20) == 8
    assert not any(task.done() for task in hostile)
    for task in hostile:
        task.cancel()
    await asyncio.gather(*hostile, return_exceptions=True)


async def test_memory_cap(pool):
    with pytest.raises(MemoryError):
        await pool.run(eat, 2000, cpu_s=5, wall_s=20)
    assert await pool.run(eat, 20, cpu_s=5, wall_s=20) == 20 << 20


async def test_what_a_call_patches_does_not_outlive_it(pool):
    assert await pool.run(poison, cpu_s=1, wall_s=20) is True
    looks = [await pool.run(look, cpu_s=1, wall_s=20) for _ in range(5)]
    assert [(found, poisoned) for found, poisoned, _ in looks] == [([], False)] * 5
    assert len({pid for *_, pid in looks}) == 5


async def test_a_call_that_breaks_its_own_answer_breaks_only_that(pool):
    with pytest.raises(WorkerError):
        await pool.run(break_answer, cpu_s=1, wall_s=20)
    assert await pool.run(double, 1, cpu_s=1, wall_s=20) == 2


async def test_a_crash_is_reported_and_the_pool_goes_on(pool):
    with pytest.raises(WorkerError, match="SIGSEGV"):
        await pool.run(die, cpu_s=1, wall_s=20)
    assert await pool.run(double, 1, cpu_s=1, wall_s=20) == 2


async def test_an_answer_cannot_run_code_here(pool):
    with pytest.raises(WorkerError, match="plain data"):
        await pool.run(bomb, cpu_s=1, wall_s=20)
    assert not os.path.exists("/tmp/quintain-bomb")


async def test_what_a_call_forks_dies_with_it(pool, tmp_path):
    pid = await pool.run(fork_and_sleep, str(tmp_path / "pid"), cpu_s=1, wall_s=20)
    for _ in range(200):
        if not _alive(pid):
            break
        await asyncio.sleep(0.02)
    assert not _alive(pid)


async def test_a_dead_zygote_is_replaced(pool):
    await pool.run(double, 1, cpu_s=1, wall_s=20)
    (zygote,) = pool._zygotes.values()
    zygote.process.kill()
    zygote.process.wait()
    while zygote.alive:
        await asyncio.sleep(0.01)
    assert await pool.run(double, 2, cpu_s=1, wall_s=20) == 4


async def test_closing_leaves_no_process():
    pool = WorkerPool(2)
    await pool.run(double, 1, cpu_s=1, wall_s=20)
    task = asyncio.create_task(pool.run(sleep, 60, cpu_s=5, wall_s=60))
    await asyncio.sleep(0.2)
    pids = [zygote.process.pid for zygote in pool._zygotes.values()]
    children = [child for pid in pids for child in _children(pid)]
    assert children
    await pool.close()
    with pytest.raises(WorkerError):
        await task
    await _gone([*pids, *children])


async def test_workers_die_with_a_killed_owner():
    code = (
        "import asyncio, os, time\n"
        "from quintain.verifiers.workers import WorkerPool\n"
        "async def main():\n"
        "    pool = WorkerPool(2)\n"
        "    await pool.run(abs, -1, cpu_s=1, wall_s=20)\n"
        "    task = asyncio.create_task(pool.run(time.sleep, 60, cpu_s=5, wall_s=60))\n"
        "    await asyncio.sleep(0.3)\n"
        "    print(*[z.process.pid for z in pool._zygotes.values()], flush=True)\n"
        "    await task\n"
        "asyncio.run(main())\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in owner.stdout.readline().split()]
    pids += [child for pid in pids for child in _children(pid)]
    assert len(pids) >= 2
    owner.kill()
    owner.wait()
    owner.stdout.close()
    await _gone(pids)


def _children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


async def _gone(pids):
    for _ in range(300):
        if not any(map(_alive, pids)):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"still running: {[pid for pid in pids if _alive(pid)]}")
