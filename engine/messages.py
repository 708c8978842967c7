"""Messages between the API process and the engine worker (msgpack through msgspec, never pickle).

Definitions used everywhere in this project:

- *committed* tokens have their keys and values in the cache;
- the *bonus* is the newest sampled token: emitted, but not committed yet;
- *drafts* are the drafter's guesses for the tokens after the bonus;
- a *draft block* is the bonus and its K drafts: the K + 1 tokens that one step verifies;
- *accepted* drafts equal what the target itself sampled at their positions.

A step emits its accepted drafts and one more token of the target's own, which is the next bonus.
"""

from typing import Literal

import msgspec

MAX_STOP_TOKEN_IDS = 64
"""Tokens that may end one request: ``stop_token_ids`` and the checkpoint's EOS together."""

FinishReason = Literal["stop", "length", "error"]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one request's tokens are chosen. Names and meaning follow vLLM.

    Noise is a function of (``seed``, position in the sequence), so equal seeds give equal output
    in any batch. ``temperature`` 0 is greedy. ``top_k`` 0 keeps the whole vocabulary.
    """

    max_tokens: int
    seed: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Start a request. ``output_token_ids`` are tokens that it has emitted before (recovery)."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    priority: int = 0
    cache_salt: str = ""
    output_token_ids: list[int] = []


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Stop a request and free its pages. Unknown ids are ignored: it may just have finished."""

    request_id: str


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """Leave the worker's loop and exit 0."""


class Output(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one step gave one request.

    ``token_ids`` ends with the stop token if a stop token ended the request. ``num_draft_tokens``
    counts the drafts that the step verified (0: a prompt's first token, or plain decoding);
    ``len(token_ids) - 1`` is counted as accepted, so that tokens per step are exact also where a
    stop token or max_tokens cut the accepted drafts. ``num_cached_tokens`` counts prompt
    tokens served from the prefix cache.
    """

    request_id: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    num_draft_tokens: int = 0
    num_cached_tokens: int = 0
    error: str | None = None


class Outputs(msgspec.Struct, frozen=True, tag=True):
    """All outputs of one step, in one message."""

    outputs: list[Output]


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The worker serves. ``num_draft_tokens`` is K (0 without a drafter); ``synthetic``: drafts are
    accepted by chance (engine.synthetic_acceptance_rates)."""

    max_model_len: int
    num_kv_tokens: int
    num_draft_tokens: int
    vocab_size: int
    eos_token_ids: list[int]
    device: str
    dtype: str
    synthetic: bool = False


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The worker cannot start. One line for the operator: key, value and remedy."""

    message: str


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Gauges and counters since the worker's start. Prefix cache counts are in prompt tokens;
    ``num_draft_tokens`` is how many drafts the last step proposed for each request."""

    num_requests_running: int = 0
    num_requests_waiting: int = 0
    num_kv_pages: int = 0
    num_free_kv_pages: int = 0
    num_cached_kv_pages: int = 0
    num_preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    num_draft_tokens: int = 0


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """Sent by the worker's loop at least twice a second while it is healthy."""

    stats: Stats


ToWorker = Submit | Abort | Shutdown
FromWorker = Ready | Failed | Outputs | Heartbeat
