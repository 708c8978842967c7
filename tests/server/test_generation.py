"""From engine steps to text: stop tokens, stop strings, several choices, failures."""

import asyncio
import time
from typing import Any, cast

import pytest

from engine.client import EngineClient, EngineDeadError
from engine.messages import Output, SamplingParams
from server.errors import ApiError
from server.generation import Delta, Generation, Job
from server.metrics import Metrics
from server.tokenizer import Tokenizer
from tests.server.scripted_engine import ScriptedEngine, answer, step

Steps = list[Output | Exception | asyncio.Event | float]


def generation(tokenizer: Tokenizer, engine: ScriptedEngine) -> Generation:
    client, metrics = cast(EngineClient, engine), Metrics()
    metrics.attach(client, engine.ready)
    return Generation(client, engine.ready, tokenizer, metrics, time.monotonic())


def job(**fields: Any) -> Job:
    params = SamplingParams(max_tokens=100, seed=7, min_tokens=fields.pop("min_tokens", 0))
    return Job(request_id="r", prompt_token_ids=[5, 6], params=params, **fields)


async def run(
    tokenizer: Tokenizer, steps: Steps, **fields: Any
) -> tuple[list[Delta], Generation, ScriptedEngine]:
    engine = ScriptedEngine(steps)
    running = generation(tokenizer, engine)
    return [delta async for delta in running.deltas(job(**fields))], running, engine


def text_of(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


async def test_one_delta_for_each_step(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("The quick brown 😀 fox")
    deltas, running, engine = await run(tokenizer, [*answer(tokens)])
    assert text_of(deltas) == "The quick brown 😀 fox"
    assert len(deltas) == len(answer(tokens))
    assert [d.finish_reason for d in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish_reason == "stop"
    # The stop token is counted but not shown.
    assert running.usage.completion_tokens == len(tokens) + 1
    assert running.usage.prompt_tokens == 2
    assert not engine.aborted


async def test_stop_token_that_is_ordinary_text_is_not_shown(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("abc")
    deltas, running, _ = await run(tokenizer, [step(tokens, "stop")])
    assert text_of(deltas) == tokenizer.decode(tokens[:-1])
    assert running.usage.completion_tokens == len(tokens)


async def test_length_shows_every_token(tokenizer: Tokenizer) -> None:
    deltas, _, _ = await run(tokenizer, [step(tokenizer.encode("abc"), "length")])
    assert (text_of(deltas), deltas[-1].finish_reason) == ("abc", "length")


async def test_cut_character_at_the_end(tokenizer: Tokenizer) -> None:
    deltas, _, _ = await run(tokenizer, [step(tokenizer.encode("a😎")[:-1], "length")])
    assert text_of(deltas) == "a\ufffd"


@pytest.mark.parametrize("stop", [(" brown",), ("wn f", "never"), ("own", "brown")])
async def test_stop_string_trims_text_tokens_and_usage(
    tokenizer: Tokenizer, stop: tuple[str, ...]
) -> None:
    text = "The quick brown fox jumps over the lazy dog."
    tokens = tokenizer.encode(text)
    deltas, running, engine = await run(tokenizer, [step(tokens[:2]), step(tokens[2:])], stop=stop)
    first_end = min(text.index(s) + len(s) for s in stop if s in text)
    needed = next(n for n in range(len(tokens)) if len(tokenizer.decode(tokens[:n])) >= first_end)
    assert text_of(deltas) == text[: min(text.index(s) for s in stop if s in text)]
    assert [t for d in deltas for t in d.token_ids] == tokens[:needed]
    assert running.usage.completion_tokens == needed
    assert deltas[-1].finish_reason == "stop"
    assert engine.aborted == ["r-0"]


async def test_stop_string_over_several_steps(tokenizer: Tokenizer) -> None:
    steps: Steps = [step([token]) for token in tokenizer.encode("one</end>two")]
    deltas, _, engine = await run(tokenizer, steps, stop=("</end>",))
    assert text_of(deltas) == "one"
    assert engine.aborted == ["r-0"]


async def test_withheld_text_comes_out_at_the_end(tokenizer: Tokenizer) -> None:
    steps: Steps = [step(tokenizer.encode("one</en"), "length")]
    deltas, _, _ = await run(tokenizer, steps, stop=("</end>",))
    assert text_of(deltas) == "one</en"
    assert deltas[-1].finish_reason == "length"


async def test_no_stop_string_within_min_tokens(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("a b c b d")
    deltas, _, _ = await run(tokenizer, [step(tokens, "length")], stop=("b",), min_tokens=4)
    assert text_of(deltas) == "a b c "


async def test_closing_aborts(tokenizer: Tokenizer) -> None:
    engine = ScriptedEngine([step([10]), 60.0])
    running = generation(tokenizer, engine)
    deltas = running.deltas(job())
    await anext(deltas)
    await deltas.aclose()
    assert engine.aborted == ["r-0"]
    assert running.finish_reasons == ["abort"]


async def test_choices_sample_with_seeds_of_their_own(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("Hi")
    deltas, running, engine = await run(
        tokenizer, [*answer(tokens)], num_choices=3, priority=2, cache_salt="s"
    )
    assert [s.params.seed for s in engine.submitted] == [7, 8, 9]
    assert {s.request_id for s in engine.submitted} == {"r-0", "r-1", "r-2"}
    assert {(s.priority, s.cache_salt) for s in engine.submitted} == {(2, "s")}
    for index in range(3):
        assert text_of([d for d in deltas if d.index == index]) == "Hi"
    assert running.usage.completion_tokens == 3 * (len(tokens) + 1)
    assert running.usage.prompt_tokens == 2
    assert running.finish_reasons == ["stop"] * 3


async def test_closing_aborts_every_choice(tokenizer: Tokenizer) -> None:
    engine = ScriptedEngine([step([10]), 60.0])
    deltas = generation(tokenizer, engine).deltas(job(num_choices=3))
    await anext(deltas)
    await deltas.aclose()
    assert sorted(engine.aborted) == ["r-0", "r-1", "r-2"]


@pytest.mark.parametrize("num_choices", [1, 2])
@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (EngineDeadError("gone"), 503),
        (step([], "error", error="NaN in the logits"), 500),
        (step([10]), 503),  # and then nothing: a broken promise
    ],
)
async def test_failures(tokenizer: Tokenizer, failure: Any, status: int, num_choices: int) -> None:
    with pytest.raises(ApiError) as caught:
        await run(tokenizer, [step([10]), failure], num_choices=num_choices)
    assert caught.value.status_code == status


async def test_speculation_is_counted(tokenizer: Tokenizer) -> None:
    steps: Steps = [
        step([10]),
        step([10, 11, 12, 13], num_draft_tokens=3),
        step([10], num_draft_tokens=3),
        step([10, 11], num_draft_tokens=2, reason="length"),
    ]
    _, running, _ = await run(tokenizer, steps)
    summary = running.speculation.summary()
    assert summary is not None
    assert summary.acceptance_histogram == [1, 1, 0, 1]
    assert summary.num_spec_steps == 3
    assert summary.num_accepted_draft_tokens == 4
    assert summary.num_draft_tokens == 8
    assert summary.num_spec_tokens == 3
    assert summary.mean_acceptance_length == pytest.approx(1 + 4 / 3)
    assert summary.draft_acceptance_rate == pytest.approx(4 / 8)
    assert running.speculation.accepted_per_position() == [2, 1, 1]


async def test_drafts_behind_a_stop_string_are_not_accepted(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("a#bc")
    assert len(tokens) == 4
    steps: Steps = [step(tokens, num_draft_tokens=3)]
    _, running, _ = await run(tokenizer, steps, stop=("#",))
    summary = running.speculation.summary()
    assert summary is not None
    assert (summary.num_accepted_draft_tokens, running.usage.completion_tokens) == (1, 2)


async def test_latencies_begin_when_the_request_arrives(tokenizer: Tokenizer) -> None:
    engine = ScriptedEngine([step([10], "length")])
    client, metrics = cast(EngineClient, engine), Metrics()
    running = Generation(client, engine.ready, tokenizer, metrics, time.monotonic() - 100)
    _ = [delta async for delta in running.deltas(job())]
    assert running.time_to_first_token is not None
    assert 100 <= running.time_to_first_token < 110


async def test_plain_decoding_has_no_speculation(tokenizer: Tokenizer) -> None:
    _, running, _ = await run(tokenizer, [step([10]), step([11], "length")])
    assert running.speculation.summary() is None


async def test_cached_tokens(tokenizer: Tokenizer) -> None:
    _, running, _ = await run(tokenizer, [step([10], num_cached_tokens=2), step([11], "length")])
    assert running.usage.prompt_tokens_details.cached_tokens == 2
