"""Attack: trace another process, and read its memory."""

from __future__ import annotations


async def test_trace(system_call):
    control, inside = await system_call("ptrace", 0, 0, 0, 0)
    assert control == "allowed 0"
    assert inside == "refused"
    for name in ("process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp"):
        assert (await system_call(name, -1, -1, -1, -1, -1, -1))[1] == "refused"


async def test_memory_of_the_supervisor(sandbox):
    script = "cat /proc/1/mem /proc/1/environ /proc/1/maps; ls /proc/1/fd /proc/2/fd; echo end"
    run = await sandbox.exec(["sh", "-c", script])
    assert run.text == "end\n", run
