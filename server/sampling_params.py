"""From a request to the engine's sampling parameters."""

import json
import secrets
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.config import ConfigError
from engine.messages import MAX_STOP_TOKEN_IDS, Ready, SamplingParams
from server.errors import invalid
from server.protocol import ChatCompletionRequest

T = TypeVar("T", int, float)

# top_p = 0 is allowed in OpenAI's interface and keeps the most likely token alone; so does this.
MIN_TOP_P = 1e-6


class SamplingDefaults(BaseModel):
    """What a request gets that does not say: the checkpoint's ``generation_config.json``."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, ge=0, le=1)
    top_k: int = Field(0, ge=-1)
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, gt=0)


def load_sampling_defaults(directory: Path) -> SamplingDefaults:
    """Read ``generation_config.json`` if there is one; raises ConfigError."""
    path = directory / "generation_config.json"
    if not path.is_file():
        return SamplingDefaults()
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        known = {k: v for k, v in values.items() if v is not None}
        return SamplingDefaults.model_validate(known)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            f"{path}: {first['loc'][0]} = {first['input']!r}: {first['msg']}; correct the file"
        ) from None
    except (ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path}: invalid JSON ({error}); fetch the checkpoint again") from None


def to_sampling_params(
    request: ChatCompletionRequest, defaults: SamplingDefaults, ready: Ready, *, room: int
) -> SamplingParams:
    """Parameters of the first choice. ``room``: tokens that fit after the prompt.

    More than the room is cut to it; token ids outside the vocabulary are a 400.
    """
    vocab_size = ready.vocab_size
    max_tokens = min(request.requested_max_tokens or room, room)
    top_k = _or(request.top_k, defaults.top_k)
    seed = secrets.randbits(63) if request.seed is None else request.seed
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min(request.min_tokens or 0, max_tokens),
        seed=wrap_seed(seed),
        temperature=_or(request.temperature, defaults.temperature),
        top_p=max(_or(request.top_p, defaults.top_p), MIN_TOP_P),
        top_k=min(max(top_k, 0), vocab_size),
        min_p=_or(request.min_p, defaults.min_p),
        repetition_penalty=_or(request.repetition_penalty, defaults.repetition_penalty),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        presence_penalty=_or(request.presence_penalty, 0.0),
        logit_bias=_logit_bias(request, vocab_size),
        stop_token_ids=_stop_token_ids(request, ready),
        ignore_eos=bool(request.ignore_eos),
    )


def wrap_seed(seed: int) -> int:
    """Any integer as 64 bits."""
    return seed & (2**64 - 1)


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


def _logit_bias(request: ChatCompletionRequest, vocab_size: int) -> dict[int, float]:
    biases = {int(token): bias for token, bias in (request.logit_bias or {}).items()}
    _check_vocabulary(biases, "logit_bias", vocab_size)
    return biases


def _stop_token_ids(request: ChatCompletionRequest, ready: Ready) -> tuple[int, ...]:
    token_ids = tuple(dict.fromkeys(request.stop_token_ids or ()))
    _check_vocabulary(token_ids, "stop_token_ids", ready.vocab_size)
    own = set() if request.ignore_eos else set(ready.eos_token_ids)
    if len(own | set(token_ids)) > MAX_STOP_TOKEN_IDS:
        raise invalid(
            f"Invalid value for stop_token_ids: {len(token_ids)} token ids are too many, at most "
            f"{MAX_STOP_TOKEN_IDS - len(own)} are accepted besides the model's own {len(own)}.",
            "stop_token_ids",
        )
    return token_ids


def _check_vocabulary(
    token_ids: dict[int, float] | tuple[int, ...], param: str, vocab_size: int
) -> None:
    outside = next((token for token in token_ids if token >= vocab_size), None)
    if outside is not None:
        raise invalid(
            f"Invalid value for {param}: token id {outside} is outside the vocabulary "
            f"of {vocab_size} tokens.",
            param,
        )
