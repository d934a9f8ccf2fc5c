"""Attack: mount something (the control: in namespaces of its own)."""

from __future__ import annotations

SCRIPT = "mount -t tmpfs none /mnt && echo mounted"


async def test_mount(sandbox, unprotected):
    control = unprotected(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", SCRIPT])
    assert control.stdout == "mounted\n", control
    run = await sandbox.exec(["sh", "-c", SCRIPT])
    assert "mounted" not in run.text
    run = await sandbox.exec(
        ["sh", "-c", "umount /proc/cmdline || umount -l /usr; cat /proc/cmdline"]
    )
    assert run.text == "", run


async def test_calls(system_call):
    for name in ("mount", "umount2", "pivot_root", "open_tree"):
        control, inside = await system_call(name, -1, -1, -1, -1, -1)
        assert control.startswith("allowed -1"), "the control reaches the kernel's own check"
        assert inside == "refused", name
