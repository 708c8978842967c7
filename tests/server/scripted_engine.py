"""An engine without a model: it emits the steps it was given. Same interface as EngineClient."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgspec

from engine.client import EngineDeadError
from engine.config import EngineConfig
from engine.messages import Output, Ready, SamplingParams, Stats

NUM_DRAFT_TOKENS = 3
EOS_TOKEN_ID = 1


@dataclass(frozen=True)
class Submitted:
    """What one call of generate was given."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    priority: int
    cache_salt: str


@dataclass
class ScriptedEngine:
    """Every request gets ``steps``: outputs, exceptions to raise, events to wait for, or pauses."""

    steps: list[Output | Exception | asyncio.Event | float] = field(default_factory=list)
    max_model_len: int = 4096
    vocab_size: int = 600
    alive: bool = True
    heartbeat_age: float = 0.1
    start_error: Exception | None = None
    stats: Stats = field(default_factory=Stats)
    submitted: list[Submitted] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    config: EngineConfig | None = None
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    died: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> Ready:
        if self.start_error is not None:
            raise self.start_error
        return self.ready

    @property
    def ready(self) -> Ready:
        return Ready(
            max_model_len=self.max_model_len,
            num_kv_tokens=1 << 20,
            num_draft_tokens=NUM_DRAFT_TOKENS,
            vocab_size=self.vocab_size,
            eos_token_ids=[EOS_TOKEN_ID],
            device="cpu",
            dtype="float32",
        )

    async def generate(
        self, request_id: str, prompt_token_ids: list[int], params: SamplingParams, **rest: Any
    ) -> AsyncIterator[Output]:
        self.submitted.append(
            Submitted(request_id, prompt_token_ids, params, rest["priority"], rest["cache_salt"])
        )
        finished = False
        try:
            for step in self.steps:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, asyncio.Event):
                    await self._unless_closed(step.wait())
                elif isinstance(step, float):
                    await self._unless_closed(asyncio.sleep(step))
                else:
                    finished = step.finish_reason is not None
                    yield msgspec.structs.replace(step, request_id=request_id)
        finally:
            if not finished:
                self.aborted.append(request_id)

    async def _unless_closed(self, pause: Coroutine[Any, Any, Any]) -> None:
        """Closing the engine wakes every request that waits, as does its worker's end."""
        waits = [asyncio.ensure_future(w) for w in (pause, self.closed.wait(), self.died.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self.closed.is_set() or self.died.is_set():
            raise EngineDeadError("the engine was closed")

    async def wait_dead(self) -> int:
        await self.died.wait()
        return 9

    async def close(self) -> None:
        self.closed.set()


def step(token_ids: list[int], reason: Any = None, **fields: Any) -> Output:
    """One engine step of a request yet to be named."""
    return Output(request_id="", token_ids=token_ids, finish_reason=reason, **fields)


def answer(token_ids: list[int], sizes: tuple[int, ...] = (1, 3, 4, 2)) -> list[Output]:
    """The steps in which a speculating engine emits ``token_ids`` and then ends with EOS."""
    tokens, steps, turn = [*token_ids, EOS_TOKEN_ID], [], 0
    while tokens:
        size = sizes[min(turn, len(sizes) - 1)]
        chunk, tokens = tokens[:size], tokens[size:]
        drafts = NUM_DRAFT_TOKENS if turn else 0
        steps.append(step(chunk, None if tokens else "stop", num_draft_tokens=drafts))
        turn += 1
    return steps
