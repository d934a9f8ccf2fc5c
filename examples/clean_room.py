"""Write a program in a sandbox; it is judged in a fresh one that gets nothing but that program."""

import quintain as q

ROWS = [
    {
        "prompt": f"Write /work/run.py. It reads integers, one a line, and prints the {what} of "
        f"those divisible by {k}. You have a shell.",
        "answer": {"stdin": f"{k}\n{k + 1}\n{5 * k}\n-{k}\n{k}\n", "stdout": str(result)},
        "metadata": {"what": what, "k": k},
    }
    for k in range(2, 40)
    for what, result in (("sum", 6 * k), ("count", 4), ("largest", 5 * k), ("smallest", -k))
]


async def solved(task: q.Task, sandbox) -> bool:
    """The program prints the right line for an input that it has never seen."""
    run = await sandbox.exec(["python3", "/work/run.py"], stdin=task.answer["stdin"])
    return run.exit_code == 0 and run.text.strip() == task.answer["stdout"]


env = q.Environment(
    name="programs",
    tasks=ROWS,
    tools=[q.tools.shell],
    sandbox=q.SandboxSpec(memory_mb=256),
    verifier=q.verifier(solved, clean_room=["/work/run.py"]),
    limits=q.Limits(max_steps=20, wall_s=300),
)
