"""Rollouts by a vLLM server, with weights that arrive after every learner step."""

from quintain.policies.vllm.policy import Vllm, command, vllm
from quintain.policies.vllm.server import WORKER_FOLDER

__all__ = ["WORKER_FOLDER", "Vllm", "command", "vllm"]
