import json
from pathlib import Path
from typing import Any

import pytest

from engine.config import ConfigError
from server.chat_template import ChatTemplate, ChatTemplateError, load_chat_template
from server.protocol import Message

PLAIN = "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}"


def message(**fields: Any) -> Message:
    return Message.model_validate({"role": "user", "content": "Hi", **fields})


def test_renders_messages_and_special_tokens() -> None:
    template = ChatTemplate("{{ bos_token }}" + PLAIN, {"bos_token": "<s>"})
    assert template.render([message(), message(role="assistant", content="Yes")]) == (
        "<s>user=Hi;assistant=Yes;"
    )


def test_text_parts_become_one_text() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert ChatTemplate(PLAIN).render([message(content=parts)]) == "user=one\ntwo;"


def test_developer_is_system_where_the_template_does_not_know_it() -> None:
    developer = [message(role="developer")]
    assert ChatTemplate(PLAIN).render(developer) == "system=Hi;"
    assert ChatTemplate("{# developer #}" + PLAIN).render(developer) == "developer=Hi;"


def test_kwargs() -> None:
    template = ChatTemplate("{{ 'on' if enable_thinking else 'off' }}")
    assert template.render([message()], {"enable_thinking": True}) == "on"
    assert template.render([message()]) == "off"


def test_tool_call_arguments_are_objects() -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": '{"x": [1]}'}}
    template = ChatTemplate("{{ messages[0].tool_calls[0].function.arguments.x[0] }}")
    asked = message(role="assistant", content=None, tool_calls=[call])
    assert template.render([asked]) == "1"
    call["function"] = {"name": "f", "arguments": "{"}
    with pytest.raises(ChatTemplateError, match="not valid JSON"):
        template.render([message(role="assistant", tool_calls=[call])])


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__ }}",
        "{% for",
        "{{ range(10 ** 9) }}",
    ],
)
def test_failures_are_template_errors(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        ChatTemplate(source).render([message()])


def test_places_of_the_template(tmp_path: Path) -> None:
    assert load_chat_template(tmp_path) is None
    settings = {
        "eos_token": {"content": "</s>"},
        "pad_token": "<pad>",
        "chat_template": "{{ eos_token }}",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert rendered(tmp_path) == "</s>"
    (tmp_path / "chat_template.json").write_text('{"chat_template": "{{ pad_token }}"}')
    assert rendered(tmp_path) == "<pad>"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert rendered(tmp_path) == "file"


def test_named_templates(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert rendered(tmp_path) == "d"


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("tokenizer_config.json", b"{", "invalid JSON"),
        ("tokenizer_config.json", b"[" * 100_000, "invalid JSON"),
        ("tokenizer_config.json", b"[]", "not a JSON object"),
        ("tokenizer_config.json", b"\xff", "not UTF-8"),
        ("tokenizer_config.json", b'{"chat_template": "{% for"}', "line 1"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "default"}]}', "name and template"),
        ("tokenizer_config.json", b'{"chat_template": ["x"]}', "name and template"),
        ("tokenizer_config.json", b'{"chat_template": 3}', "name and template"),
        ("chat_template.json", b"[]", "not a JSON object"),
        ("chat_template.jinja", b"\xff", "not UTF-8"),
        ("chat_template.jinja", b"\n{% endfor %}", "line 2"),
        ("chat_template.jinja", b"{{ x | nothing }}", "nothing"),
    ],
)
def test_broken_files(tmp_path: Path, name: str, content: bytes, complaint: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=complaint) as caught:
        load_chat_template(tmp_path)
    assert name in str(caught.value)


def rendered(directory: Path) -> str:
    template = load_chat_template(directory)
    assert template is not None
    return template.render([message()])
