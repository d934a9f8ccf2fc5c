"""The one class `Environment`: tasks, verifier, tools, sandbox. An eval is the same object.

Evaluating runs it k times and summarises, training runs it G times and updates.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from quintain import registry
from quintain.envs.episode import ToolEpisode
from quintain.envs.tasks import as_source
from quintain.envs.tools import FunctionTool, as_tools
from quintain.errors import ConfigError
from quintain.messages import Message, Sampling, system
from quintain.protocols import Episode, Sandbox, TaskSource, Tool, Verifier
from quintain.record import Json
from quintain.task import Limits, PublicTask, SandboxSpec, Task

OpenEpisode = Callable[[PublicTask, Json, Sandbox | None, int], Episode | Awaitable[Episode]]
Script = Sequence[Message | str]
"""What a policy says in one episode, message by message; a string is a message of text."""


class Environment:
    """Task distribution, verifier, tools and sandbox in one.

    Args:
        tasks: a `TaskSource`, or any iterable of tasks or of their fields (see `quintain.tasks`).
        verifier: a `Verifier`, a plain function, or a registered name.
        name: what its trajectories are stored under.
        tools: functions or `Tool`s.
        sandbox: where tools and verifier run; None: no sandbox. `True`: the default spec.
        limits: of every episode, unless the task has its own.
        system_prompt: put before every task's prompt.
        sampling: how the policy samples unless the caller says otherwise.
        graded: whether rewards between 0 and 1 are allowed; by default they are refused.
        artifacts: paths in the sandbox that are kept with the trajectory when present.
        episode: makes the episode instead of the default one, from (task, world, sandbox, seed);
            sync or async.
        oracle: a script that solves a task: checks play it and demand reward 1.
        fakes: scripts that look like solutions and are none: checks demand reward 0.
        demonstrations: (n, seed) to n whole conversations on train tasks, for a supervised start.

    Raises:
        ConfigError: a tool needs a sandbox and there is none, or an argument is of the wrong kind.
    """

    def __init__(
        self,
        tasks: TaskSource | Iterable[Task | dict[str, Any]],
        verifier: Verifier | Callable[..., Any] | str,
        *,
        name: str = "environment",
        tools: Sequence[Tool | Callable[..., Any]] = (),
        sandbox: SandboxSpec | bool | None = None,
        limits: Limits | None = None,
        system_prompt: str | None = None,
        sampling: Sampling | None = None,
        graded: bool = False,
        artifacts: Sequence[str] = (),
        episode: OpenEpisode | None = None,
        oracle: Callable[[Task], Script] | None = None,
        fakes: Callable[[Task], Sequence[Script]] | None = None,
        demonstrations: Callable[[int, int], list[list[Message]]] | None = None,
    ) -> None:
        self.name = name
        self.tasks = as_source(tasks)
        self.verifier: Verifier = (
            verifier
            if isinstance(verifier, Verifier)
            else registry.verifiers.get("function")(verifier)
        )
        self.tools = as_tools(tools)
        self.sandbox = _spec(sandbox)
        self.limits = limits or Limits()
        self.sampling = sampling or Sampling()
        self.graded = graded
        self.artifacts = tuple(artifacts)
        self.oracle = oracle
        self.fakes = fakes
        self.demonstrations = demonstrations
        self._system = () if system_prompt is None else (system(system_prompt),)
        self._open_episode = episode
        if self.sandbox is None:
            for tool in self.tools:
                if isinstance(tool, FunctionTool) and tool.needs_sandbox:
                    raise ConfigError(
                        f"tool {tool.spec.name!r} needs a sandbox: give the environment "
                        "sandbox=SandboxSpec(...) or sandbox=True"
                    )

    async def open(
        self, task: PublicTask, world: Json, sandbox: Sandbox | None, seed: int
    ) -> Episode:
        """A single-use episode of the task."""
        if self._open_episode is not None:
            # Samples of one task must not share what an episode may change.
            made = self._open_episode(task, copy.deepcopy(world), sandbox, seed)
            return await made if inspect.isawaitable(made) else made
        return ToolEpisode(
            self._system + task.prompt,
            self.tools,
            task=task,
            world=world,
            sandbox=sandbox,
            seed=seed,
        )


def _spec(sandbox: SandboxSpec | bool | None) -> SandboxSpec | None:
    if sandbox is True:
        return SandboxSpec()
    if sandbox is None or sandbox is False:
        return None
    if not isinstance(sandbox, SandboxSpec):
        raise ConfigError(f"sandbox is a SandboxSpec, True or None, got {sandbox!r}")
    return sandbox
