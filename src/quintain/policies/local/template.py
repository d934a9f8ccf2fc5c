"""Conversations to token ids: the model's own chat template, rendered so that tokens are exact.

Three rules, kept here and nowhere else:

1. *Content never becomes structure.* A user who writes the text of a special token gets the text,
   not the token: special tokens come from the template alone.
2. *A turn continues tokens, not text.* What was sampled is never encoded again; only the text that
   the template puts after it is (`Template.encode` of the rest).
3. *Prefixes are checked.* The rendering of a longer conversation must begin with that of the
   shorter one; where a template rewrites earlier turns, the caller is told and starts a new row.

The template is the Jinja text in the model's folder. Templates that know no tool role get results
as user turns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2.sandbox import ImmutableSandboxedEnvironment

from quintain.errors import ConfigError
from quintain.messages import Message, ToolSpec
from quintain.policies.local.toolcalls import ToolFormat
from quintain.record import Json

_MARK = 0xF0000
"""First of the private-use characters that stand for special tokens written in content."""
_PROBE = "\U0010f123"


def _refuse(message: str) -> NoReturn:
    raise ConfigError(f"the chat template refuses the conversation: {message}")


class Template:
    """The tokenizer and the chat template of one model.

    Args:
        folder: holds `tokenizer.json`, and the template in `chat_template.jinja` or
            `tokenizer_config.json`.
        tools: how tool calls and results are written as text.
        end_ids: tokens that end a turn; None: as the folder's generation config says.
    """

    def __init__(
        self, folder: Path, tools: ToolFormat, end_ids: Sequence[int] | None = None
    ) -> None:
        self.folder = Path(folder)
        self.tools = tools
        self._tokenizer = _load_tokenizer(self.folder)
        settings = _read_json(self.folder / "tokenizer_config.json")
        self._variables = {
            name: _token_text(settings.get(name)) for name in ("bos_token", "eos_token")
        }
        self._special = {
            token.content: index
            for index, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.special
        }
        self._marks = {text: chr(_MARK + place) for place, text in enumerate(self._special)}
        self._written = {ord(mark): text for text, mark in self._marks.items()}
        ordered = sorted(self._special, key=len, reverse=True)
        self._splitter = re.compile("|".join(map(re.escape, ordered)) or r"(?!)")
        self.end_ids = frozenset(
            self._find_end_ids() if end_ids is None else end_ids,
        )
        source = _template_source(self.folder, settings)
        self._tool_role = "tool" if re.search(r"""['"]tool['"]""", source) else "user"
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self._jinja = environment.from_string(source)
        self.vocabulary_size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self.closing = self._find_closing()

    # --- text --------------------------------------------------------------------------------

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, generate: bool = True
    ) -> str:
        """The conversation as text, special tokens written in content marked as content.

        Args:
            messages: the whole conversation.
            tools: what may be called; told to the model as `ToolFormat.describe` says.
            generate: whether the text ends where the assistant begins to speak.

        Raises:
            ConfigError: the template refuses the conversation, or content is not text.
        """
        turns = [self._turn(message) for message in messages]
        told = self.tools.describe(tools)
        if told:
            if turns and turns[0]["role"] == "system":
                turns[0] = {**turns[0], "content": f"{turns[0]['content']}\n\n{told}"}
            else:
                turns.insert(0, {"role": "system", "content": told})
        return self._render(turns, generate)

    def _render(self, turns: list[dict[str, str]], generate: bool) -> str:
        return self._jinja.render(messages=turns, add_generation_prompt=generate, **self._variables)

    def _turn(self, message: Message) -> dict[str, str]:
        role: str = message.role
        text = self.tools.write(message)
        if role == "tool":
            role = self._tool_role
        return {"role": role, "content": self.mark(text)}

    def mark(self, text: str) -> str:
        """The text with special tokens in it replaced by their marks."""
        return self._splitter.sub(lambda found: self._marks[found[0]], text)

    # --- tokens ------------------------------------------------------------------------------

    def encode(self, text: str) -> list[int]:
        """Token ids of rendered text; what is marked as content is encoded as plain text."""
        ids: list[int] = []
        start = 0
        for found in self._splitter.finditer(text):
            ids += self._encode_plain(text[start : found.start()])
            ids.append(self._special[found[0]])
            start = found.end()
        return ids + self._encode_plain(text[start:])

    def _encode_plain(self, text: str) -> list[int]:
        if not text:
            return []
        self._tokenizer.encode_special_tokens = True
        encoded = self._tokenizer.encode(text.translate(self._written), add_special_tokens=False)
        return list(encoded.ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of sampled ids, special tokens included; bytes that are no UTF-8 show as �."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def token_text(self, token_id: int) -> str:
        """How one token is written."""
        return str(self._tokenizer.id_to_token(token_id) or "")

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> list[int]:
        """Token ids of the conversation up to where the assistant begins to speak."""
        return self.encode(self.render(messages, tools))

    def conversation(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
    ) -> tuple[list[int], list[bool]]:
        """Ids of a whole conversation as a session would have them, and which the assistant said.

        The token that ends an assistant's turn counts as said by it.

        Raises:
            ConfigError: the template rewrites earlier turns, so there is no one row of tokens.
        """
        ids: list[int] = []
        said: list[bool] = []
        text = ""
        for place, message in enumerate(messages):
            if message.role != "assistant":
                continue
            before = self.render(messages[:place], tools)
            if not before.startswith(text):
                raise ConfigError("the chat template rewrites earlier turns of a demonstration")
            prompt = self.encode(before[len(text) :])
            spoken = self.mark(self.tools.write(message))
            answer = self.encode(spoken)
            end = self._splitter.match(self.closing)
            if end is not None and self._special[end[0]] in self.end_ids:
                answer.append(self._special[end[0]])
                text = before + spoken + end[0]
            else:
                text = before + spoken
            ids += prompt + answer
            said += [False] * len(prompt) + [True] * len(answer)
        return ids, said

    # --- what the folder says ----------------------------------------------------------------

    def _find_end_ids(self) -> list[int]:
        found = _read_json(self.folder / "generation_config.json").get("eos_token_id")
        if found is None:
            found = _read_json(self.folder / "config.json").get("eos_token_id")
        ids = [found] if isinstance(found, int) else list(found or ())
        eos = self._special.get(self._variables["eos_token"])
        if eos is not None and eos not in ids:
            ids.append(eos)
        if not ids:
            raise ConfigError(
                f"{self.folder} names no token that ends a turn: "
                "set eos_token_id in generation_config.json"
            )
        return ids

    def _find_closing(self) -> str:
        """What the template puts after an assistant's text."""
        turns = [
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": _PROBE},
        ]
        before, found, after = self._render(turns, False).partition(_PROBE)
        if not found or not before:
            raise ConfigError(f"the chat template in {self.folder} drops what the assistant says")
        return after


def _read_json(path: Path) -> dict[str, Json]:
    return dict(json.loads(path.read_text("utf-8"))) if path.is_file() else {}


def _token_text(value: Json) -> str:
    return str(value.get("content", "")) if isinstance(value, Mapping) else str(value or "")


def _tojson(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _template_source(folder: Path, settings: Mapping[str, Json]) -> str:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    source = settings.get("chat_template")
    if isinstance(source, list):
        source = next((entry["template"] for entry in source if entry["name"] == "default"), None)
    if not isinstance(source, str):
        raise ConfigError(f"{folder} has no chat template: put one into chat_template.jinja")
    return source


def _load_tokenizer(folder: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ConfigError(
            "a local model needs the extra 'train': run `pip install 'quintain[train]'`"
        ) from error
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ConfigError(
            f"{folder} has no tokenizer.json: save its tokenizer with transformers' "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    return Tokenizer.from_file(str(file))
