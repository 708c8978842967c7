import json
from pathlib import Path
from typing import Any

import pytest

from engine.config import ConfigError
from engine.messages import MAX_STOP_TOKEN_IDS, Ready, SamplingParams
from server.errors import ApiError
from server.protocol import ChatCompletionRequest
from server.sampling_params import SamplingDefaults, load_sampling_defaults, to_sampling_params

DEFAULTS = SamplingDefaults(temperature=0.6, top_p=0.95, top_k=20, min_p=0.1)

READY = Ready(
    max_model_len=1000,
    num_kv_tokens=1000,
    num_draft_tokens=3,
    vocab_size=500,
    eos_token_ids=[1, 2],
    device="cpu",
    dtype="float32",
)


def params(room: int = 100, **fields: Any) -> SamplingParams:
    request = ChatCompletionRequest.model_validate(
        {"messages": [{"role": "user", "content": "Hi"}], **fields}
    )
    return to_sampling_params(request, DEFAULTS, READY, room=room)


def test_defaults_come_from_the_checkpoint() -> None:
    chosen = params()
    assert (chosen.temperature, chosen.top_p, chosen.top_k, chosen.min_p) == (0.6, 0.95, 20, 0.1)
    assert chosen.max_tokens == 100


def test_the_request_wins_also_with_zero() -> None:
    chosen = params(temperature=0, top_p=1, top_k=0, min_p=0)
    assert (chosen.temperature, chosen.top_p, chosen.top_k, chosen.min_p) == (0, 1, 0, 0)
    assert params(top_k=-1).top_k == 0
    assert params(top_k=10_000).top_k == 500
    assert 0 < params(top_p=0).top_p < 1e-3


@pytest.mark.parametrize(
    ("fields", "max_tokens"),
    [
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 8, "max_tokens": 7}, 8),
        ({"max_tokens": 100_000}, 100),
        ({"max_tokens": None}, 100),
    ],
)
def test_max_tokens(fields: dict[str, Any], max_tokens: int) -> None:
    assert params(**fields).max_tokens == max_tokens


def test_min_tokens_never_exceed_the_room() -> None:
    assert params(room=5, min_tokens=10).min_tokens == 5


@pytest.mark.parametrize("seed", [0, -1, 2**63, -(2**63), 2**64 - 1])
def test_seed_fits_64_bits(seed: int) -> None:
    assert params(seed=seed).seed == seed % 2**64


def test_no_seed_is_a_random_one() -> None:
    assert params().seed != params().seed


def test_token_ids() -> None:
    chosen = params(logit_bias={"7": -100, "499": 1.5}, stop_token_ids=[3, 3, 4])
    assert chosen.logit_bias == {7: -100, 499: 1.5}
    assert chosen.stop_token_ids == (3, 4)


@pytest.mark.parametrize("fields", [{"logit_bias": {"500": 1}}, {"stop_token_ids": [500]}])
def test_token_ids_outside_the_vocabulary(fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        params(**fields)
    assert caught.value.status_code == 400
    assert caught.value.param in fields
    assert "500" in caught.value.detail


def test_stop_token_ids_share_their_room_with_eos() -> None:
    room = MAX_STOP_TOKEN_IDS - len(READY.eos_token_ids)
    assert len(params(stop_token_ids=[*range(10, 10 + room), 2]).stop_token_ids) == room + 1
    with pytest.raises(ApiError, match=f"at most {room} ") as caught:
        params(stop_token_ids=[*range(10, 11 + room)])
    assert (caught.value.status_code, caught.value.param) == (400, "stop_token_ids")


def test_generation_config(tmp_path: Path) -> None:
    assert load_sampling_defaults(tmp_path) == SamplingDefaults()
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({"temperature": 0.7, "top_k": None, "eos_token_id": [1]}))
    assert load_sampling_defaults(tmp_path) == SamplingDefaults(temperature=0.7)
    path.write_text(json.dumps({"top_p": 7}))
    with pytest.raises(ConfigError, match=r"generation_config\.json: top_p = 7"):
        load_sampling_defaults(tmp_path)
    path.write_text("[")
    with pytest.raises(ConfigError, match="invalid JSON"):
        load_sampling_defaults(tmp_path)
