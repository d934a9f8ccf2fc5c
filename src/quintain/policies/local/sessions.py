"""The tokens of each session so far, and what a longer conversation adds to them."""

from __future__ import annotations

import logging
from array import array
from collections import OrderedDict
from dataclasses import dataclass

from quintain.policies.local.template import Template

_log = logging.getLogger(__name__)
MAX_TOKENS = 32_000_000
"""Over all sessions, 128 MB; the one that was quiet longest is forgotten first."""
MAX_NAMES = 65_536
"""Names remembered after their tokens were forgotten, so that going on begins a new row."""


@dataclass(frozen=True, slots=True)
class Row:
    """What a session's tokens say, as ids and as rendered text."""

    ids: array[int]
    text: str
    """Rendered, without the token that ended the last turn."""
    ended: str
    """How the token that ended the last turn is written; empty when it ended by length."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a call asks of the engine."""

    ids: tuple[int, ...]
    """All prompt tokens."""
    delta: tuple[int, ...]
    """Those that are new since the session's last sampled token."""
    restart: bool
    """Whether they begin a new row of an old session."""
    text: str


class Sessions:
    """Rows by session name.

    Args:
        max_tokens: bound over all rows.
    """

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._rows: OrderedDict[str, Row] = OrderedDict()
        self._tokens = 0
        self._begun: OrderedDict[str, None] = OrderedDict()
        self._warned = False

    def prompt(self, session: str, text: str, template: Template) -> Prompt:
        """The prompt for a rendered conversation: the row's tokens and then what is new.

        The rendering continues the row when it begins with the row's text, closed as the template
        closes an assistant's turn. What was sampled is then not encoded again.
        """
        row = self._rows.get(session)
        if row is not None and text.startswith(row.text + template.closing):
            start = len(row.text)
            if row.ended and template.closing.startswith(row.ended):
                start += len(row.ended)
            delta = tuple(template.encode(text[start:]))
            return Prompt((*row.ids, *delta), delta, False, text)
        ids = tuple(template.encode(text))
        restart = session in self._begun
        if row is not None and not self._warned:
            self._warned = True
            _log.warning(
                "session %s: the conversation does not continue the tokens that were sampled (its "
                "history was edited, or the chat template rewrites earlier turns); a new row of "
                "tokens begins. Told once.",
                session,
            )
        return Prompt(ids, ids, restart, text)

    def remember(self, session: str, prompt: Prompt, sampled: list[int], template: Template) -> str:
        """Adds what was sampled to the session; returns it as text, without the ending token."""
        ended = template.token_text(sampled[-1]) if sampled[-1] in template.end_ids else ""
        said = template.decode(sampled[:-1] if ended else sampled)
        ids = array("i", prompt.ids)
        ids.extend(sampled)
        old = self._rows.pop(session, None)
        self._tokens += len(ids) - (len(old.ids) if old is not None else 0)
        self._rows[session] = Row(ids, prompt.text + template.mark(said), ended)
        self._begun[session] = None
        self._begun.move_to_end(session)
        while self._tokens > self._max_tokens and len(self._rows) > 1:
            _, dropped = self._rows.popitem(last=False)
            self._tokens -= len(dropped.ids)
        while len(self._begun) > MAX_NAMES:
            self._begun.popitem(last=False)
        return said
