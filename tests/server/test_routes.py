"""The other routes, and what holds for all of them."""

import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from engine.messages import Stats
from server.app import create_app
from server.config import ServerConfig
from server.service import Service
from tests.server.conftest import Api
from tests.server.scripted_engine import answer


def assert_error(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    return error


async def test_models(api: Api) -> None:
    (card,) = (await api.http.get("/v1/models")).json()["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == ("tiny", "model", 4096)
    assert (await api.http.get("/v1/models/tiny")).json() == card
    error = assert_error(await api.http.get("/v1/models/other/one"), 404, "model_not_found")
    assert "other/one" in error["message"]
    error = assert_error(await api.http.get("/v1/models/"), 404, "not_found")
    assert "GET /v1/models" in error["message"]


async def test_probes(api: Api) -> None:
    assert (await api.http.get("/health")).json() == {"status": "ok"}
    assert (await api.http.get("/ready")).status_code == 200
    assert (await api.http.get("/version")).json()["version"]


async def test_while_loading() -> None:
    app = create_app(Service("tiny"), ServerConfig())
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        assert (await http.get("/health")).status_code == 200
        assert (await http.get("/metrics")).status_code == 200
        assert (await http.get("/v1/models")).json()["data"][0]["id"] == "tiny"
        chat = {"messages": [{"role": "user", "content": "Hi"}]}
        for response in (
            await http.get("/ready"),
            await http.post("/v1/chat/completions", json=chat),
        ):
            assert_error(response, 503, "model_loading")
            assert response.headers["retry-after"]


async def test_dead_worker(api: Api) -> None:
    api.engine.alive = False
    assert_error(await api.http.get("/ready"), 503, "engine_dead")
    response = await api.chat()
    assert_error(response, 503, "engine_dead")
    assert response.headers["retry-after"]
    assert (await api.http.get("/health")).status_code == 200


async def test_unknown_model(api: Api) -> None:
    error = assert_error(await api.chat(model="gpt-4"), 404, "model_not_found")
    assert error["param"] == "model"
    error = assert_error(await api.chat(model="x" * 50_000), 404, "model_not_found")
    assert len(error["message"]) < 200


async def test_unknown_routes_and_methods(api: Api) -> None:
    error = assert_error(await api.http.get("/v1/nothing"), 404, "not_found")
    assert "/v1/nothing" in error["message"]
    response = await api.http.get("/v1/chat/completions")
    assert_error(response, 405, "method_not_allowed")
    assert response.headers["allow"] == "POST"


async def test_repeated_slashes(api: Api) -> None:
    assert (await api.http.get("http://test//v1//models")).status_code == 200


async def test_context_too_long(api: Api) -> None:
    error = assert_error(
        await api.chat(messages=[{"role": "user", "content": "<|im_end|>" * 4500}]),
        400,
        "context_length_exceeded",
    )
    assert "4096" in error["message"]
    assert "45" in error["message"]


@pytest.mark.parametrize("field", ["content", "reasoning", "reasoning_content"])
async def test_what_cannot_fit_is_never_rendered(
    api: Api, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    monkeypatch.setattr(api.service, "prompt_token_ids", None)
    messages = [{"role": "assistant", field: "x" * 30_000} for _ in range(2)]
    error = assert_error(await api.chat(messages=messages), 400, "context_length_exceeded")
    assert "60000 characters" in error["message"]
    assert "4096 tokens" in error["message"]


async def test_max_tokens_is_cut_to_the_room(api: Api) -> None:
    api.engine.steps = [*answer([50])]
    assert (await api.chat(max_tokens=10**9)).status_code == 200
    submitted = api.engine.submitted[0]
    assert submitted.params.max_tokens == 4096 - len(submitted.prompt_token_ids)


async def test_template_refusal(api: Api) -> None:
    message = {"role": "tool", "content": "42", "tool_call_id": "1"}
    error = assert_error(await api.chat(messages=[message]), 400, "invalid_value")
    assert "tools are not known here" in error["message"]


async def test_body_too_large(api: Api) -> None:
    async def endless() -> Any:
        for _ in range(1000):
            yield b" " * 1000

    headers = {"Content-Type": "application/json"}
    url = "/v1/chat/completions"
    declared = await api.http.post(url, content=b" " * 200_000, headers=headers)
    assert_error(declared, 413, "request_too_large")
    chunked = await api.http.post(url, content=endless(), headers=headers)
    assert_error(chunked, 413, "request_too_large")
    assert chunked.headers["x-request-id"]


async def test_request_id(api: Api) -> None:
    async def echoed(given: str) -> str:
        response = await api.http.get("/health", headers={"x-request-id": given})
        return response.headers["x-request-id"]

    assert await echoed("my-id_1.2:3") == "my-id_1.2:3"
    assert await echoed("spaces and\tmore") != "spaces and\tmore"
    assert len(await echoed("x" * 500)) == 32
    assert (await api.http.get("/nowhere")).headers["x-request-id"]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, logger="server.access"):
        yield caplog


async def test_log_line(api: Api, log: pytest.LogCaptureFixture) -> None:
    api.engine.steps = [*answer([50, 51, 52, 53, 54])]
    await api.http.get("/health")
    secret = [{"role": "user", "content": "my secret"}]
    response = await api.chat(messages=secret)
    (line,) = log.messages
    for part in (
        f"request_id={response.headers['x-request-id']}",
        "path=/v1/chat/completions",
        "status=200",
        "completion_tokens=6",
        "finish_reason=stop",
        "ttft=0.",
        "acceptance_length=",
    ):
        assert part in line
    assert "secret" not in line


async def test_unexpected_exception(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("private detail")

    monkeypatch.setattr(api.service, "check_model", broken)
    response = await api.chat()
    error = assert_error(response, 500, "internal_error")
    assert "private" not in error["message"]
    assert response.headers["x-request-id"]


async def test_metrics(api: Api) -> None:
    api.engine.stats = Stats(
        num_requests_running=2,
        num_requests_waiting=1,
        num_kv_pages=10,
        num_free_kv_pages=3,
        num_cached_kv_pages=2,
        num_preemptions=4,
        prefix_cache_queries=100,
        prefix_cache_hits=60,
    )
    api.engine.steps = [*answer([50, 51, 52, 53, 54])]  # steps of 1, 3 and 2 tokens
    await api.chat()
    text = (await api.http.get("/metrics")).text
    for line in (
        "dflash_num_requests_running 2.0",
        "dflash_num_requests_waiting 1.0",
        "dflash_kv_cache_usage_perc 0.5",
        "dflash_num_preemptions_total 4.0",
        "dflash_prefix_cache_queries_total 100.0",
        "dflash_prefix_cache_hits_total 60.0",
        "dflash_worker_heartbeat_age_seconds 0.1",
        "dflash_generation_tokens_total 6.0",
        'dflash_request_success_total{finished_reason="stop"} 1.0',
        "dflash_time_to_first_token_seconds_count 1.0",
        "dflash_inter_chunk_latency_seconds_count 2.0",
        "dflash_e2e_request_latency_seconds_count 1.0",
        "dflash_spec_decode_num_drafts_total 2.0",
        "dflash_spec_decode_num_draft_tokens_total 6.0",
        "dflash_spec_decode_num_accepted_tokens_total 3.0",
        'dflash_spec_decode_num_accepted_tokens_per_pos_total{position="0"} 2.0',
        'dflash_spec_decode_num_accepted_tokens_per_pos_total{position="1"} 1.0',
        'dflash_spec_decode_num_accepted_tokens_per_pos_total{position="2"} 0.0',
    ):
        assert line in text.splitlines(), line
    prompt = len(api.engine.submitted[0].prompt_token_ids)
    assert f"dflash_prompt_tokens_total {float(prompt)}" in text


async def test_openapi_document(api: Api) -> None:
    document = (await api.http.get("/openapi.json")).json()
    assert "/v1/chat/completions" in document["paths"]
