"""Quintain: RL environments and verifiers for LLM agents, in one package.

Write a task once, with its verifier; attack the verifier; run the task as an eval; train on it;
pick the checkpoint that deserves to ship::

    import quintain as q

    env = q.Environment(
        tasks=[{"prompt": "What is 2 + 3?", "answer": "5"}],
        verifier=lambda text, answer: text.strip() == answer,
    )
    run = q.evaluate(env, q.chat("Qwen3-8B", base_url="http://localhost:8000/v1"), split="train")
    print(run.pass_at(1), run.outcomes)

Names are loaded when first used: importing this package is cheap and touches nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quintain import registry

if TYPE_CHECKING:
    from quintain.audits import aaudit, audit
    from quintain.envs import tasks, tools
    from quintain.envs.environment import Environment
    from quintain.envs.tools import tool
    from quintain.evals import EvalRun, aevaluate, arescore, evaluate, rescore
    from quintain.evals.review import Review
    from quintain.loop import TrainRun, atrain, train
    from quintain.messages import Message, Sampling, ToolSpec
    from quintain.policies.chat import chat
    from quintain.policies.local import local
    from quintain.policies.scripted import Scripted as scripted
    from quintain.rollouts.single import arollout, rollout
    from quintain.store import Store
    from quintain.task import Limits, NetworkPolicy, SandboxSpec, Split, Task
    from quintain.trajectory import StopReason, Trajectory
    from quintain.verdict import Check, Outcome, Verdict
    from quintain.verifiers.answer import Answer
    from quintain.verifiers.calls import Calls
    from quintain.verifiers.combine import all_of, any_of, gated, majority, weighted
    from quintain.verifiers.database import Database
    from quintain.verifiers.flag import Flag
    from quintain.verifiers.function import verifier
    from quintain.verifiers.guards import guarded
    from quintain.verifiers.judge import Judge
    from quintain.verifiers.pairwise import Pairwise
    from quintain.verifiers.proof import Proof
    from quintain.verifiers.rules import Rules, Similarity
    from quintain.verifiers.server_state import Server
    from quintain.verifiers.service import Service
    from quintain.verifiers.smt import Smt
    from quintain.verifiers.sql import Sql
    from quintain.verifiers.state import Files, World
    from quintain.verifiers.tests import Tests
    from quintain.verifiers.types import Types
    from quintain.verifiers.unseen import UnseenData

__version__ = "0.1.0"

_WHERE = {
    "Answer": "quintain.verifiers.answer:Answer",
    "Calls": "quintain.verifiers.calls:Calls",
    "Check": "quintain.verdict:Check",
    "Database": "quintain.verifiers.database:Database",
    "Environment": "quintain.envs.environment:Environment",
    "EvalRun": "quintain.evals:EvalRun",
    "Files": "quintain.verifiers.state:Files",
    "Flag": "quintain.verifiers.flag:Flag",
    "Judge": "quintain.verifiers.judge:Judge",
    "Limits": "quintain.task:Limits",
    "Message": "quintain.messages:Message",
    "NetworkPolicy": "quintain.task:NetworkPolicy",
    "Outcome": "quintain.verdict:Outcome",
    "Pairwise": "quintain.verifiers.pairwise:Pairwise",
    "Proof": "quintain.verifiers.proof:Proof",
    "Review": "quintain.evals.review:Review",
    "Rules": "quintain.verifiers.rules:Rules",
    "Sampling": "quintain.messages:Sampling",
    "SandboxSpec": "quintain.task:SandboxSpec",
    "Server": "quintain.verifiers.server_state:Server",
    "Service": "quintain.verifiers.service:Service",
    "Similarity": "quintain.verifiers.rules:Similarity",
    "Smt": "quintain.verifiers.smt:Smt",
    "Split": "quintain.task:Split",
    "Sql": "quintain.verifiers.sql:Sql",
    "StopReason": "quintain.trajectory:StopReason",
    "Store": "quintain.store:Store",
    "Task": "quintain.task:Task",
    "Tests": "quintain.verifiers.tests:Tests",
    "ToolSpec": "quintain.messages:ToolSpec",
    "TrainRun": "quintain.loop:TrainRun",
    "Trajectory": "quintain.trajectory:Trajectory",
    "Types": "quintain.verifiers.types:Types",
    "UnseenData": "quintain.verifiers.unseen:UnseenData",
    "Verdict": "quintain.verdict:Verdict",
    "World": "quintain.verifiers.state:World",
    "aaudit": "quintain.audits:aaudit",
    "aevaluate": "quintain.evals:aevaluate",
    "all_of": "quintain.verifiers.combine:all_of",
    "any_of": "quintain.verifiers.combine:any_of",
    "arescore": "quintain.evals:arescore",
    "arollout": "quintain.rollouts.single:arollout",
    "atrain": "quintain.loop:atrain",
    "audit": "quintain.audits:audit",
    "chat": "quintain.policies.chat:chat",
    "evaluate": "quintain.evals:evaluate",
    "gated": "quintain.verifiers.combine:gated",
    "guarded": "quintain.verifiers.guards:guarded",
    "local": "quintain.policies.local:local",
    "majority": "quintain.verifiers.combine:majority",
    "rescore": "quintain.evals:rescore",
    "rollout": "quintain.rollouts.single:rollout",
    "scripted": "quintain.policies.scripted:Scripted",
    "tasks": "quintain.envs:tasks",
    "tool": "quintain.envs.tools:tool",
    "tools": "quintain.envs:tools",
    "train": "quintain.loop:train",
    "verifier": "quintain.verifiers.function:verifier",
    "weighted": "quintain.verifiers.combine:weighted",
}

__all__ = [
    "Answer",
    "Calls",
    "Check",
    "Database",
    "Environment",
    "EvalRun",
    "Files",
    "Flag",
    "Judge",
    "Limits",
    "Message",
    "NetworkPolicy",
    "Outcome",
    "Pairwise",
    "Proof",
    "Review",
    "Rules",
    "Sampling",
    "SandboxSpec",
    "Server",
    "Service",
    "Similarity",
    "Smt",
    "Split",
    "Sql",
    "StopReason",
    "Store",
    "Task",
    "Tests",
    "ToolSpec",
    "TrainRun",
    "Trajectory",
    "Types",
    "UnseenData",
    "Verdict",
    "World",
    "__version__",
    "aaudit",
    "aevaluate",
    "all_of",
    "any_of",
    "arescore",
    "arollout",
    "atrain",
    "audit",
    "chat",
    "evaluate",
    "gated",
    "guarded",
    "local",
    "majority",
    "rescore",
    "rollout",
    "scripted",
    "tasks",
    "tool",
    "tools",
    "train",
    "verifier",
    "weighted",
]


def __getattr__(name: str) -> Any:
    target = _WHERE.get(name)
    if target is None:
        raise AttributeError(f"module 'quintain' has no attribute {name!r}")
    value = registry.load(target)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
