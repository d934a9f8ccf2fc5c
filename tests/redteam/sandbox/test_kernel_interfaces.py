"""Attack: write to interfaces of the kernel (the control: the value that was just read)."""

from __future__ import annotations

CODE = """
import sys
for path in sys.argv[1:]:
    try:
        value = open(path).read()
        with open(path, "w") as file:
            file.write(value)
        print("wrote", path)
    except OSError as error:
        print(error.strerror, path)
"""
PATHS = (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/kernel/hostname",
    "/proc/sys/net/ipv4/ip_forward",
)


async def test_settings(sandbox, unprotected, python, as_root):
    control = unprotected(python(CODE, *PATHS, inside=False))
    assert control.stdout.count("wrote") == len(PATHS), control
    run = await sandbox.exec(python(CODE, *PATHS, inside=True))
    assert "wrote" not in run.text, run


async def test_as_root_inside(open_sandbox, python):
    sandbox = await open_sandbox(user="root")
    run = await sandbox.exec(python(CODE, *PATHS, inside=True))
    assert "wrote" not in run.text, run


async def test_no_trigger(sandbox):
    script = "test -w /proc/sysrq-trigger && echo >/proc/sysrq-trigger && echo writable"
    run = await sandbox.exec(["sh", "-c", script])
    assert run.text == "", run


async def test_nothing_below_sys_can_be_written(sandbox):
    script = "test -d /sys && find /sys -type f -writable 2>/dev/null | head -3"
    run = await sandbox.exec(["sh", "-c", script])
    assert run.text == "", run


async def test_no_sys(sandbox, native_only):
    run = await sandbox.exec(["sh", "-c", "ls /sys"])
    assert run.text == "", run
