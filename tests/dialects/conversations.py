"""Hypothesis strategies: conversations as an environment and a policy make them."""

from __future__ import annotations

from hypothesis import strategies as st

from quintain.messages import (
    FilePart,
    ImagePart,
    Message,
    ReasoningPart,
    Sampling,
    TextPart,
    ToolCall,
    ToolResult,
    ToolSpec,
    user,
)

words = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=20)
names = st.from_regex(r"[a-z_]{1,12}", fullmatch=True)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
texts = st.builds(TextPart, text=words)
images = st.builds(
    ImagePart,
    data=st.binary(min_size=1, max_size=20),
    media_type=st.sampled_from(["image/png", "image/jpeg"]),
) | st.just(ImagePart(url="https://example.org/a.png"))
files = st.builds(
    FilePart,
    name=names,
    data=st.binary(min_size=1, max_size=20),
    media_type=st.just("application/pdf"),
)
tools = st.lists(
    st.builds(
        ToolSpec,
        name=names,
        description=words,
        parameters=st.just(
            {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
        ),
    ),
    max_size=3,
    unique_by=lambda tool: tool.name,
)
samplings = st.builds(
    Sampling,
    temperature=st.floats(0, 2),
    top_p=st.floats(0.01, 1),
    top_k=st.integers(0, 100),
    min_p=st.floats(0, 1),
    max_tokens=st.none() | st.integers(1, 10_000),
    stop=st.lists(words, max_size=2).map(tuple),
)


def calls(prefix):
    """Well-formed calls with ids that no other turn has."""
    return st.lists(
        st.tuples(names, st.dictionaries(names, json_values, max_size=3)), max_size=3
    ).map(
        lambda made: tuple(
            ToolCall(id=f"{prefix}_{i}", name=name, arguments=arguments)
            for i, (name, arguments) in enumerate(made)
        )
    )


@st.composite
def conversations(draw, *, reasoning=True, signatures=False, result_files=True):
    """system?, then user and assistant turns, each call answered."""
    out: list[Message] = []
    if draw(st.booleans()):
        out.append(Message(role="system", content=(draw(texts),)))
    for turn in range(draw(st.integers(1, 3))):
        out.append(user(*draw(st.lists(texts | images | files, min_size=1, max_size=3))))
        thought = ()
        if reasoning and draw(st.booleans()):
            signature = draw(words) if signatures else None
            thought = (ReasoningPart(text=draw(words), signature=signature),)
        made = draw(calls(f"call_{turn}"))
        said = draw(st.lists(texts, min_size=0 if made else 1, max_size=2))
        out.append(Message(role="assistant", content=(*thought, *said, *made)))
        if made:
            content = texts | images if result_files else texts
            out.append(
                Message(
                    role="tool",
                    content=tuple(
                        ToolResult(
                            call_id=call.id,
                            name=call.name,
                            content=tuple(draw(st.lists(content, max_size=2))),
                        )
                        for call in made
                    ),
                )
            )
    return tuple(out)
