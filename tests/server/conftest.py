"""A checkpoint's text side, trained here, and clients over a scripted engine."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from engine.client import EngineClient
from server.app import create_app
from server.config import ServerConfig
from server.service import Service, load_text_model
from server.tokenizer import Tokenizer
from tests.server.scripted_engine import ScriptedEngine

TEMPLATE = (
    "{%- for message in messages %}"
    "{%- if message.role == 'tool' %}{{ raise_exception('tools are not known here') }}{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>{{ '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant{{ '\\n' }}{% endif %}"
    "{%- if enable_thinking %}<think>{% endif %}"
)
CORPUS = ["The quick brown fox jumps over the lazy dog.", "def main() -> None:", "Grüße, 你好 😀"]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a tiny byte-level BPE tokenizer, a chat template, generation defaults."""
    directory = tmp_path_factory.mktemp("checkpoint")
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS * 4, trainer)
    backend.save(str(directory / "tokenizer.json"))
    settings = {"eos_token": {"content": "<|im_end|>"}, "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "top_k": 20}))
    return directory


@pytest.fixture(scope="session")
def tokenizer(checkpoint: Path) -> Tokenizer:
    return load_text_model(checkpoint).tokenizer


@dataclass
class Api:
    """A client, the engine behind it and the service between them."""

    http: httpx.AsyncClient
    engine: ScriptedEngine
    service: Service

    async def chat(self, **parameters: Any) -> httpx.Response:
        messages = [{"role": "user", "content": "Hi"}]
        body = {"model": "tiny", "messages": messages, **parameters}
        # Encoded here: httpx's own encoder refuses what clients may well send.
        return await self.http.post(
            "/v1/chat/completions",
            content=json.dumps(body),
            headers={"Content-Type": "application/json"},
        )

    async def events(self, **parameters: Any) -> list[Any]:
        """The data of a stream's events, JSON decoded, [DONE] included as a string."""
        response = await self.chat(stream=True, **parameters)
        assert response.status_code == 200, response.text
        blocks = [b for b in response.text.split("\n\n") if b.startswith("data: ")]
        data = [block.removeprefix("data: ") for block in blocks]
        return [d if d == "[DONE]" else json.loads(d) for d in data]


@pytest.fixture
async def api(checkpoint: Path) -> AsyncIterator[Api]:
    engine, service = ScriptedEngine(), Service("tiny")
    await service.start(cast(EngineClient, engine), checkpoint)
    app = create_app(service, ServerConfig(max_body_bytes=100_000))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        yield Api(http, engine, service)
    service.close()
