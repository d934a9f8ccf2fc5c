"""A clean room holds nothing of the episode but the named files."""

from quintain.task import SandboxSpec, Task
from quintain.verdict import Outcome
from quintain.verifiers.function import verifier

SOLUTION = "/work/solution.py"
CHECK = (
    "import sys; sys.path.insert(0, '/work'); import solution; "
    "print('pass' if solution.f(3) == 9 else 'fail')"
)


async def runs(sandbox):
    run = await sandbox.exec(["python3", "-c", CHECK])
    return run.exit_code == 0 and run.text == "pass\n"


TAMPERING = {
    "/work/sitecustomize.py": "import builtins\nbuiltins.print = lambda *a: None\nprint('pass')",
    "/work/usercustomize.py": "import os\nos._exit(0)",
    "/work/conftest.py": "",
    "/home/sandbox/.profile": "exit 0",
    "/tmp/solution.py": "def f(n): return 9",
    "/work/reward.txt": "1.0",
}


async def tampered(bench, code):
    sandbox = await bench.open_sandbox(SandboxSpec())
    for path, content in TAMPERING.items():
        await sandbox.write(path, content)
    if code is not None:
        await sandbox.write(SOLUTION, code)
    return sandbox


async def test_only_the_named_file_counts(bench):
    judge = verifier(runs, clean_room=[SOLUTION])
    for code, outcome in (("def f(n): return n * n", "solved"), ("def f(n): return 0", "failed")):
        sandbox = await tampered(bench, code)
        try:
            verdict = await bench.judge(judge, "done", None, sandbox=sandbox)
        finally:
            await sandbox.close()
        assert verdict.outcome.value == outcome, verdict


async def test_a_missing_file_is_told_and_stays_missing(bench):
    sandbox = await tampered(bench, None)
    try:
        verdict = await bench.judge(
            verifier(runs, clean_room=[SOLUTION]), "done", None, sandbox=sandbox
        )
    finally:
        await sandbox.close()
    assert verdict.outcome is Outcome.FAILED
    assert verdict.checks[0].name == f"artifact {SOLUTION}"


async def test_the_room_sees_nothing_else_and_hidden_files_win(bench):
    async def listing(sandbox):
        run = await sandbox.exec(
            ["sh", "-c", "ls -A /work /tmp /home/sandbox; cat /work/hidden.txt"]
        )
        return all(
            name not in run.text
            for name in ("sitecustomize", "reward", "conftest", ".profile", "forged")
        ) and run.text.endswith("real")

    sandbox = await tampered(bench, "x = 1")
    try:
        await sandbox.write("/work/hidden.txt", "forged")
        task = Task(id="t", prompt="q", hidden_files={"/work/hidden.txt": "real"})
        judge = verifier(listing, clean_room=[SOLUTION, "/work/hidden.txt"])
        verdict = await judge.judge(bench.context("done", task=task, sandbox=sandbox))
    finally:
        await sandbox.close()
    assert verdict.passed, verdict


async def test_in_place_sees_the_episode(bench):
    async def in_place(sandbox):
        return (await sandbox.read("/work/reward.txt")) == b"1.0"

    sandbox = await tampered(bench, None)
    try:
        assert (await bench.judge(verifier(in_place), "done", None, sandbox=sandbox)).passed
    finally:
        await sandbox.close()
