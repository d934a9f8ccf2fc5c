"""`Vllm`: a policy whose tokens a vLLM server samples, under weights that a learner publishes.

Everything that makes tokens exact is `TokenPolicy`'s; what differs is who samples. The server is
started at the first call, in an environment that has vLLM, or is one that runs already.

Not promised, as vLLM does not: equal seeds give equal samples only while batches are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from quintain.errors import ConfigError
from quintain.policies.local.folders import model_folder
from quintain.policies.local.spec import Dtype, ModelSpec, best_dtype
from quintain.policies.local.tokens import Engine, TokenPolicy
from quintain.policies.vllm.engine import VllmEngine
from quintain.policies.vllm.server import Server, arguments, environment, find_python


class Vllm(TokenPolicy):
    """A policy over a vLLM server: see the module's docstring.

    Args:
        spec: which model; its `threads` are those of vLLM on a CPU.
        python: the interpreter of the environment that vLLM is installed in; None: this one.
        base_url: of a server that runs already ("http://host:8000"). It must have been started with
            `command`'s arguments and environment, be used by nobody else, and see the learner's
            files under the same paths.
        options: further arguments of the server, as on its command line.
        name: how it is called in records; None: the source's last part.
        max_tokens: sampled in one call where `Sampling.max_tokens` says nothing.
        tool_format: "tags" or "json": see `quintain.policies.local.toolcalls`.
        slots: sequences decoded at once.
        cache_gb: of keys and values, on a CPU; on a GPU vLLM takes what is free.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        python: str | None = None,
        base_url: str | None = None,
        options: Sequence[str] = (),
        name: str | None = None,
        max_tokens: int = 256,
        tool_format: str = "tags",
        slots: int = 64,
        cache_gb: int = 1,
    ) -> None:
        if slots < 1 or cache_gb < 1:
            raise ConfigError("slots and cache_gb are at least 1")
        if base_url is not None and (python is not None or options):
            raise ConfigError("python and options are for a server that is started here")
        super().__init__(spec, name=name, max_tokens=max_tokens, tool_format=tool_format)
        self._python, self._base_url, self._options = python, base_url, tuple(options)
        self._slots, self._cache_gb = slots, cache_gb

    def _spawn(self) -> Engine:
        if self._base_url is not None:
            return VllmEngine(None, self._base_url)
        python = find_python(self._python)
        told = [*arguments(self.spec, model_folder(self.spec), self._slots), *self._options]
        return VllmEngine(Server(python, told, environment(self.spec, self._cache_gb)))


def command(spec: ModelSpec, *, slots: int = 64, cache_gb: int = 1) -> str:
    """The shell command that starts a server for `base_url`, without host and port."""
    import os
    import shlex

    told = arguments(spec, model_folder(spec), slots)
    changed = {
        name: value
        for name, value in environment(spec, cache_gb).items()
        if os.environ.get(name) != value
    }
    words = [f"{name}={shlex.quote(value)}" for name, value in changed.items()]
    words += ["python", "-m", "vllm.entrypoints.openai.api_server", *map(shlex.quote, told)]
    return " ".join(words)


def vllm(
    source: str | Path,
    *,
    lora: int | None = None,
    lora_alpha: float | None = None,
    dtype: Dtype | Literal["auto"] = "auto",
    threads: int | None = None,
    seed: int = 0,
    max_context: int = 2048,
    device: str = "cpu",
    tool_format: str | None = None,
    **settings: Any,
) -> Vllm:
    """A policy over a Hugging Face folder or a built-in model, sampled by vLLM.

    Args:
        source: the folder, or "smollm2" or "tiny".
        lora: rank of the adapters that training adds; they reach the server folded in.
        lora_alpha: None: twice the rank.
        dtype: of weights and activations; "auto" as in `local`.
        threads: of vLLM on a CPU.
        seed: of fresh adapters and of `tiny`'s weights.
        max_context: tokens of prompt and answer together.
        device: "cpu" or "cuda": where vLLM runs, and the learner too unless `train.device` says
            otherwise.
        tool_format: None: "tags" for the built-in models, else "json".
        settings: further arguments of `Vllm`: `python`, `base_url`, `options`, …
    """
    exact = best_dtype(device) if dtype == "auto" else dtype
    spec = ModelSpec(str(source), lora, lora_alpha, exact, threads, seed, max_context, device)
    return Vllm(spec, tool_format=tool_format or spec.tool_format, **settings)
