"""A flag that only the solution can find: random per episode, compared whole.

The flag of an episode is a keyed hash of its task and its seed. The environment plants it where the
task hides it (`Flag.of(task.id, seed)` in its `episode`); the verifier computes it anew from the
trajectory. So no flag is in a task's text, none serves twice, and a flag of another episode is
known for what it is: a leak.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections import OrderedDict

from quintain.errors import ConfigError, TaskError
from quintain.protocols import JudgeContext
from quintain.task import Task
from quintain.verdict import Check, Kind, Verdict

HEX = 32
"""Digits of a flag: 128 bits."""
REMEMBERED = 100_000


class Flag:
    """Plants flags and judges whether the last message names the episode's own, and no other.

    A task of a fixed flag (`Task.answer` is `{"flag": "…"}` or a text) is compared with that one.

    Args:
        secret: the key; None: drawn anew, so that flags cannot be computed in another process. A
            verdict that shall be given again later needs one that is kept.
        prefix: what stands before the braces.
        name: the verifier's name.

    Raises:
        ConfigError: the prefix is not a word, or the secret is too short to be one.
    """

    def __init__(
        self, *, secret: str | None = None, prefix: str = "flag", name: str = "flag"
    ) -> None:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,31}", prefix):
            raise ConfigError(f"a prefix is a word, got {prefix!r}")
        if secret is not None and len(secret) < 16:
            raise ConfigError("a secret has at least 16 characters")
        self.name = name
        self.kind: Kind = "formal"
        self.prefix = prefix
        self._key = (secret or secrets.token_hex(32)).encode()
        self._pattern = re.compile(rf"{re.escape(prefix)}\{{[^{{}}\s]{{1,200}}\}}")
        self._planted: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def of(self, task_id: str, seed: int) -> str:
        """The flag of an episode, to be planted."""
        text = f"{len(task_id)}:{task_id}:{seed}".encode()
        digits = hmac.new(self._key, text, hashlib.sha256).hexdigest()[:HEX]
        flag = f"{self.prefix}{{{digits}}}"
        self._planted[flag] = (task_id, seed)
        self._planted.move_to_end(flag)
        while len(self._planted) > REMEMBERED:
            self._planted.popitem(last=False)
        return flag

    def check_gold(self, task: Task) -> None:
        """Refuses a task whose fixed flag stands in what the policy sees.

        Raises:
            TaskError: it does, or it is no text.
        """
        fixed = self._fixed(task)
        if fixed is not None and fixed in _public(task):
            raise TaskError(f"task {task.id!r}: its flag stands in the public part of the task")

    def _fixed(self, task: Task) -> str | None:
        answer = task.answer.get("flag") if isinstance(task.answer, dict) else task.answer
        if answer is None:
            return None
        if not isinstance(answer, str) or len(answer.strip()) < 8:
            raise TaskError(f"task {task.id!r}: a flag is a text of at least 8 characters")
        return answer.strip()

    async def judge(self, context: JudgeContext) -> Verdict:
        """The episode's flag and no other, or not.

        Raises:
            TaskError: a fixed flag is no text, or stands in the task.
        """
        began = time.monotonic()
        task, trajectory = context.task, context.trajectory
        self.check_gold(task)
        fixed = self._fixed(task)
        flag = fixed if fixed is not None else self.of(task.id, trajectory.seed)
        opening = "\n".join(message.text for message in trajectory.opening.messages)
        if flag in opening:
            raise TaskError(f"task {task.id!r}: the flag was handed to the policy in its prompt")
        given = self._given(trajectory.text, fixed)
        right = len(given) == 1 and hmac.compare_digest(given[0].encode(), flag.encode())
        flags: list[str] = []
        if not right:
            for other in given:
                owner = self._planted.get(other)
                if owner is not None and owner != (task.id, trajectory.seed):
                    flags.append(f"leak: the flag of another episode (task {owner[0]})")
            if len(given) > 1 and flag in given:
                flags.append("several flags were named")
        why = (
            "" if right
            else "no flag was named" if not given
            else f"{len(given)} flags were named" if len(given) > 1
            else "a wrong flag"
        )  # fmt: skip
        check = Check(name="flag", passed=right, detail=why)
        return Verdict.of(
            right, why or "the flag", checks=(check,), flags=tuple(dict.fromkeys(flags))
        ).signed(self.name, self.kind, time.monotonic() - began)

    def _given(self, text: str, fixed: str | None) -> list[str]:
        """The different flags that a text names; a fixed flag of another form is the whole text."""
        if fixed is not None and self._pattern.fullmatch(fixed) is None:
            return [text.strip()] if text.strip() else []
        return list(dict.fromkeys(self._pattern.findall(text)))


def _public(task: Task) -> str:
    files = b"\n".join(task.files.values()).decode("utf-8", "replace")
    texts = [message.text for message in task.prompt]
    return "\n".join([*texts, *task.files, files, str(task.metadata)])
