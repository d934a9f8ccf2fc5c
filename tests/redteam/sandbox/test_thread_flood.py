"""Attack: start threads without end (the control: three hundred)."""

from __future__ import annotations

CODE = """
import threading
stop, made = threading.Event(), 0
try:
    while made < 300:
        threading.Thread(target=stop.wait).start()
        made += 1
except RuntimeError as error:
    print(error)
stop.set()
print(made)
"""


async def test_threads(open_sandbox, unprotected, python):
    assert unprotected(python(CODE, inside=False)).stdout.strip() == "300"
    sandbox = await open_sandbox(max_pids=40)
    run = await sandbox.exec(python(CODE, inside=True))
    assert "can't start new thread" in run.text, run
    assert int(run.text.split()[-1]) < 40
