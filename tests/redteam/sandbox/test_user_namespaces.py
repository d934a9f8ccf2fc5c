"""Attack: a user namespace, to gain capabilities over a world of one's own."""

from __future__ import annotations


async def test_unshare(sandbox, unprotected):
    attack = ["unshare", "--user", "--map-root-user", "id", "-u"]
    assert unprotected(attack).stdout.strip() == "0"
    run = await sandbox.exec(attack)
    assert not run.ok
    assert "Operation not permitted" in run.error_text, run


async def test_clone(sandbox, unprotected, python):
    code = (
        "import ctypes, os\n"
        "pid = ctypes.CDLL(None).syscall({'x86_64': 56, 'aarch64': 220}[os.uname().machine],"
        "0x10000000 | 17, 0, 0, 0, 0)\n"
        "if pid == 0: os._exit(0)\n"
        "print('cloned' if pid > 0 else 'refused')\n"
    )
    assert unprotected(python(code, inside=False)).stdout == "cloned\n"
    assert (await sandbox.exec(python(code, inside=True))).text == "refused\n"


async def test_the_kernel_itself_allows_none(sandbox, native_only):
    run = await sandbox.exec(["cat", "/proc/sys/user/max_user_namespaces"])
    assert run.text == "0\n"
