"""One API request in the engine: its choices, their text as it arrives, and what they cost."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

import msgspec

from engine.client import EngineClient, EngineDeadError
from engine.messages import Output, Ready, SamplingParams
from server.detokenizer import Detokenizer
from server.errors import ApiError, internal, unavailable
from server.metrics import Metrics
from server.protocol import CompletionTokensDetails, PromptTokensDetails, Usage
from server.sampling_params import wrap_seed
from server.speculation import SpeculationCounts
from server.stop_strings import StopStrings
from server.tokenizer import Tokenizer

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is asked of the engine. Choice ``i`` samples with ``params.seed + i``."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    num_choices: int = 1
    stop: tuple[str, ...] = ()
    skip_special_tokens: bool = True
    priority: int = 0
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class Delta:
    """What one engine step added to one choice. ``token_ids`` are those that count as its output:
    a stop token is among them, what a step brought behind a stop string is not."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None


class ChoiceText:
    """From one choice's engine outputs to its deltas."""

    def __init__(self, index: int, job: Job, tokenizer: Tokenizer) -> None:
        self._index = index
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=job.skip_special_tokens)
        self._stops = StopStrings(job.stop) if job.stop else None
        self._unstoppable = job.params.min_tokens  # tokens that no stop string may end

    def push(self, output: Output) -> Delta:
        """The delta of one step."""
        assert output.finish_reason != "error"
        # The stop token that ended the choice is counted but not shown.
        shown = output.token_ids[:-1] if output.finish_reason == "stop" else output.token_ids
        if self._stops is None:
            text, num_kept = self._detokenizer.push(shown), None
        else:
            text, num_kept = self._push_each(shown, self._stops)
        if num_kept is not None:
            return Delta(self._index, text, output.token_ids[:num_kept], "stop")
        if output.finish_reason is None:
            return Delta(self._index, text, output.token_ids)
        rest, stopped = self._flush()
        reason = "stop" if stopped else output.finish_reason
        return Delta(self._index, text + rest, output.token_ids, reason)

    def _push_each(self, token_ids: list[int], stops: StopStrings) -> tuple[str, int | None]:
        """Token by token, to know how many were needed to complete a stop string."""
        text = ""
        for position, token_id in enumerate(token_ids, start=1):
            piece = self._detokenizer.push((token_id,))
            if self._unstoppable > 0:
                self._unstoppable -= 1
                text += piece
                continue
            piece, stopped = stops.push(piece)
            text += piece
            if stopped:
                return text, position
        return text, None

    def _flush(self) -> tuple[str, bool]:
        rest = self._detokenizer.flush()
        if self._stops is None:
            return rest, False
        rest, stopped = self._stops.push(rest)
        return rest + self._stops.flush(), stopped


class Generation:
    """Runs a job. ``deltas`` may be iterated once; closing it aborts what still runs.

    ``started_at``: when the request arrived (time.monotonic), from which latencies are counted.
    """

    def __init__(
        self,
        engine: EngineClient,
        ready: Ready,
        tokenizer: Tokenizer,
        metrics: Metrics,
        started_at: float,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._started_at = started_at
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_completion_tokens = 0
        self.time_to_first_token: float | None = None
        self.finish_reasons: list[str] = []
        self.speculation = SpeculationCounts(ready.num_draft_tokens, ready.synthetic)

    async def deltas(self, job: Job) -> AsyncGenerator[Delta, None]:
        """The deltas of all choices, in the order in which the engine brings them.

        Raises ApiError; before the first delta it can still become the response's status.
        """
        self.num_prompt_tokens = len(job.prompt_token_ids)
        choices = [self._choice(index, job) for index in range(job.num_choices)]
        unfinished = "abort"
        try:
            async with aclosing(choices[0] if len(choices) == 1 else _merge(choices)) as stream:
                async for delta in stream:
                    yield delta
        except EngineDeadError as error:
            unfinished = "error"
            raise unavailable(
                "The engine stopped before the answer was complete.", "engine_dead"
            ) from error
        except ApiError:
            unfinished = "error"
            raise
        finally:
            self._end(job.num_choices, unfinished)

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return Usage(
            prompt_tokens=self.num_prompt_tokens,
            completion_tokens=self.num_completion_tokens,
            total_tokens=self.num_prompt_tokens + self.num_completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=self.num_cached_tokens),
            completion_tokens_details=CompletionTokensDetails(),
        )

    async def _choice(self, index: int, job: Job) -> AsyncGenerator[Delta, None]:
        text = ChoiceText(index, job, self._tokenizer)
        delta: Delta | None = None
        previous: float | None = None
        async with aclosing(self._outputs(index, job)) as outputs:
            async for output in outputs:
                if output.finish_reason == "error":
                    raise internal(output.error or "The engine failed on this request.")
                delta = text.push(output)
                previous = self._count(output, delta, previous)
                if delta.finish_reason is not None:
                    break
                yield delta
        # Out here the engine has been told to stop, however long the client takes to read this.
        if delta is None or delta.finish_reason is None:
            raise EngineDeadError("it ended a request without a reason")
        yield delta

    def _outputs(self, index: int, job: Job) -> AsyncGenerator[Output, None]:
        seed = wrap_seed(job.params.seed + index)
        return self._engine.generate(
            f"{job.request_id}-{index}",
            job.prompt_token_ids,
            msgspec.structs.replace(job.params, seed=seed),
            priority=job.priority,
            cache_salt=job.cache_salt,
        )

    def _count(self, output: Output, delta: Delta, previous: float | None) -> float:
        """Count one step; ``previous`` and the result are the times of the choice's steps."""
        now = time.monotonic()
        if self.time_to_first_token is None:
            self.time_to_first_token = now - self._started_at
            self._metrics.time_to_first_token.observe(self.time_to_first_token)
            self._metrics.prompt_tokens += self.num_prompt_tokens
        if previous is not None:
            self._metrics.inter_chunk_latency.observe(now - previous)
        if delta.index == 0:  # the other choices find the prompt of the first in the cache
            self.num_cached_tokens = max(self.num_cached_tokens, output.num_cached_tokens)
        self.num_completion_tokens += len(delta.token_ids)
        self._metrics.generation_tokens += len(delta.token_ids)
        for counts in (self.speculation, self._metrics.speculation):
            counts.add(len(delta.token_ids), output.num_draft_tokens)
        if delta.finish_reason is not None:
            self.finish_reasons.append(delta.finish_reason)
        return now

    def _end(self, num_choices: int, unfinished: str) -> None:
        missing = num_choices - len(self.finish_reasons)
        if missing and unfinished == "abort":
            self._metrics.client_disconnects.inc()
        if not missing:
            elapsed = time.monotonic() - self._started_at
            self._metrics.e2e_request_latency.observe(elapsed)
        self.finish_reasons += [unfinished] * missing
        for reason in self.finish_reasons:
            self._metrics.request_success.labels(reason).inc()


async def _merge(streams: list[AsyncGenerator[Delta, None]]) -> AsyncGenerator[Delta, None]:
    """The deltas of several choices as they come."""
    # Bounded: a client that reads slowly must not fill the memory.
    queue: asyncio.Queue[Delta | Exception] = asyncio.Queue(maxsize=len(streams))
    pumps = [asyncio.create_task(_pump(stream, queue)) for stream in streams]
    num_running = len(streams)
    try:
        while num_running:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            num_running -= item.finish_reason is not None
            yield item
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(
    stream: AsyncGenerator[Delta, None], queue: "asyncio.Queue[Delta | Exception]"
) -> None:
    try:
        async with aclosing(stream):
            async for delta in stream:
                await queue.put(delta)
    except Exception as error:  # handed to the consumer, who raises it
        await queue.put(error)
