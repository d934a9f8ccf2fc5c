#!/usr/bin/env bash
# Runs the tests of the container backends over engines of their own: a Docker engine and a Podman
# service on private sockets, in a private folder, and the runtimes runc, crun and runsc. Installs
# what is missing (Debian). At the end everything that was started is stopped and removed, and what
# is left is listed.
#
#   PYTEST_FLAGS=...    passed to pytest
#   BACKENDS="docker runc"    only those
#   ATTACKS=all         the attack suite on every backend, not on docker and runc only: an engine
#                       and a runtime, with which the others share all our code
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

BACKENDS=${BACKENDS:-docker podman runc crun gvisor}
ATTACKS=${ATTACKS:-docker runc}
PYTHON=${PYTHON:-.venv/bin/python}

skip() { echo "container tests skipped: $1"; exit 0; }
[ "$(uname -s)" = Linux ] || skip "they need Linux"
[ "$(id -u)" = 0 ] || skip "they need root"

# --- what is needed -------------------------------------------------------------------------------

declare -A package=([dockerd]=docker.io [podman]=podman [runc]=runc [crun]=crun [runsc]=runsc
                    [busybox]=busybox-static [unshare]=util-linux)
missing=()
for program in "${!package[@]}"; do
  PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || missing+=("${package[$program]}")
done
if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || skip "not installed, and no apt-get: ${missing[*]}"
  echo "installing ${missing[*]}"
  # A package's own service is not to be started: the tests start theirs.
  policy=/usr/sbin/policy-rc.d
  [ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' >$policy; chmod 755 $policy; made_policy=1; }
  log=$(mktemp)
  install() { DEBIAN_FRONTEND=noninteractive apt-get -y -qq install --no-install-recommends "${missing[@]}"; }
  (install || { apt-get -qq update && install; }) >"$log" 2>&1 || { tail -20 "$log"; failed=1; }
  [ -z "${made_policy:-}" ] || rm -f $policy
  rm -f "$log"
  [ -z "${failed:-}" ] || skip "apt-get could not install ${missing[*]}"
fi
export PATH=$PATH:/usr/sbin

# --- engines of our own ---------------------------------------------------------------------------

folder=$(mktemp -d /tmp/quintain-engines.XXXXXX)
chmod 711 "$folder"
pids=()

groups() {
  find /sys/fs/cgroup -type d \( -name "${folder##*/}*" -o -name 'libpod_parent*' \) 2>/dev/null | sort
}
before=$(groups)
new_groups() { comm -13 <(echo "$before") <(groups) | grep . || true; }

left() {
  local found
  found=$(
    grep -l "${folder/quintain/[q]uintain}" /proc/[0-9]*/cmdline 2>/dev/null || true
    grep -F "$folder" /proc/self/mounts || true
    new_groups
    for path in /run/quintain/*; do  # what has a living owner is another run's
      owner=${path##*/}
      [ ! -e "$path" ] || kill -0 "${owner%%-*}" 2>/dev/null || echo "$path"
    done
    ls -d "$folder" 2>/dev/null || true
  )
  echo "left behind by these tests (processes, mounts, control groups, folders): ${found:-nothing}"
}

stop() {
  trap - EXIT
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do
    for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -9 "$pid" 2>/dev/null || true
  done
  for _ in $(seq 50); do pgrep -f "$folder" >/dev/null || break; sleep 0.1; done
  awk '{print $2}' /proc/self/mounts | grep -F "$folder" | sort -r | xargs -r -n1 umount -l || true
  "$PYTHON" -c 'from quintain.sandbox.engines import oci; oci.sweep()' || true
  new_groups | while read -r group; do find "$group" -depth -type d -exec rmdir {} + || true; done
  rm -rf "$folder"
  left
}
trap 'stop' EXIT
trap 'exit 130' INT TERM

wait_for() {
  for _ in $(seq 150); do [ -S "$1" ] && return 0; sleep 0.2; done
  echo "no socket at $1:"; tail -20 "$2"; return 1
}

case " $BACKENDS " in *" docker "*)
  export DOCKER_HOST=unix://$folder/docker.sock
  setsid dockerd --host "$DOCKER_HOST" --data-root "$folder/docker" --exec-root "$folder/exec" \
    --pidfile "$folder/docker.pid" --cgroup-parent "${folder##*/}" --bridge none \
    --iptables=false --ip6tables=false >"$folder/docker.log" 2>&1 &
  pids+=($!)
  wait_for "$folder/docker.sock" "$folder/docker.log" ;;
esac
case " $BACKENDS " in *" podman "*)
  export CONTAINER_HOST=unix://$folder/podman.sock
  printf '[containers]\ndefault_ulimits = ["nofile=4096:4096"]\n' >"$folder/containers.conf"
  mkdir "$folder/tmp"
  CONTAINERS_CONF=$folder/containers.conf TMPDIR=$folder/tmp \
    setsid env -u CONTAINER_HOST podman --root "$folder/podman" \
    --runroot "$folder/podman-run" --runtime runc --cgroup-manager cgroupfs \
    system service --time 0 "$CONTAINER_HOST" >"$folder/podman.log" 2>&1 &
  pids+=($!)
  wait_for "$folder/podman.sock" "$folder/podman.log" ;;
esac

# --- the tests ------------------------------------------------------------------------------------

export QUINTAIN_TEST_ENGINES=$BACKENDS PYTHONPATH=$PWD/src
marks=${BACKENDS// / or }
status=0
# shellcheck disable=SC2086
"$PYTHON" -m pytest -q -n 2 --dist loadfile -m "($marks) and not slow" tests/sandbox/engines \
  ${PYTEST_FLAGS:-} || status=$?
for backend in $BACKENDS; do
  case " $ATTACKS " in *" $backend "* | " all ") ;; *) continue ;; esac
  echo "attacks on $backend"
  # shellcheck disable=SC2086
  "$PYTHON" -m pytest -q -n 2 --dist loadfile tests/redteam/sandbox --backend "$backend" \
    ${PYTEST_FLAGS:-} || status=$?
done
exit $status
