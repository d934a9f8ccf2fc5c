"""Attack: names as weapons: a very deep tree, odd names, for whoever lists or deletes them."""

from __future__ import annotations

DEEP = """
import os
for _ in range(300):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
print("deep")
"""


async def test_deep_tree(tmp_path, sandbox, unprotected, python):
    control = unprotected(python(DEEP, inside=False), cwd=tmp_path)
    assert control.stdout == "deep\n"
    unprotected(["rm", "-rf", str(tmp_path / ("d" * 200))])
    run = await sandbox.exec(python(DEEP, inside=True))
    assert run.text == "deep\n", run
    await sandbox.write("after", "x")
    await sandbox.close()
