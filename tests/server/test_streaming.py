"""The contract of streams and plain responses, as clients see it."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from engine.client import EngineDeadError
from server import streaming
from tests.server.conftest import Api
from tests.server.scripted_engine import Submitted, answer, step

TEXT = "The quick brown 😀 fox"


@pytest.fixture
def steps(api: Api, tokenizer: Any) -> list[Any]:
    api.engine.steps = [*answer(tokenizer.encode(TEXT))]
    return api.engine.steps


async def test_chunks(api: Api, steps: list[Any]) -> None:
    *chunks, done = await api.events()
    assert done == "[DONE]"
    assert {(c["id"], c["created"], c["model"], c["object"]) for c in chunks} == {
        (chunks[0]["id"], chunks[0]["created"], "tiny", "chat.completion.chunk")
    }
    choices = [chunk["choices"][0] for chunk in chunks]
    first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    last = {"index": 0, "delta": {}, "finish_reason": "stop"}
    assert choices[0] == first
    assert choices[-1] == last
    contents = [choice["delta"]["content"] for choice in choices[1:-1]]
    assert "".join(contents) == TEXT
    assert len(contents) <= len(steps), "a step is one chunk, whatever its number of tokens"
    assert all(list(choice["delta"]) == ["content"] for choice in choices[1:-1])
    assert not any("usage" in chunk for chunk in chunks)


@pytest.mark.usefixtures("steps")
async def test_headers(api: Api) -> None:
    response = await api.chat(stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-request-id"]
    assert b"\r" not in response.content


async def test_usage_chunk(api: Api, steps: list[Any]) -> None:
    *chunks, done = await api.events(stream_options={"include_usage": True})
    assert done == "[DONE]"
    assert chunks[-1]["choices"] == []
    usage = chunks[-1]["usage"]
    assert usage["completion_tokens"] == sum(len(s.token_ids) for s in steps)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 0}
    speculation = chunks[-1]["metrics"]["speculative_decoding"]
    assert set(speculation) == {
        "mean_acceptance_length",
        "draft_acceptance_rate",
        "acceptance_histogram",
        "num_spec_steps",
        "num_accepted_draft_tokens",
        "num_draft_tokens",
        "num_spec_tokens",
        "synthetic",
    }
    assert len(speculation["acceptance_histogram"]) == speculation["num_spec_tokens"] + 1
    assert sum(speculation["acceptance_histogram"]) == speculation["num_spec_steps"]


async def test_continuous_usage(api: Api, steps: list[Any]) -> None:
    chunks = await api.events(stream_options={"continuous_usage_stats": True})
    counts = [c["usage"]["completion_tokens"] for c in chunks[1:-1]]
    assert counts == sorted(counts)
    assert counts[0] == len(steps[0].token_ids)
    assert counts[-1] == sum(len(s.token_ids) for s in steps)


async def test_plain_response(api: Api, steps: list[Any]) -> None:
    response = await api.chat()
    body = response.json()
    assert body["object"] == "chat.completion"
    assert body["model"] == "tiny"
    assert body["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
    ]
    assert body["usage"]["completion_tokens"] == sum(len(s.token_ids) for s in steps)
    assert body["metrics"]["speculative_decoding"]["num_spec_tokens"] == 3


@pytest.mark.usefixtures("steps")
async def test_several_choices(api: Api) -> None:
    *chunks, done = await api.events(n=3)
    assert done == "[DONE]"
    roles = [chunk["choices"][0] for chunk in chunks[:3]]
    assert [(c["index"], c["delta"].get("role")) for c in roles] == [
        (index, "assistant") for index in range(3)
    ]
    texts, reasons = ["", "", ""], [None] * 3
    for chunk in chunks[3:]:
        choice = chunk["choices"][0]
        texts[choice["index"]] += choice["delta"].get("content", "")
        reasons[choice["index"]] = choice["finish_reason"] or reasons[choice["index"]]
    assert texts == [TEXT] * 3
    assert reasons == ["stop"] * 3

    body = (await api.chat(n=3)).json()
    assert [c["index"] for c in body["choices"]] == [0, 1, 2]
    assert [c["message"]["content"] for c in body["choices"]] == [TEXT] * 3


@pytest.mark.usefixtures("steps")
async def test_prompt_reaches_the_engine(api: Api, tokenizer: Any) -> None:
    await api.chat(
        messages=[
            {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
            {"role": "user", "content": "Hi"},
        ],
        chat_template_kwargs={"enable_thinking": True},
        priority=-3,
        cache_salt="mine",
        max_tokens=9,
    )
    submitted: Submitted = api.engine.submitted[0]
    prompt = tokenizer.decode(submitted.prompt_token_ids, skip_special_tokens=False)
    assert prompt == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n<think>"
    )
    assert (submitted.priority, submitted.cache_salt) == (-3, "mine")
    assert submitted.params.max_tokens == 9
    assert submitted.params.temperature == 0.6


@pytest.mark.parametrize("stream", [True, False])
async def test_error_before_the_first_token_has_its_status(api: Api, stream: bool) -> None:
    api.engine.steps = [EngineDeadError("gone")]
    response = await api.chat(stream=stream)
    assert response.status_code == 503
    assert response.headers["retry-after"]
    assert response.json()["error"]["code"] == "engine_dead"
    api.engine.steps = [step([], "error", error="NaN in the logits")]
    response = await api.chat(stream=stream)
    assert response.status_code == 500
    assert response.json()["error"] == {
        "message": "NaN in the logits",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }


@pytest.mark.parametrize("failure", [EngineDeadError("gone"), RuntimeError("bug")])
async def test_error_in_mid_stream_is_an_event(api: Api, failure: Exception) -> None:
    api.engine.steps = [step([50]), failure]
    *_, error, done = await api.events(stream_options={"include_usage": True})
    assert done == "[DONE]"
    assert set(error) == {"error"}
    assert set(error["error"]) == {"message", "type", "param", "code"}
    assert "bug" not in error["error"]["message"]


async def test_long_prefill_is_not_silent(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "PING_SECONDS", 0.02)
    api.engine.steps = [0.1, step([50, 51], "length")]
    text = (await api.chat(stream=True)).text
    assert text.startswith(": ping\n\n")
    assert "data: [DONE]\n\n" in text


async def test_failure_of_a_long_prefill_is_an_event(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "PING_SECONDS", 0.02)
    api.engine.steps = [0.1, EngineDeadError("gone")]
    error, done = await api.events()
    assert error["error"]["code"] == "engine_dead"
    assert done == "[DONE]"


class Connection:
    """One request straight into the ASGI application, whose client can leave."""

    def __init__(self, api: Api, **parameters: Any) -> None:
        messages = [{"role": "user", "content": "Hi"}]
        self._body = json.dumps({"messages": messages, **parameters}).encode()
        self._asked = False
        self.gone = asyncio.Event()
        self.sent: list[Any] = []
        transport: Any = api.http._transport
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }
        self.task = asyncio.create_task(transport.app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._body}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("first", [[step([50])], []])
@pytest.mark.parametrize("n", [1, 2])
async def test_disconnect_aborts(api: Api, stream: bool, first: list[Any], n: int) -> None:
    """In mid-stream and before the first token, streaming and not."""
    api.engine.steps = [*first, 60.0]
    connection = Connection(api, stream=stream, n=n)
    await until(
        lambda: (
            len(api.engine.submitted) == n and not (stream and first and len(connection.sent) < 2)
        )
    )
    assert not api.engine.aborted
    connection.gone.set()
    await asyncio.wait_for(connection.task, 5)
    assert len(api.engine.aborted) == n
    assert "dflash_client_disconnects_total 1.0" in (await api.http.get("/metrics")).text


async def test_cancelled_response_aborts(api: Api) -> None:
    """The HTTP server gives up at its shutdown deadline."""
    api.engine.steps = [step([50]), 60.0]
    connection = Connection(api, stream=True)
    await until(lambda: len(connection.sent) >= 2)
    connection.task.cancel()
    await asyncio.wait({connection.task}, timeout=5)
    assert len(api.engine.aborted) == 1
