#!/usr/bin/env bash
# Makes the virtual environment, or says in one line what is missing. Called by the Makefile.
set -euo pipefail
python="${PYTHON:-python3}"
venv="${VENV:-.venv}"

if ! command -v "$python" >/dev/null; then
    echo "no $python on the PATH: install Python 3.11 or newer, or run make PYTHON=/path/to/python" >&2
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "$("$python" --version) is too old: Quintain needs 3.11 or newer (make PYTHON=python3.12)" >&2
    exit 1
fi
# Debian ships Python without what `venv` needs; only root may add it.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    package="python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package"
    else
        echo "$python cannot make virtual environments: install $package (apt-get install $package)" >&2
        exit 1
    fi
fi
"$python" -m venv "$venv"
