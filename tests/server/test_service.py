"""Loading a checkpoint's text side beside the engine."""

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from engine.client import EngineClient
from engine.config import ConfigError
from server import service
from server.protocol import ChatCompletionRequest, Message
from server.service import Service, load_text_model
from tests.server.scripted_engine import ScriptedEngine


def test_whatever_is_wrong_with_a_checkpoint_is_a_configuration_error(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Any) -> None:
        raise KeyError("unforeseen")

    monkeypatch.setattr(service, "load_chat_template", broken)
    with pytest.raises(ConfigError, match=r"target\.model = .*KeyError: 'unforeseen'.*again"):
        load_text_model(checkpoint)


async def test_long_conversations_hold_nobody_up(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = threading.Event()

    def render(_: Any, __: Any, messages: list[Message], *rest: Any) -> list[int]:
        del rest
        if messages[0].num_characters > 100:
            finish.wait(10)
        return [messages[0].num_characters]

    monkeypatch.setattr(service, "_render", render)
    monkeypatch.setattr(service, "LONG_CONVERSATION", 100)
    serving, text = Service("tiny"), load_text_model(checkpoint)

    def rendering(length: int) -> Coroutine[Any, Any, list[int]]:
        message = {"role": "user", "content": "x" * length}
        request = ChatCompletionRequest.model_validate({"messages": [message]})
        return serving.prompt_token_ids(text, request)

    long = [asyncio.create_task(rendering(200)) for _ in range(4)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(rendering(5), 5) == [5]
    finish.set()
    assert await asyncio.gather(*long) == [[200]] * 4
    serving.close()


async def test_tokenizer_of_another_model(checkpoint: Path) -> None:
    engine = ScriptedEngine(vocab_size=load_text_model(checkpoint).tokenizer.vocab_size)
    await Service("tiny").start(cast(EngineClient, engine), checkpoint)
    engine.vocab_size -= 1
    with pytest.raises(ConfigError, match=f"vocab_size is {engine.vocab_size};"):
        await Service("tiny").start(cast(EngineClient, engine), checkpoint)
