"""What a policy reads and writes: messages made of parts, tool specifications, sampling settings.

A message is a role and a tuple of parts (text, image, file, reasoning, tool call, tool result), so
that multimodal and reasoning models need no second representation. Wire formats are converted in
`quintain.dialects`, never here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from quintain.record import Json, Record

Role = Literal["system", "user", "assistant", "tool"]


class TextPart(Record):
    """Plain text."""

    type: Literal["text"] = "text"
    text: str


class ImagePart(Record):
    """An image, by bytes or by address."""

    type: Literal["image"] = "image"
    data: bytes | None = None
    """The encoded file."""
    url: str | None = None
    media_type: str = "image/png"

    @model_validator(mode="after")
    def _one_source(self) -> ImagePart:
        if (self.data is None) == (self.url is None):
            raise ValueError("an image part needs exactly one of data and url")
        return self


class FilePart(Record):
    """A file handed to the model, by bytes or by address."""

    type: Literal["file"] = "file"
    name: str
    data: bytes | None = None
    url: str | None = None
    media_type: str = "application/octet-stream"

    @model_validator(mode="after")
    def _one_source(self) -> FilePart:
        if (self.data is None) == (self.url is None):
            raise ValueError("a file part needs exactly one of data and url")
        return self


class ReasoningPart(Record):
    """What the model thought, where the server tells; `signature` is opaque and sent back."""

    type: Literal["reasoning"] = "reasoning"
    text: str
    signature: str | None = None


class ToolCall(Record):
    """A call that the policy wants made.

    A call that could not be read keeps what the policy wrote in `raw` and says in `error` what is
    wrong with it; the episode answers with that text.
    """

    type: Literal["tool_call"] = "tool_call"
    id: str
    name: str
    arguments: dict[str, Json] = Field(default_factory=dict)
    raw: str = ""
    error: str = ""


class ToolResult(Record):
    """What a tool answered to the call `call_id`."""

    type: Literal["tool_result"] = "tool_result"
    call_id: str
    name: str
    content: tuple[Annotated[TextPart | ImagePart | FilePart, Field(discriminator="type")], ...]
    is_error: bool = False

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join(part.text for part in self.content if isinstance(part, TextPart))


Part = Annotated[
    TextPart | ImagePart | FilePart | ReasoningPart | ToolCall | ToolResult,
    Field(discriminator="type"),
]


class Message(Record):
    """One message: who speaks, and the parts."""

    role: Role
    content: tuple[Part, ...]
    """Parts; a plain string given here becomes one text part."""

    @field_validator("content", mode="before")
    @classmethod
    def _text_is_one_part(cls, value: Any) -> Any:
        return (TextPart(text=value),) if isinstance(value, str) else value

    @property
    def text(self) -> str:
        """The text parts, joined: no reasoning, no calls, no results."""
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def reasoning(self) -> str:
        """The reasoning parts, joined."""
        return "".join(part.text for part in self.content if isinstance(part, ReasoningPart))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls, in order."""
        return tuple(part for part in self.content if isinstance(part, ToolCall))

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """The results, in order."""
        return tuple(part for part in self.content if isinstance(part, ToolResult))


def system(text: str) -> Message:
    """A system message of one text part."""
    return Message(role="system", content=(TextPart(text=text),))


def user(*parts: str | TextPart | ImagePart | FilePart) -> Message:
    """A user message; strings become text parts."""
    return Message(
        role="user", content=tuple(TextPart(text=p) if isinstance(p, str) else p for p in parts)
    )


def assistant(text: str = "", *calls: ToolCall) -> Message:
    """An assistant message of a text (when not empty) and tool calls."""
    parts: tuple[Part, ...] = (TextPart(text=text),) if text else ()
    return Message(role="assistant", content=(*parts, *calls))


def tool_results(*results: ToolResult) -> Message:
    """The tool message that answers the calls of one assistant message."""
    return Message(role="tool", content=results)


def as_messages(prompt: str | Message | tuple[Message, ...] | list[Message]) -> tuple[Message, ...]:
    """A prompt as a tuple of messages; a string is one user message."""
    if isinstance(prompt, str):
        return (user(prompt),)
    if isinstance(prompt, Message):
        return (prompt,)
    return tuple(prompt)


class ToolSpec(Record):
    """What a policy is told of a tool."""

    name: str
    description: str = ""
    parameters: dict[str, Json] = Field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )
    """JSON schema of the arguments, an object."""


class Sampling(Record):
    """How the policy samples; stored on every call."""

    temperature: float = Field(default=1.0, ge=0.0)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=0, ge=0)
    """0: off."""
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    """Cuts what is less likely than this share of the likeliest token; 0: off."""
    max_tokens: int | None = Field(default=None, gt=0)
    """Sampled tokens of one call; None: the policy's own bound."""
    stop: tuple[str, ...] = ()
    seed: int | None = None
    """Base seed of the call where the policy can use one; None: derived from the rollout's."""
