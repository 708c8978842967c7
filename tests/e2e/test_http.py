"""A real server of the bundled pair, driven by the openai client."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.running_server import RunningServer, run_server

QUESTION = [{"role": "user", "content": "What does `os.path.join` do?"}]
LONG = [{"role": "user", "content": "Show me the source of `textwrap.dedent`."}]


def ask(client: openai.OpenAI, messages: list[Any] = QUESTION, **options: Any) -> Any:
    options = {"temperature": 0, **options}
    return client.chat.completions.create(model="dflash-demo", messages=messages, **options)


def stream_text(client: openai.OpenAI, messages: list[Any] = QUESTION, **options: Any) -> str:
    chunks = ask(client, messages, stream=True, **options)
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def test_plain_answer(server: RunningServer) -> None:
    answer = ask(server.client())
    assert answer.choices[0].finish_reason == "stop"
    assert "join" in answer.choices[0].message.content
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    speculation = answer.model_extra["metrics"]["speculative_decoding"]
    assert speculation["mean_acceptance_length"] > 1
    assert sum(speculation["acceptance_histogram"]) == speculation["num_spec_steps"]


def test_stream_equals_plain_and_has_multi_token_chunks(server: RunningServer) -> None:
    plain = ask(server.client(), LONG)
    chunks = list(ask(server.client(), LONG, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == plain.choices[0].message.content
    assert [c.choices[0].delta.role for c in chunks if c.choices].count("assistant") == 1
    usage = chunks[-1].usage
    assert usage.completion_tokens == plain.usage.completion_tokens
    # Every step is one chunk, and a step brings several tokens.
    assert len(chunks) < usage.completion_tokens
    assert {c.id for c in chunks} == {chunks[0].id}


def test_seed_reproduces_at_any_width(server: RunningServer) -> None:
    options = {"temperature": 1.0, "seed": 7, "max_tokens": 60, "top_p": 0.95}
    texts = [ask(server.client(), **options).choices[0].message.content for _ in range(2)]
    with run_server() as other:
        texts.append(ask(other.client(), **options).choices[0].message.content)
    with run_server("--set", "engine.num_draft_tokens=3") as other:
        texts.append(ask(other.client(), **options).choices[0].message.content)
    assert len(set(texts)) == 1


def test_concurrent_requests_do_not_disturb_each_other(server: RunningServer) -> None:
    client = server.client()
    questions = [QUESTION, LONG, [{"role": "user", "content": "Signature of `json.dumps`?"}]]
    alone = [stream_text(client, q, max_tokens=80) for q in questions]
    with ThreadPoolExecutor(12) as pool:
        together = list(
            pool.map(lambda i: stream_text(client, questions[i % 3], max_tokens=80), range(24))
        )
    assert together == [alone[i % 3] for i in range(24)]


def test_disconnect_in_mid_stream_frees_everything(server: RunningServer) -> None:
    options = {"max_tokens": 1500, "extra_body": {"ignore_eos": True}}
    with ask(server.client(), stream=True, **options) as stream:
        next(iter(stream))
        assert wait_for(lambda: server.metric("dflash_num_requests_running") == 1)
    assert wait_for(lambda: server.metric("dflash_num_requests_running") == 0)
    assert server.metric("dflash_kv_cache_usage_perc") == 0
    assert "join" in ask(server.client()).choices[0].message.content


@pytest.mark.parametrize(
    ("options", "status", "names"),
    [
        ({"temperature": -1}, 400, "temperature"),
        ({"model": "no-such-model"}, 404, "no-such-model"),
        ({"logprobs": True}, 400, "logprobs"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "user", "content": "x " * 5000}]}, 400, "2048"),
    ],
)
def test_bad_requests(
    server: RunningServer, options: dict[str, Any], status: int, names: str
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        server.client().chat.completions.create(
            **{"model": "dflash-demo", "messages": QUESTION, **options}
        )
    assert caught.value.status_code == status
    body = caught.value.response.json()
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert names in body["error"]["message"]


def test_malformed_json(server: RunningServer) -> None:
    response = httpx.post(f"{server.url}/v1/chat/completions", content=b"{not json")
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_sse_bytes(server: RunningServer) -> None:
    """The wire format: data lines, blank lines, [DONE] last."""
    body = {"model": "dflash-demo", "messages": QUESTION, "stream": True, "temperature": 0}
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [line for line in response.text.split("\n") if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert "\r" not in response.text


def test_metrics_count_speculation(server: RunningServer) -> None:
    names = ["drafts", "draft_tokens", "accepted_tokens"]
    before = [server.metric(f"dflash_spec_decode_num_{n}_total") for n in names]
    answer = ask(server.client(), LONG)
    after = [server.metric(f"dflash_spec_decode_num_{n}_total") for n in names]
    drafts, proposed, accepted = (b - a for a, b in zip(before, after, strict=True))
    assert proposed == 15 * drafts
    # One token came from the prompt's end, one more from the target in every step.
    assert accepted + drafts + 1 == answer.usage.completion_tokens


def test_models_and_health(server: RunningServer) -> None:
    assert [m.id for m in server.client().models.list()] == ["dflash-demo"]
    assert httpx.get(f"{server.url}/health").status_code == 200
