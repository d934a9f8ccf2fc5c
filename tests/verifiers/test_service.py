"""Services started anew in a clean room."""

import asyncio

import pytest

from quintain.errors import TaskError
from quintain.task import SandboxSpec, Task
from quintain.verdict import Outcome
from quintain.verifiers.service import Service

HEAD = """
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
items = []
class Handler(BaseHTTPRequestHandler):
    def log_message(self, *a): pass
    def say(self, status, value):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())
"""
RIGHT = """
    def do_GET(self):
        self.say(200, {"items": items, "at": 1})
    def do_POST(self):
        items.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["n"] * 2)
        self.say(201, None)
"""
TAIL = """
HTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""
ANSWER = {
    "service": {"files": ["app.py"], "start": ["python3", "app.py"], "port": 8000},
    "requests": [
        {"path": "/", "json": {"items": []}, "match": "subset"},
        {"method": "POST", "path": "/", "body": {"n": 21}, "status": 201},
        {"path": "/", "json": {"items": [42]}, "match": "subset"},
    ],
}
WRONG = {
    "fixed": HEAD
    + '    def do_GET(self): self.say(200, {"items": [42]})\n    do_POST = do_GET'
    + TAIL,
    "status": HEAD + RIGHT.replace("201", "200") + TAIL,
    "doubled": HEAD + RIGHT.replace("* 2", "* 3") + TAIL,
    "not_listening": "import time; time.sleep(60)",
    "ends": "print('listening on 8000')",
    "hangs": HEAD + "    def do_GET(self):\n        import time; time.sleep(60)" + TAIL,
    "kills_the_probe": "import os, signal\nsignal.signal(15, signal.SIG_IGN)\n"
    + HEAD
    + "    def do_GET(self):\n        for p in os.listdir('/proc'):\n"
    "            if p.isdigit() and int(p) not in (1, os.getpid()):\n"
    "                try: os.kill(int(p), 15)\n                except OSError: pass\n" + TAIL,
    "redirects": HEAD + "    def do_GET(self):\n        self.send_response(302)\n"
    "        self.send_header('Location', 'http://127.0.0.1:8000/')\n        self.end_headers()"
    + TAIL,
}


async def judge(bench, code, **options):
    box = await bench.open_sandbox(SandboxSpec())
    try:
        if code is not None:
            await box.write("app.py", code)
        return await bench.judge(Service(**options), "It runs.", ANSWER, sandbox=box)
    finally:
        await box.close()


async def test_right(bench):
    verdict = await judge(bench, HEAD + RIGHT + TAIL)
    assert verdict.passed, verdict.explanation
    assert (verdict.verifier, verdict.kind, len(verdict.checks)) == ("service", "formal", 4)


async def test_wrong(bench):
    gate = asyncio.Semaphore(3)

    async def one(name):
        quick = name in ("not_listening", "ends", "hangs")
        options = {"start_s": 3.0, "request_s": 2.0} if quick else {}
        async with gate:
            return await judge(bench, WRONG.get(name), **options)

    names = [*WRONG, "missing"]
    verdicts = await asyncio.gather(*map(one, names))
    assert {
        n: v for n, v in zip(names, verdicts, strict=True) if v.outcome is not Outcome.FAILED
    } == {}


def test_tasks_that_are_refused():
    service = ANSWER["service"]
    for answer in (
        {"requests": ANSWER["requests"]},
        {"service": service, "requests": []},
        {"service": service, "requests": [{"path": "/"}]},
        {"service": {**service, "port": 80}, "requests": ANSWER["requests"]},
        {"service": service, "requests": [{"path": "no", "json": 1}]},
    ):
        with pytest.raises(TaskError):
            Service().check_gold(Task(id="t", prompt="?", answer=answer))
