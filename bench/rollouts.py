"""Rollouts and tool steps a second, in one process, judged and stored; peers beside ours.

    python bench/rollouts.py             ours, and the event loop's lag meanwhile
    python bench/rollouts.py --peers     installs Inspect and verifiers into environments of their
                                         own and runs the same single-turn task with each

The policy answers at once, so what is measured is the framework. Medians over the repeats; the two
peers store logs their own way, as they come.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
import venv
from pathlib import Path

import quintain as q
from quintain.messages import ToolCall, assistant
from quintain.rollouts import Host, schedule
from quintain.rollouts.host import jobs_of
from quintain.store import Store
from quintain.task import Limits
from quintain.trajectory import Action, Usage

SAMPLES = 4000
TOOL_STEPS = 20


async def _lag(out: list[float]) -> None:
    """Seconds that a 5 ms sleep overslept, again and again."""
    loop = asyncio.get_running_loop()
    while True:
        asked = loop.time()
        await asyncio.sleep(0.005)
        out.append(loop.time() - asked - 0.005)


async def _timed(environment: q.Environment, policy, tasks: int, concurrency: int):
    lag: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Store.begin(Path(folder) / "run", kind="eval", identity={}) as store,
    ):
        async with Host(environment, policy, store=store) as host:
            jobs = jobs_of(list(environment.tasks), "eval:bench@v0", 1)
            probe = asyncio.create_task(_lag(lag))
            began, cpu = time.perf_counter(), time.process_time()
            progress = await schedule(jobs, host, concurrency=concurrency)
            wall, cpu = time.perf_counter() - began, time.process_time() - cpu
            probe.cancel()
        assert progress.outcomes == {"solved": tasks}, progress.outcomes
        assert len(store.rows()) == tasks
    return wall, cpu, sorted(lag)[int(len(lag) * 0.99)] if lag else 0.0


def single_turn(samples: int, concurrency: int):
    """(wall, CPU, lag p99) of single-turn rollouts with the `answer` verifier."""
    rows = [{"id": f"t{n}", "prompt": f"{n} + 1 = ?", "answer": str(n + 1)} for n in range(samples)]
    environment = q.Environment(tasks=rows, verifier=q.Answer(kind="number", extraction="whole"))
    policy = q.scripted(lambda messages, tools, seed: str(int(messages[0].text.split()[0]) + 1))
    return asyncio.run(_timed(environment, policy, samples, concurrency))


def tool_steps(samples: int, concurrency: int, blocking: bool):
    """(wall, CPU, lag p99) of rollouts with TOOL_STEPS tool calls each."""

    def add_blocking(a: int, b: int) -> int:
        """Adds."""
        return a + b

    async def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    environment = q.Environment(
        tasks=[{"id": f"t{n}", "prompt": "count", "answer": "done"} for n in range(samples)],
        verifier=q.Answer(kind="exact", extraction="whole"),
        tools=[q.tool(add_blocking if blocking else add, name="add")],
        limits=Limits(max_steps=TOOL_STEPS + 1),
    )
    call = Action(
        message=assistant("", ToolCall(id="1", name="add", arguments={"a": 2, "b": 3})),
        finish="tool_calls",
        usage=Usage(calls=1),
    )
    policy = q.scripted([*[call] * TOOL_STEPS, "done"])
    return asyncio.run(_timed(environment, policy, samples, concurrency))


# --- peers ----------------------------------------------------------------------------------------

INSPECT = """
    import sys, time, tempfile
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput, get_model
    from inspect_ai.scorer import exact
    from inspect_ai.solver import generate
    n = int(sys.argv[1])
    model = get_model("mockllm/model", custom_outputs=[
        ModelOutput.from_content("mockllm/model", "5") for _ in range(n + 10)])
    task = Task(dataset=[Sample(input=f"{i}: 2 + 3 = ?", target="5") for i in range(n)],
                solver=generate(), scorer=exact())
    with tempfile.TemporaryDirectory() as logs:
        began = time.perf_counter()
        (log,) = eval(task, model=model, log_dir=logs, display="none", max_connections=64)
        wall = time.perf_counter() - began
    assert log.status == "success", log.error
    assert log.results.scores[0].metrics["accuracy"].value == 1.0
    print("RATE", n / wall)
"""

VERIFIERS_TASKS = """
    import verifiers.v1 as vf

    class AddData(vf.TaskData):
        answer: str

    class AddTask(vf.Task[AddData]):
        @vf.reward
        async def exact(self, trace):
            return float(trace.last_reply == self.data.answer)

    class AddSet(vf.Taskset[AddTask, vf.TasksetConfig]):
        def load(self):
            return [
                AddTask(AddData(idx=i, prompt=f"{i}: 2 + 3 = ?", answer="5"), self.config.task)
                for i in range(SAMPLES)
            ]

    __all__ = ["AddSet"]
"""

VERIFIERS = """
    import json, os, pathlib, subprocess, sys, threading, time
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            body = json.dumps({
                "id": "1", "object": "chat.completion", "created": 1, "model": "m",
                "choices": [{"index": 0, "finish_reason": "stop",
                             "message": {"role": "assistant", "content": "5"}}],
                "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
            }).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    n = min(int(sys.argv[1]), 64)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    pathlib.Path("add_v1.py").write_text(TASKS.replace("SAMPLES", str(n)))
    binaries = os.path.dirname(sys.executable)
    began = time.perf_counter()
    done = subprocess.run(
        [os.path.join(binaries, "vf-eval"), "add_v1", "-m", "m", "-c", "8", "--clean", "True",
         "--env.agent.harness.id", "null", "--env.agent.runtime.type", "subprocess",
         "--client.base-url", f"http://127.0.0.1:{server.server_port}/v1",
         "--client.api-key-var", "KEY", "--push", "False"],
        env={**os.environ, "KEY": "x", "PYTHONPATH": ".",
             "PATH": binaries + os.pathsep + os.environ["PATH"]},
        capture_output=True, text=True)
    wall = time.perf_counter() - began
    assert done.returncode == 0, done.stderr[-300:] or done.stdout[-300:]
    assert "exact 1.00" in done.stdout, done.stdout[-300:]
    print("RATE", n / wall)
"""

PEERS = {
    "inspect": (["inspect-ai"], textwrap.dedent(INSPECT)),
    "verifiers": (
        ["verifiers", "uv"],
        f"TASKS = {textwrap.dedent(VERIFIERS_TASKS)!r}\n{textwrap.dedent(VERIFIERS)}",
    ),
}


def peer(name: str, samples: int, cache: Path) -> float | str:
    """Rollouts a second of a peer in an environment of its own, or why there is no figure."""
    requirements, script = PEERS[name]
    folder = cache / name
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    done = subprocess.run(
        [python, "-m", "pip", "install", "-q", *requirements],
        capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    if done.returncode:
        return f"does not install: {done.stderr.strip().splitlines()[-1][:120]}"
    done = subprocess.run(
        [python, "-c", script, str(samples)],
        capture_output=True, text=True, timeout=900, check=False, cwd=cache,
    )  # fmt: skip
    for line in done.stdout.splitlines():
        if line.startswith("RATE "):
            return float(line.split()[1])
    return f"does not run: {(done.stderr or done.stdout).strip().splitlines()[-1][:120]}"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--peer-samples", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    single_turn(200, 8)  # warm-up
    found: dict[str, float | str] = {}
    rates = [
        single_turn(arguments.samples, arguments.concurrency) for _ in range(arguments.repeats)
    ]
    found["rollouts_per_s"] = statistics.median(arguments.samples / wall for wall, _, _ in rates)
    found["cpu_us_per_rollout"] = statistics.median(
        cpu / arguments.samples * 1e6 for _, cpu, _ in rates
    )
    found["loop_lag_p99_ms"] = statistics.median(lag * 1e3 for _, _, lag in rates)
    players = max(1, arguments.samples // TOOL_STEPS)
    for name, blocking in (("async", False), ("thread", True)):
        runs = [
            tool_steps(players, arguments.concurrency, blocking) for _ in range(arguments.repeats)
        ]
        steps = players * TOOL_STEPS
        found[f"tool_steps_per_s_{name}"] = statistics.median(steps / wall for wall, _, _ in runs)
        found[f"tool_steps_lag_p99_ms_{name}"] = statistics.median(lag * 1e3 for *_, lag in runs)
    if arguments.peers:
        cache = Path(tempfile.gettempdir()) / "quintain-bench-peers"
        cache.mkdir(exist_ok=True)
        for name in PEERS:
            rate = peer(name, arguments.peer_samples, cache)
            found[f"{name}_rollouts_per_s"] = rate
            if isinstance(rate, float):
                found[f"ratio_to_{name}"] = float(found["rollouts_per_s"]) / rate
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    print(
        f"{arguments.samples} single-turn rollouts, concurrency {arguments.concurrency}, "
        f"medians of {arguments.repeats}, Python {sys.version.split()[0]}"
    )
    for name, value in found.items():
        print(f"  {name:28} {value if isinstance(value, str) else f'{value:,.1f}'}")


if __name__ == "__main__":
    main()
