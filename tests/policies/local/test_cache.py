import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from quintain.policies.local.cache import build_once

BUILDER = """
import sys, time
from pathlib import Path
from quintain.policies.local.cache import build_once

def build(folder):
    (folder / "part").write_text("half")
    print("building", flush=True)
    time.sleep(float(sys.argv[2]))
    (folder / "part").write_text("whole")

print(build_once("thing", build, root=Path(sys.argv[1])), flush=True)
"""


def test_it_is_built_once_also_by_threads_at_once(tmp_path):
    built = []

    def build(folder):
        built.append(folder)
        time.sleep(0.05)
        (folder / "file").write_text("x")

    threads = [
        threading.Thread(target=build_once, args=("a", build), kwargs={"root": tmp_path})
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert (tmp_path / "a" / "file").read_text() == "x"


def test_a_failed_build_keeps_nothing(tmp_path):
    def build(folder):
        (folder / "file").write_text("x")
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        build_once("a", build, root=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".a.lock"]


def test_a_killed_builder_leaves_no_half_folder(tmp_path):
    killed = subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(tmp_path), "60"], stdout=subprocess.PIPE, text=True
    )
    assert killed.stdout.readline() == "building\n"
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert not (tmp_path / "thing").exists()
    subprocess.run([sys.executable, "-c", BUILDER, str(tmp_path), "0"], check=True)
    assert (tmp_path / "thing" / "part").read_text() == "whole"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".thing.lock", "thing"]
