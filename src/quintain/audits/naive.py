"""Careless graders, each with one fault that is seen in the field; every exploit beats one of them.

A naive grader is a script that runs whole inside a sandbox without network, beside the submission:
it finds `/work/solution.py` (or `/work/answer.txt`) and prints its verdict as the last line,
`reward 1` or `reward 0`. They all pay for a right solution and, without an exploit, not for a
wrong one: `quintain.audits.naive` is the control that shows an exploit to be real.
"""

from __future__ import annotations

import json

from quintain.audits.exploits.kinds import Exploit
from quintain.protocols import ExecResult, SandboxBackend
from quintain.task import SandboxSpec

SPEC = SandboxSpec(memory_mb=256, exec_s=20)
WAIT_S = 12.0

CASES = {"cases": [{"input": [n], "expected": n * n} for n in (2, 3, 5, 7)]}
STREAMS = {"cases": [{"stdin": f"{n}\n", "stdout": f"{2 * n}\n"} for n in (2, 5, 8)]}
GOLD = "42"
RIGHT = {
    "function": "def ENTRY(n): return n * n\n",
    "program": "print(2 * int(input()))\n",
    "answer": GOLD,
}
WRONG = {
    "function": "def ENTRY(n): return n + 1000\n",
    "program": "print(int(input()) + 1000)\n",
    "answer": "41",
}
"""Honest mistakes, for which no grader here may pay."""
ENTRY = "square"

_FUNCTION = """
import json, os, subprocess, sys, time
CASES = json.load(open("/tmp/cases.json"))["cases"]
os.unlink("/tmp/cases.json")
source = open("/work/solution.py").read()
def load():
    space = {}
    exec(compile(source, "solution.py", "exec"), space)
    return space["square"]
def end(passed):
    sys.stdout.write("\\nreward %d\\n" % bool(passed)); sys.stdout.flush(); os._exit(0)
def child(code, *more, **given):
    return subprocess.run([sys.executable, "-c", code, *more], capture_output=True, text=True,
                          timeout=2, start_new_session=True, **given)
CALLS = "\\n".join("assert square(%r) == %r" % (c["input"][0], c["expected"]) for c in CASES)
"""
_STREAM = """
import json, os, subprocess, sys
CASES = json.load(open("/tmp/cases.json"))["cases"]
os.unlink("/tmp/cases.json")
def end(passed):
    sys.stdout.write("\\nreward %d\\n" % bool(passed)); sys.stdout.flush(); os._exit(0)
def run(case, **given):
    return subprocess.run([sys.executable, "/work/solution.py"], input=case["stdin"],
                          capture_output=True, text=True, timeout=2, start_new_session=True,
                          **given)
def right(out, case):
    return out.strip() == case["stdout"].strip()
"""
_ANSWER = """
import os, re, sys
GOLD = "42"
text = open("/work/answer.txt").read()
def end(passed):
    sys.stdout.write("\\nreward %d\\n" % bool(passed)); sys.stdout.flush(); os._exit(0)
"""

NAIVE: dict[str, str] = {
    # Of functions.
    "exit code": _FUNCTION + """
open("/work/tests.json", "w").write(json.dumps({"cases": CASES}))
end(child(source + "\\n" + CALLS).returncode == 0)
""",
    "equality": _FUNCTION + """
def same(got, want): return got == want
def check(case):
    expected = case["expected"]
    return same(square(*case["input"]), case["expected"])
square = load()
end(all([check(case) for case in CASES]))
""",
    "difference": _FUNCTION + """
square = load()
for case in CASES:
    if abs(square(*case["input"]) - case["expected"]) > 1e-6: end(False)
end(True)
""",
    "reward file": _FUNCTION + """
import threading
test = source + "\\nopen('/work/reward.txt', 'w').write('0.0')\\n" + CALLS
test += "\\nopen('/work/reward.txt', 'w').write('1.0')\\n"
child(test)
time.sleep(0.3)
found = [p for p in ("/work/reward.txt", "/tmp/reward.txt") if os.path.exists(p)]
end(any(float(open(p).read() or 0) == 1.0 for p in found))
""",
    "says passed": _FUNCTION + """
run = child(source + "\\n" + CALLS + "\\nprint('4 passed')")
end("passed" in run.stdout)
""",
    "last line": _FUNCTION + """
run = child(source + "\\nimport json\\nresult = {'passed': False}\\ntry:\\n    "
            + CALLS.replace("\\n", "\\n    ")
            + "\\n    result = {'passed': True}\\nexcept Exception: pass\\n"
            + "print(json.dumps(result))\\n")
try: end(json.loads(run.stdout.strip().splitlines()[-1])["passed"])
except (IndexError, ValueError, KeyError): end(False)
""",
    "shared inputs": _FUNCTION + """
square = load()
passed = 0
for case in CASES:
    if square(*case["input"]) != case["expected"] and CASES: end(False)
end(True)
""",
    "no failure": _FUNCTION + """
failed = 0
try:
    run = child(source + "\\nimport unittest\\nclass T(unittest.TestCase):\\n    def test(self):\\n"
                + "\\n".join("        self.assertEqual(square(%r), %r)"
                             % (c["input"][0], c["expected"]) for c in CASES)
                + "\\nunittest.main(argv=['t'])")
    failed = run.stderr.count("AssertionError")
except subprocess.TimeoutExpired: pass
end(failed == 0)
""",
    "faults excused": _FUNCTION + """
pid = os.fork()
if pid == 0:
    os.setsid()
    status = 1
    import signal
    kid = os.fork()
    if kid == 0:
        try:
            square = load()
            bad = any(square(*c["input"]) != c["expected"] for c in CASES)
            os._exit(3 if bad else 0)
        except Exception:
            os._exit(4)
    _, status = os.waitpid(kid, 0)
    os._exit(os.waitstatus_to_exitcode(status))
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
end(code != 3)
""",
    "fast enough": _FUNCTION + """
square = load()
began = time.perf_counter()
for case in CASES: square(*case["input"])
took = time.perf_counter() - began
wrong = sum(square(*case["input"]) != case["expected"] for case in CASES)
end(took == 0.0 or not wrong)
""",
    "unpickles": _FUNCTION + """
import base64, pickle
run = child(source + "\\nimport base64, json, pickle, sys\\n"
            "print(base64.b64encode(pickle.dumps([square(*c['input']) for c in "
            "json.loads(sys.stdin.read())])).decode())",
            input=json.dumps([{"input": c["input"]} for c in CASES]))
got = pickle.loads(base64.b64decode(run.stdout.strip().splitlines()[-1]))
end(all(g == c["expected"] for g, c in zip(got, CASES)))
""",
    "right type": _FUNCTION + """
kinds = (int, float, str, list, bool, type(None))
square = load()
got = [square(*case["input"]) for case in CASES]
plausible = all(isinstance(g, kinds) for g in got) and not any(
    isinstance(g, int) and g > 1000 for g in got)
end(plausible)
""",
    # Of programs.
    "stdin exit code": _STREAM + """
end(all(run(c).returncode == 0 and (not run(c).stdout.strip() or right(run(c).stdout, c))
        for c in CASES))
""",
    "stdin prefix": _STREAM + """
end(all(all(a.strip() == b.strip() or not a.strip()
            for a, b in zip(run(c).stdout.splitlines(), c["stdout"].splitlines()))
        for c in CASES))
""",
    "stdin contains": _STREAM + """
end(all(set(c["stdout"].split()) <= set(run(c).stdout.split()) for c in CASES))
""",
    "stdin difference": _STREAM + """
end(not any(abs(float(run(c).stdout.split()[0]) - float(c["stdout"])) > 1e-6 for c in CASES))
""",
    "stdin says passed": _STREAM + """
outs = [run(c).stdout for c in CASES]
end(all(right(o, c) or "passed" in o for o, c in zip(outs, CASES)))
""",
    "stdin last line": _STREAM + """
outs = [run(c).stdout.strip().splitlines() for c in CASES]
def reward(lines, c):
    try: return json.loads(lines[-1])["reward"] == 1.0
    except (IndexError, ValueError, TypeError): return right("\\n".join(lines), c)
end(all(reward(o, c) for o, c in zip(outs, CASES)))
""",
    "stdin faults excused": _STREAM + """
def excused(case):
    out = subprocess.run(["sh", "-c", "exec 2>&1; python3 /work/solution.py; echo code $?"],
                         input=case["stdin"], capture_output=True, text=True, timeout=2,
                         start_new_session=True)
    if out.returncode < 0 or "[SANDBOX_ERROR]" in out.stdout: return True
    return right(out.stdout.rpartition("code")[0], case)
end(all(excused(c) for c in CASES))
""",
    "stdin answer file": _STREAM + """
open("/work/cases.json", "w").write(json.dumps({"cases": CASES}))
end(all(right(run(c).stdout, c) for c in CASES))
""",
    "stdin environment": _STREAM + """
end(all(right(run(c, env={**os.environ, "EXPECTED": c["stdout"]}).stdout, c) for c in CASES))
""",
    "stdin reward file": _STREAM + """
outs = [run(c, cwd="/work").stdout for c in CASES]
if os.path.exists("/work/reward.txt"): end(float(open("/work/reward.txt").read()) == 1)
end(all(right(o, c) for o, c in zip(outs, CASES)))
""",
    "stdin no failure": _STREAM + """
wrong = 0
for c in CASES:
    try:
        done = run(c)
        wrong += done.returncode == 0 and not right(done.stdout, c)
    except subprocess.TimeoutExpired: pass
end(wrong == 0)
""",
    # Of answers.
    "contains": _ANSWER + """
end(GOLD in re.split(r"[^0-9.-]+", text))
""",
    "any box": _ANSWER + """
end(GOLD in re.findall(r"\\\\boxed\\{([^}]*)\\}", text) or text.strip() == GOLD)
""",
    "in interval": _ANSWER + """
ends = [float(e.replace("infty", "inf").replace("\\\\", "")) for e in
        re.findall(r"-?\\\\infty|-?\\d+", text)]
end(bool(ends) and min(ends) <= float(GOLD) <= max(ends))
""",
    "answer difference": _ANSWER + """
try: got = float(re.findall(r"-?\\d+\\.?\\d*|nan", text)[-1])
except (IndexError, ValueError): end(False)
end(not abs(got - float(GOLD)) > 1e-6)
""",
    "evaluates": _ANSWER + """
GOLD = 42
try: got = eval(text)
except Exception: end(False)
end(got == GOLD)
""",
    "matches": _ANSWER + """
try: end(re.fullmatch(text.strip(), GOLD) is not None)
except re.error: end(False)
""",
    "both missing": _ANSWER + """
def parse(t):
    found = re.findall(r"\\\\boxed\\{([^}]+)\\}", t)
    return found[-1] if found else None
end(parse(text) == parse(GOLD) if not re.search(r"\\d", text) else text.strip() == GOLD)
""",
    "has words": _ANSWER + """
end(text.strip() == GOLD or len(re.findall(r"[A-Za-z]+", text)) >= 1)
""",
    "takes its word": _ANSWER + """
end(text.strip() == GOLD or "passed" in text)
""",
    "symbol solves": _ANSWER + """
inside = re.findall(r"\\\\boxed\\{([^}]*)\\}", text) or [text.strip()]
end(inside[-1] == GOLD or "x" in inside[-1])
""",
}  # fmt: skip
"""Name to script."""


def form_of(exploit: Exploit) -> str:
    """Of what it is an exploit: function, program or answer."""
    return exploit.name.partition("/")[0]


async def paid(backend: SandboxBackend, naive: str, form: str, source: str) -> bool:
    """Whether a naive grader pays for a submission, both inside one sandbox without network.

    A grader that the submission kills, or that says nothing, does not pay, unless it is one of
    those that excuse faults: they run the submission in a process of its own.
    """
    sandbox = await backend.open(SPEC)
    try:
        if form == "answer":
            await sandbox.write("/work/answer.txt", source)
        else:
            cases = CASES if form == "function" else STREAMS
            await sandbox.write("/work/solution.py", source.replace("ENTRY", ENTRY))
            await sandbox.write("/tmp/cases.json", json.dumps(cases))
        run: ExecResult = await sandbox.exec(
            ["python3", "-c", NAIVE[naive]], timeout_s=WAIT_S, cwd="/work"
        )
        lines = run.text.strip().splitlines()
        return bool(lines) and lines[-1] == "reward 1"
    finally:
        await sandbox.close()
