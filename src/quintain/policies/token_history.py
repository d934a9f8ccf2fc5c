"""What a server's full prompts add to each session, so that a trajectory is linear in its tokens.

A server reports the whole prompt of each call; a `TokenSpan` holds what is new since the last one.
Where a prompt does not continue the session's tokens (the chat template dropped reasoning, the
harness compacted) a new row begins.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict

MAX_TOKENS = 32_000_000
"""Over all sessions, 128 MB; the session that was quiet longest is forgotten first."""


class TokenHistory:
    """The tokens so far of each session.

    Args:
        max_tokens: bound over all sessions; a forgotten session begins a new row.
    """

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        self.max_tokens = max_tokens
        self._tokens: OrderedDict[str, array[int]] = OrderedDict()
        self._total = 0
        self._begun: OrderedDict[str, None] = OrderedDict()

    def extend(
        self, session: str, prompt: tuple[int, ...], sampled: tuple[int, ...]
    ) -> tuple[tuple[int, ...], bool]:
        """Adds one call to a session.

        Args:
            session: whose call.
            prompt: all tokens before the sampled ones.
            sampled: what was sampled.

        Returns:
            The prompt tokens that are new, and whether the prompt does not continue the session.
        """
        known = self._tokens.pop(session, None)
        whole = array("i", prompt)
        begun = session in self._begun
        continues = known is not None and whole[: len(known)] == known
        delta = prompt[len(known) :] if continues and known is not None else prompt
        self._total -= len(known) if known is not None else 0
        whole.extend(sampled)
        self._tokens[session] = whole
        self._total += len(whole)
        self._begun[session] = None
        while self._total > self.max_tokens and len(self._tokens) > 1:
            _, dropped = self._tokens.popitem(last=False)
            self._total -= len(dropped)
        while len(self._begun) > 65_536:
            self._begun.popitem(last=False)
        return delta, begun and not continues
