"""The default episode: the prompt, then tool calls answered until the policy stops calling.

A malformed call (unreadable, an unknown tool, wrong arguments) is answered with what is wrong with
it and counted; it is the candidate's doing and never an exception.
"""

from __future__ import annotations

import copy

from quintain.envs.tools import error_result
from quintain.messages import Message, ToolCall, ToolResult, tool_results
from quintain.protocols import Sandbox, Tool, ToolContext
from quintain.record import Json
from quintain.task import PublicTask
from quintain.trajectory import Action, Event, Observation


class ToolEpisode:
    """One play of one task with tools; without tools it is a single turn.

    Args:
        opening: the messages that the policy sees first.
        tools: what it may call.
        task: whose play it is.
        world: host-side state for the tools that ask for it; this episode changes a copy.
        sandbox: where tools run.
        seed: of this rollout.
    """

    def __init__(
        self,
        opening: tuple[Message, ...],
        tools: tuple[Tool, ...],
        *,
        task: PublicTask,
        world: Json,
        sandbox: Sandbox | None,
        seed: int,
    ) -> None:
        self.tools = tools
        self._opening = opening
        self._events: list[Event] = []
        self._context = ToolContext(
            task=task,
            sandbox=sandbox,
            world=copy.deepcopy(world),
            seed=seed,
            event=self._event,
        )
        self._by_name = {tool.spec.name: tool for tool in tools}

    @property
    def world(self) -> Json:
        """The host-side state as the tools left it."""
        return self._context.world

    async def reset(self) -> Observation:
        """The prompt."""
        return Observation(messages=self._opening)

    async def respond(self, action: Action) -> Observation:
        """Answers the calls in their order; an action without calls ends the episode."""
        calls = action.message.tool_calls
        if not calls:
            return Observation(terminated=True)
        results: list[ToolResult] = []
        malformed = 0
        for call in calls:
            wrong = self._wrong(call)
            if wrong:
                malformed += 1
                results.append(error_result(call, wrong))
            else:
                results.append(await self._by_name[call.name].call(call, self._context))
        events, self._events = tuple(self._events), []
        return Observation(messages=(tool_results(*results),), malformed=malformed, events=events)

    def _event(self, kind: str, data: dict[str, Json]) -> None:
        self._events.append(Event(kind=kind, data=data))

    def _wrong(self, call: ToolCall) -> str:
        if call.error:
            return call.error
        tool = self._by_name.get(call.name)
        if tool is None:
            known = ", ".join(self._by_name) or "none"
            return f"there is no tool {call.name!r}; available: {known}"
        return tool.check(call.arguments)

    async def close(self) -> None:
        """Holds nothing."""
