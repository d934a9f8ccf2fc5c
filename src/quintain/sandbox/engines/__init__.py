"""Container backends: Docker and Podman over the Engine API, and OCI runtimes (runc, crun, gVisor).

All of them start one small static program as the container's first process (`agent.c`) and speak
with it over the container's stdin and stdout (`frames.py`, `contained.py`): commands, files, limits
and exit codes are the same whatever started the container.
"""
