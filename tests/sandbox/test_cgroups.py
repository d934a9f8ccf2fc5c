"""Finding control groups: on this host, and on trees laid out as the kernel documents them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from quintain.sandbox import cgroups, wire
from quintain.task import SandboxSpec


def _tree(root, cgroup, mounts):
    proc = root / "proc" / "self"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text(cgroup)
    (proc / "mountinfo").write_text(mounts)


def _steps(plan):
    return [
        (step, [s.decode() for s in strings])
        for step, _, _, _, _, strings in wire.steps(bytes(plan.data))
    ]


def test_version_2_with_a_delegated_group(tmp_path):
    """Unverified on a live kernel here: this host has version 1 only."""
    group = tmp_path / "sys/fs/cgroup/user.slice/own.scope"
    group.mkdir(parents=True)
    (group / "cgroup.subtree_control").write_text("")
    (group.parent / "cgroup.subtree_control").write_text("cpu memory pids")
    line = "30 20 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
    _tree(tmp_path, "0::/user.slice/own.scope\n", line)
    found = cgroups.find(str(tmp_path))
    assert found.version == 2
    assert not found.missing
    assert found.places() == [str(group.parent)]
    plan = wire.Plan()
    cgroups.limit(plan, found, "q", 7, SandboxSpec(memory_mb=10, disk_mb=6, cpus=0.5), "/host")
    steps = _steps(plan)
    folder = f"/host{group.parent}/q/00000007"
    assert steps[0] == (wire.MKDIR, [folder])
    assert (wire.WRITE, [f"{folder}/memory.max", str(16 << 20)]) in steps
    assert (wire.WRITE, [f"{folder}/memory.swap.max", "0"]) in steps
    assert (wire.WRITE, [f"{folder}/cpu.max", "50000 100000"]) in steps
    assert (wire.WRITE, [f"{folder}/pids.max", "128"]) in steps
    assert (wire.JOIN, [f"{folder}/cgroup.procs"]) in steps


def test_version_2_without_delegation_is_told(tmp_path):
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "cgroup.subtree_control").write_text("hugetlb")
    _tree(tmp_path, "0::/\n", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    found = cgroups.find(str(tmp_path))
    assert (found.version, set(found.missing)) == (0, {"memory", "pids", "cpu"})
    assert "delegated" in found.missing["memory"]


def test_no_groups_at_all(tmp_path):
    _tree(tmp_path, "", "")
    found = cgroups.find(str(tmp_path))
    assert (found.version, found.folders) == (0, {})


@pytest.mark.skipif(
    os.geteuid() != 0 or not cgroups.find().folders, reason="needs writable control groups"
)
def test_the_groups_of_a_dead_owner_are_swept():
    groups = cgroups.find()
    code = "import os; from quintain.sandbox import cgroups; print(cgroups.owner_name())"
    name = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    made = []
    for place in groups.places():
        folder = os.path.join(place, name.strip() + ".x")
        os.makedirs(os.path.join(folder, "1"))
        made.append(folder)
    living = [os.path.join(place, cgroups.owner_name()) for place in groups.places()]
    for folder in living:
        os.mkdir(folder)
    try:
        removed = cgroups.sweep(groups)
        assert set(made) <= set(removed)
        assert not any(os.path.exists(folder) for folder in made)
        assert all(os.path.exists(folder) for folder in living)
    finally:
        for folder in living:
            os.rmdir(folder)


def test_an_owner_in_another_pid_namespace_is_left_alone():
    """Whose PID names nobody here may live: its groups are not for this process to sweep."""
    mine = cgroups.owner_name()
    assert cgroups.is_alive(mine)
    assert cgroups.is_alive(f"{mine}.more.1")
    left, _, space = mine.rpartition(".")
    dead = f"{cgroups.PREFIX}{2**22 - 1}-1"
    assert not cgroups.is_alive(f"{dead}.{space}")
    assert not cgroups.is_alive(f"{dead}.{space}.vm1")
    assert cgroups.is_alive(f"{dead}.{int(space) + 1}")
    assert not cgroups.is_alive(f"{left}1.{space}")
