"""A policy that says what it is told to: the fake that tests, audits and benchmarks use.

It costs nothing to speak of: a constant answer is one object, returned again and again. With
`tokens=True` it also reports tokens (the bytes of what it says, sampled with probability 1), so
that everything downstream of sampling can run without a model.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, TypeVar

from quintain.errors import PolicyError, PolicyRefused
from quintain.messages import Message, Sampling, ToolSpec, assistant
from quintain.record import canonical
from quintain.trajectory import Action, TokenSpan, Usage

Answer: TypeAlias = str | Message | Action
Script: TypeAlias = (
    Answer
    | Sequence[Answer]
    | Callable[[Sequence[Message], Sequence[ToolSpec], int], Answer | Awaitable[Answer]]
)

SESSIONS = 65_536
"""How many rollouts are remembered; far more than run at once."""
ROLE_IDS = {"system": 256, "user": 257, "assistant": 258, "tool": 259}
END_ID = 260
"""Ends a message."""
VOCABULARY = 261
"""Token ids are bytes, a role's mark, or the end of a message."""

V = TypeVar("V")


def remember(table: OrderedDict[str, V], key: str, value: V) -> None:
    """Stores under a session's name, forgetting the session that was quiet longest."""
    table[key] = value
    table.move_to_end(key)
    if len(table) > SESSIONS:
        table.popitem(last=False)


def as_action(answer: Answer) -> Action:
    """What a script says, as an action.

    Raises:
        PolicyError: it is neither text nor an assistant message nor an action.
    """
    if isinstance(answer, Action):
        return answer
    if isinstance(answer, str):
        answer = assistant(answer)
    if not isinstance(answer, Message) or answer.role != "assistant":
        raise PolicyError(
            "a script answers with a str, an assistant Message or an Action, "
            f"got {getattr(answer, 'role', type(answer).__name__)!r}"
        )
    finish = "tool_calls" if answer.tool_calls else "stop"
    return Action(message=answer, finish=finish, usage=Usage(calls=1))


def message_ids(message: Message) -> list[int]:
    """The bytes of one message between its role's mark and the end mark."""
    plain = all(part.type == "text" for part in message.content)
    text = message.text if plain else canonical(message.model_dump(mode="json")["content"])
    return [ROLE_IDS[message.role], *text.encode("utf-8", "replace"), END_ID]


class Scripted:
    """Answers from a script.

    Args:
        script: one answer, given always; a list, the n-th answer at the n-th call of a session;
            or a function of (messages, tools, seed), sync or async.
        name: of the policy.
        latency_s: how long each call waits.
        tokens: report byte tokens with every action that has none.

    An answer is a text, an assistant message or an `Action`.
    """

    def __init__(
        self,
        script: Script,
        *,
        name: str = "scripted",
        latency_s: float = 0.0,
        tokens: bool = False,
    ) -> None:
        self.name = name
        self.version = 0
        self.latency_s = latency_s
        self.tokens = tokens
        self._function = script if callable(script) else None
        self._answers: tuple[Action, ...] = ()
        self._always: Action | None = None
        if isinstance(script, str | Message | Action):
            self._always = as_action(script)
        elif not callable(script):
            self._answers = tuple(as_action(answer) for answer in script)
        self._calls: OrderedDict[str, int] = OrderedDict()
        self._seen: OrderedDict[str, int] = OrderedDict()

    async def act(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec],
        sampling: Sampling,
        seed: int,
        session: str,
    ) -> Action:
        """The script's next answer.

        Raises:
            PolicyRefused: a list that has come to its end.
            PolicyError: an answer that is none.
        """
        if self.latency_s:
            await asyncio.sleep(self.latency_s)
        action = self._always
        if action is None and self._function is not None:
            answer = self._function(messages, tools, seed)
            action = as_action(await answer if inspect.isawaitable(answer) else answer)
        if action is None:
            action = self._next(session)
        if self.tokens and not action.tokens:
            return self._with_tokens(action, messages, session)
        return action

    def _next(self, session: str) -> Action:
        index = self._calls.get(session, 0)
        if index >= len(self._answers):
            raise PolicyRefused(
                f"the script of {self.name!r} has {len(self._answers)} answers and was asked for "
                f"number {index + 1} of session {session!r}: add answers, or give a function"
            )
        remember(self._calls, session, index + 1)
        return self._answers[index]

    def _with_tokens(self, action: Action, messages: Sequence[Message], session: str) -> Action:
        """The action with one span; the prompt delta is what came since the last answer."""
        known = self._seen.get(session, 0)
        restart = len(messages) < known
        new = messages if restart else messages[known:]
        remember(self._seen, session, len(messages) + 1)
        prompt = [token for message in new for token in message_ids(message)]
        prompt.append(ROLE_IDS["assistant"])
        ids = message_ids(action.message)[1:]
        span = TokenSpan(
            prompt_delta_ids=tuple(prompt),
            token_ids=tuple(ids),
            logprobs=(0.0,) * len(ids),
            policy_version=self.version,
            restart=restart,
        )
        usage = Usage(calls=1, prompt_tokens=len(prompt), completion_tokens=len(ids))
        return action.model_copy(update={"tokens": (span,), "usage": usage})

    async def close(self) -> None:
        """Forgets every session; may be called twice."""
        self._calls.clear()
        self._seen.clear()
