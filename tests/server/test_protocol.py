"""What a request may say. Over HTTP, because the answer's form matters as much as the check."""

import json
from typing import Any

import pytest

from server.unsupported import UNSUPPORTED
from tests.server.conftest import Api
from tests.server.scripted_engine import answer

USER = {"role": "user", "content": "Hi"}


async def refusal(api: Api, **parameters: Any) -> dict[str, Any]:
    response = await api.chat(**parameters)
    assert response.status_code == 400, response.text
    assert list(response.json()) == ["error"]
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert isinstance(error["code"], str)
    assert not api.engine.submitted
    return error


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
async def test_unsupported_parameters_are_refused_by_name(api: Api, name: str) -> None:
    error = await refusal(api, **{name: {"anything": "special"}})
    assert error["param"] == name
    assert error["code"] == "unsupported_parameter"
    assert name in error["message"]


@pytest.mark.parametrize(
    "parameters",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"tool_choice": "required"},
        {"response_format": {"type": "json_object"}},
        {"logprobs": True},
        {"top_logprobs": 3},
        {"store": True},
        {"modalities": ["text", "audio"]},
        {"reasoning_effort": "low"},
        {"continue_final_message": True},
    ],
)
async def test_unsupported_values(api: Api, parameters: dict[str, Any]) -> None:
    assert (await refusal(api, **parameters))["param"] in parameters


async def test_neutral_values_pass(api: Api) -> None:
    api.engine.steps = [*answer([10])]
    neutral = {name: values[0] for name, values in UNSUPPORTED.items() if values}
    nulls = {name: None for name, values in UNSUPPORTED.items() if not values}
    response = await api.chat(**neutral, **nulls, parallel_tool_calls=True, private_extension=1)
    assert response.status_code == 200, response.text


async def test_nulls_are_defaults(api: Api) -> None:
    api.engine.steps = [*answer([10])]
    names = (
        "stream stream_options n max_tokens max_completion_tokens min_tokens stop stop_token_ids "
        "ignore_eos temperature top_p top_k min_p presence_penalty frequency_penalty logit_bias "
        "repetition_penalty seed priority chat_template_kwargs user metadata skip_special_tokens"
    )
    response = await api.chat(**dict.fromkeys(names.split()))
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 1.5),
        ("presence_penalty", 3),
        ("frequency_penalty", -3),
        ("repetition_penalty", 0),
        ("max_tokens", 0),
        ("max_tokens", 2**70),
        ("max_completion_tokens", -1),
        ("min_tokens", -1),
        ("n", 0),
        ("n", 1000),
        ("seed", 2**64),
        ("seed", -(2**63) - 1),
        ("priority", 2**31),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("stop", ""),
        ("stop", "x" * 2000),
        ("stop", 3),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [600]),
        ("stop_token_ids", [1] * 1000),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"600": 1}),
        ("logit_bias", {str(n): 1 for n in range(2000)}),
        ("chat_template_kwargs", {"messages": []}),
        ("chat_template_kwargs", {"messages": None}),
        ("chat_template_kwargs", {"enable_thinking": [1]}),
        ("stream", "yes"),
        ("stream_options", {"include_usage": "yes"}),
        ("logit_bias", {"\ud800": 1}),
        ("cache_salt", "\ud800"),
        ("stop", "\ud800"),
        ("model", "\ud800"),
        ("messages", [{"role": "user", "content": "\ud800"}]),
        ("messages", []),
        ("messages", "Hi"),
        ("messages", [{"role": "wizard", "content": "Hi"}]),
        ("messages", [{"role": "user"}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
        ("messages", [{"role": "user", "content": [{"type": "input_audio"}]}]),
        ("messages", [{"role": "user", "content": [{"type": "text"}]}]),
        ("messages", [{"role": "user", "content": ["Hi"]}]),
        ("messages", [{"role": "user", "content": 1}]),
    ],
)
async def test_values_out_of_range(api: Api, name: str, value: Any) -> None:
    error = await refusal(api, **{name: value})
    assert error["param"].startswith(name)
    assert name in error["message"]


async def test_image_parts_are_named(api: Api) -> None:
    content = [{"type": "text", "text": "What is this?"}, {"type": "image_url"}]
    error = await refusal(api, messages=[{"role": "user", "content": content}])
    assert "image_url" in error["message"]
    assert error["param"] == "messages[0].content"


async def test_too_many_messages_and_parts(api: Api) -> None:
    error = await refusal(api, messages=[1] * 5000)
    assert error["param"] == "messages"
    assert "5000" in error["message"]
    assert "4096" in error["message"]
    error = await refusal(api, messages=[{"role": "user", "content": [1] * 5000}])
    assert error["param"] == "messages[0].content"
    assert "4096" in error["message"]


async def test_min_tokens_above_max_tokens(api: Api) -> None:
    error = await refusal(api, min_tokens=10, max_tokens=5)
    assert error["param"] == "min_tokens"
    assert error["message"] == "Invalid value for min_tokens: 10 is above max_tokens = 5."
    error = await refusal(api, min_tokens=10, max_completion_tokens=5, max_tokens=20)
    assert "max_completion_tokens = 5" in error["message"]


async def test_messages_speak_json(api: Api) -> None:
    error = await refusal(api, response_format={"type": "json_object"})
    assert '(only {"type": "text"})' in error["message"]
    assert "(only false)" in (await refusal(api, logprobs=True))["message"]
    error = await refusal(api, stop="")
    assert error["param"] == "stop"
    assert "must not be empty" in error["message"]


async def test_null_switch_is_the_default(api: Api) -> None:
    api.engine.steps = [*answer([10])]
    await api.chat()
    response = await api.chat(chat_template_kwargs={"enable_thinking": None})
    assert response.status_code == 200
    plain, null = api.engine.submitted
    assert plain.prompt_token_ids == null.prompt_token_ids


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_no_number(api: Api, number: str) -> None:
    body = json.dumps({"messages": [USER]})[:-1] + f', "temperature": {number}}}'
    headers = {"Content-Type": "application/json"}
    response = await api.http.post("/v1/chat/completions", content=body, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "temperature"


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"[" * 50_000, "nested too deeply"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "digits"),
        (b"\xff", "UTF-8"),
    ],
)
async def test_unreadable_bodies(api: Api, body: bytes, complaint: str) -> None:
    headers = {"Content-Type": "application/json"}
    response = await api.http.post("/v1/chat/completions", content=body, headers=headers)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "invalid_json"
    assert complaint in error["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff",
        b"[" * 50_000,
        b'{"seed": ' + b"9" * 5000 + b"}",
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    ],
)
async def test_malformed_bodies(api: Api, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    response = await api.http.post("/v1/chat/completions", content=body, headers=headers)
    assert response.status_code == 400
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


async def test_body_that_is_not_declared_json(api: Api) -> None:
    response = await api.http.post("/v1/chat/completions", content=b'{"messages": []}')
    assert response.status_code == 400
    assert "application/json" in response.json()["error"]["message"]
