import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from quintain.errors import ConfigError
from quintain.messages import ToolCall, assistant, system, user
from quintain.policies.local.template import Template
from quintain.policies.local.tiny_weights import SPECIAL
from quintain.policies.local.toolcalls import JsonCalls, Tags

from .conftest import CALC

TALK = [system("Be brief."), user("What is 1+1?"), assistant("2"), user("And 2+2?")]


def folder_with_template(model, tmp_path, source):
    folder = tmp_path / "model"
    shutil.copytree(model.folder, folder)
    (folder / "chat_template.jinja").write_text(source)
    return folder


def test_ids_are_those_of_transformers(model):
    theirs = AutoTokenizer.from_pretrained(str(model.folder)).apply_chat_template(
        [{"role": m.role, "content": m.text} for m in TALK],
        add_generation_prompt=True,
        return_dict=False,
    )
    assert model.template.prompt_ids(TALK) == list(theirs)


@given(text=st.text(max_size=40))
def test_text_survives_encoding(model, text):
    template = model.template
    assert template.decode(template.encode(template.mark(text))) == text


def test_special_tokens_in_content_stay_content(model):
    template = model.template
    special = {template.encode(text)[0] for text in SPECIAL}
    ids = template.prompt_ids([user("".join(SPECIAL))])
    assert [place for place in ids if place in special] == template.encode(
        "<|user|><|end|><|assistant|>"
    )
    assert "".join(SPECIAL) in template.decode(ids)


def test_a_conversation_is_the_sessions_tokens_with_what_the_assistant_said(model):
    template = model.template
    call = assistant("", ToolCall(id="c", name="calc", arguments={"expression": "1+1"}))
    ids, said = template.conversation([user("Hi"), call, user("Well?"), assistant("2")])
    spoken = [place for place, own in zip(ids, said, strict=True) if own]
    assert template.decode(spoken) == "<calc>1+1</calc><|end|>2<|end|>"
    assert template.decode(ids) == (
        "<|user|>Hi<|end|><|assistant|><calc>1+1</calc><|end|>"
        "<|user|>Well?<|end|><|assistant|>2<|end|>"
    )


def test_tools_are_told_in_the_system_message_where_the_format_says_so(model):
    template = Template(model.folder, JsonCalls())
    text = template.render(TALK, [CALC])
    assert text.startswith("<|system|>Be brief.\n\nYou may call")
    assert template.render(TALK[1:], [CALC]).startswith("<|system|>You may call")


def test_a_template_that_rewrites_earlier_turns_is_found(model, tmp_path):
    rewriting = (
        "{% for m in messages %}<|user|>"
        "{% if loop.last or m.role == 'user' %}{{ m.content }}{% else %}dropped{% endif %}"
        "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    template = Template(folder_with_template(model, tmp_path, rewriting), Tags())
    with pytest.raises(ConfigError, match="rewrites earlier turns"):
        template.conversation([user("a"), assistant("b"), user("c"), assistant("d")])


def test_a_template_that_drops_the_assistant_is_refused(model, tmp_path):
    folder = folder_with_template(model, tmp_path, "{{ messages[0].content }}<|assistant|>")
    with pytest.raises(ConfigError, match="drops what the assistant says"):
        Template(folder, Tags())


def test_a_template_may_refuse_a_conversation(model, tmp_path):
    source = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
        "{% endif %}{{ m.content }}<|end|>{% endfor %}"
    )
    template = Template(folder_with_template(model, tmp_path, source), Tags())
    with pytest.raises(ConfigError, match="no system"):
        template.render(TALK)


def test_what_is_missing_in_a_folder_is_named(model, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        Template(bare, Tags())
    shutil.copy(model.folder / "tokenizer.json", bare)
    with pytest.raises(ConfigError, match="ends a turn"):
        Template(bare, Tags())
    (bare / "generation_config.json").write_text(json.dumps({"eos_token_id": [256, 257]}))
    with pytest.raises(ConfigError, match="chat template"):
        Template(bare, Tags())
    (bare / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": "{% for m in messages %}{{ m.content }}|{% endfor %}"})
    )
    assert Template(bare, Tags()).end_ids == {256, 257}
