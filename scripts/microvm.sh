#!/usr/bin/env bash
# Fetches what microVMs need (Debian packages as root, the guest's kernel into the user's cache), runs
# their tests, and shows that nothing is left running. Called by `make microvm`.
set -euo pipefail
python="${PYTHON:-.venv/bin/python}"

need() {  # program, Debian package
    command -v "$1" >/dev/null || missing+=("$2")
}
missing=()
need qemu-system-x86_64 qemu-system-x86
need mksquashfs squashfs-tools
need cc gcc
[ "${#missing[@]}" = 0 ] || {
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" libc6-dev
    else
        echo "missing: apt-get install ${missing[*]} libc6-dev" >&2
        exit 1
    fi
}
"$python" - <<'PYTHON'
from quintain.sandbox.microvm import kernel

if not (kernel.folder() / "vmlinuz").is_file():
    print("fetching the guest's kernel into", kernel.fetch())
PYTHON

machines() { pgrep -c -x qemu-system-x86 || true; }
before=$(machines)
status=0
# shellcheck disable=SC2086
"$python" -m pytest -q -m microvm tests/sandbox/microvm ${PYTEST_FLAGS:-} || status=$?
after=$(machines)
echo "virtual machines running: $before before, $after after"
[ "$after" -le "$before" ] || status=1
exit "$status"
