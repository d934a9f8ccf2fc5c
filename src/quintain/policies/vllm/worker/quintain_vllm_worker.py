"""What runs inside a vLLM worker: takes published weights, folds adapters in, says what it loaded.

Loaded by vLLM by name (`--worker-extension-cls quintain_vllm_worker.Worker`), with this folder on
its PYTHONPATH. It needs torch and safetensors, which vLLM brings, and nothing of Quintain: the two
may live in different environments.

The file of published weights holds what is trained: plain parameters, or pairs `NAME.lora_a` and
`NAME.lora_b` beside a frozen `NAME.weight`. Whatever it does not hold comes from the base folder,
so that a reload is always whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open


class Worker:
    """Mixed into vLLM's own worker class."""

    model_runner: Any

    def quintain_update(
        self, path: str, base: str, scale: float, dtype: str, expected: str
    ) -> dict[str, Any]:
        """Replaces the weights in use.

        Args:
            path: the published safetensors file.
            base: the model's folder.
            scale: what the product of a pair of adapters is multiplied with.
            dtype: in which weights are computed with.
            expected: hash that the file was published under.

        Returns:
            `hash` of the tensors that were loaded, or `error`, and then nothing has changed.
        """
        try:
            trained = _read(Path(path))
            digest = _hash(trained)
            if digest != expected:
                return {"error": f"{path} holds weights {digest}, not {expected} as published"}
            _check_names(trained, Path(base), path)
        except Exception as error:
            return {"error": f"cannot read weights from {path}: {error}"}
        tensors = _whole(trained, Path(base), scale, getattr(torch, dtype))
        self.model_runner.reload_weights(weights_iterator=tensors)
        return {"hash": digest}


def _read(path: Path) -> dict[str, torch.Tensor]:
    with safe_open(str(path), framework="pt", device="cpu") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _base_names(base: Path) -> dict[str, Path]:
    """Which file of a model's folder holds which tensor."""
    found: dict[str, Path] = {}
    for path in sorted(base.glob("*.safetensors")):
        with safe_open(str(path), framework="pt", device="cpu") as file:
            found.update({name: path for name in file.keys()})  # noqa: SIM118
    return found


def _check_names(trained: Mapping[str, torch.Tensor], base: Path, path: str) -> None:
    known = _base_names(base)
    wanted = {name.removesuffix(".lora_a").removesuffix(".lora_b") for name in trained}
    missing = sorted(n for n in wanted if n not in known and f"{n}.weight" not in known)
    if missing:
        raise ValueError(f"{base} has no {', '.join(missing[:3])} ({len(missing)} in all)")


def _whole(
    trained: Mapping[str, torch.Tensor], base: Path, scale: float, dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the model under the published weights, by name."""
    for name, path in _base_names(base).items():
        if name in trained:
            yield name, trained[name].to(dtype)
            continue
        with safe_open(str(path), framework="pt", device="cpu") as file:
            tensor = file.get_tensor(name).to(dtype)
        layer = name.removesuffix(".weight")
        if f"{layer}.lora_a" in trained:
            delta = (trained[f"{layer}.lora_b"] @ trained[f"{layer}.lora_a"]) * scale
            tensor = (tensor.float() + delta).to(dtype)
        yield name, tensor


def _hash(tensors: Mapping[str, torch.Tensor]) -> str:
    """Hex BLAKE2b of names, dtypes, shapes and bytes, as the learner computes it."""
    hasher = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        hasher.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        hasher.update(tensor.view(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()
