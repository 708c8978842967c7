"""The checkpoint's own chat template.

Rendered by transformers' function (a Jinja environment with the sandbox on), which is importable
without torch. A template in a request is never rendered.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError
from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template

from engine.config import ConfigError
from server.protocol import Message, ToolCall


class ChatTemplateError(Exception):
    """The template refused the conversation; the text says why."""


class ChatTemplate:
    """Turns a conversation into the text that the model was trained on."""

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        self._source = source
        self._special_tokens = dict(special_tokens or {})
        # Most templates drop a role that they do not know without a word, so the newer name of
        # `system` is only used where the template mentions it.
        self._knows_developer = "developer" in source

    def render(self, messages: Sequence[Message], kwargs: Mapping[str, Any] | None = None) -> str:
        """The prompt's text, up to the point where the assistant speaks; raises ChatTemplateError.

        Templates may loop: call it off the event loop.
        """
        conversation = [self._as_dict(message) for message in messages]
        variables = {**self._special_tokens, **(kwargs or {})}
        try:
            rendered: Any = render_jinja_template(
                [conversation],
                chat_template=self._source,
                add_generation_prompt=True,
                **variables,
            )
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise ChatTemplateError(str(error)) from error
        texts, _ = rendered
        return str(texts[0])

    def _as_dict(self, message: Message) -> dict[str, Any]:
        # Absent, not None: templates test whether a key is there.
        fields = message.model_dump(exclude_none=True, exclude={"tool_calls"})
        if message.role == "developer" and not self._knows_developer:
            fields["role"] = "system"
        if message.tool_calls:
            fields["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
        return fields


def _tool_call(call: ToolCall) -> dict[str, Any]:
    """Templates print the arguments as an object, so they must not arrive as JSON text."""
    try:
        arguments = json.loads(call.function.arguments)
    except ValueError as error:
        raise ChatTemplateError(
            f"the arguments of tool call {call.function.name!r} are not valid JSON: {error}"
        ) from error
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": call.type, "function": function}


def load_chat_template(directory: Path) -> ChatTemplate | None:
    """The template of a checkpoint, or None if it has none; raises ConfigError."""
    settings = _read_json(directory / "tokenizer_config.json")
    for path, template in _places(directory, settings):
        source = _default_template(path, template)
        if source is not None:
            _check_syntax(path, source)
            return ChatTemplate(source, _special_tokens(settings))
    return None


def _places(directory: Path, settings: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
    """The three places where checkpoints keep it; the first counts."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        yield file, _read_text(file)
    for name in ("chat_template.json", "tokenizer_config.json"):
        path = directory / name
        content = settings if name == "tokenizer_config.json" else _read_json(path)
        yield path, content.get("chat_template")


def _default_template(path: Path, template: Any) -> str | None:
    """The template itself, or the one named ``default`` where a file has several."""
    if template is None or isinstance(template, str):
        return template or None
    try:
        named = {entry["name"]: entry["template"] for entry in template}
    except (TypeError, LookupError):
        named = {"default": template}
    default = named.get("default")
    if default is None or isinstance(default, str):
        return default
    raise ConfigError(
        f"{path}: chat_template is neither a text nor a list of objects with name and template; "
        "correct the file"
    )


def _check_syntax(path: Path, source: str) -> None:
    try:
        _compile_jinja_template(source)  # what rendering calls first; it knows extensions of Jinja
    except TemplateError as error:
        line = f", line {error.lineno}" if isinstance(error, TemplateSyntaxError) else ""
        raise ConfigError(
            f"{path}: the chat template is no valid Jinja{line}: {error.message}; correct it"
        ) from None


def _special_tokens(settings: dict[str, Any]) -> dict[str, str]:
    """``bos_token`` and its like; each is a string or an object that holds one."""
    tokens = {}
    for name, token in settings.items():
        text = token.get("content") if isinstance(token, dict) else token
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return tokens


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: invalid JSON ({error}); fetch the checkpoint again") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: not a JSON object; fetch the checkpoint again")
    return content


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text; fetch the checkpoint again") from None
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); check its permissions"
        ) from None
