"""From a generation's deltas to the two forms of a response: an SSE stream or one JSON body.

The stream: per choice a role chunk, then a content chunk for each engine step (several tokens),
then a chunk with the finish reason; a usage chunk on demand; ``[DONE]``.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from server.errors import ApiError, ClientDisconnectedError, internal
from server.generation import Delta, Generation
from server.protocol import (
    AssistantMessage,
    ChatCompletion,
    Choice,
    ResponseMetrics,
    StreamOptions,
)

PING_SECONDS = 10
"""Silence after which a stream gets a comment, so that no proxy takes the connection for dead."""

DONE = b"data: [DONE]\n\n"

T = TypeVar("T")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Envelope:
    """What all chunks of a response have in common."""

    id: str
    created: int
    model: str

    def chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        """One chunk as an SSE event."""
        return event(
            {
                "id": self.id,
                "object": "chat.completion.chunk",
                "created": self.created,
                "model": self.model,
                "choices": choices,
                **more,
            }
        )


@dataclass(frozen=True)
class Answer:
    """A generation and what its response needs besides."""

    generation: Generation
    deltas: AsyncGenerator[Delta, None]
    envelope: Envelope
    num_choices: int


def event(data: dict[str, Any]) -> bytes:
    """An SSE event, encoded."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


async def complete(request: Request, answer: Answer) -> ChatCompletion:
    """The whole response; raises ApiError, or ClientDisconnectedError when nobody waits for it."""
    async with contextlib.aclosing(answer.deltas):
        choices = await _unless_disconnected(request, _collect(answer))
    summary = answer.generation.speculation.summary()
    return ChatCompletion(
        id=answer.envelope.id,
        created=answer.envelope.created,
        model=answer.envelope.model,
        choices=choices,
        usage=answer.generation.usage,
        metrics=ResponseMetrics(speculative_decoding=summary) if summary else None,
    )


async def open_stream(request: Request, answer: Answer, options: StreamOptions) -> "ChatStream":
    """The response of a stream, once the first delta is there.

    Until then an error still has its own status. But a long prefill must not pass in silence: after
    PING_SECONDS the stream opens without a delta, and its pings begin.
    """
    started = _Started(answer.deltas)
    try:
        await started.wait(request)
    except BaseException:
        await started.aclose()
        raise
    return ChatStream(started, _events(started, answer, options))


class ChatStream(EventSourceResponse):
    """An SSE response that ends the generation when it ends, however it ends."""

    def __init__(self, started: "_Started", events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(
            events,
            sep="\n",
            ping=PING_SECONDS,
            ping_message_factory=lambda: ServerSentEvent(comment="ping", sep="\n"),
        )
        self._started = started

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._started.aclose()


class _Started:
    """Deltas whose first is awaited in a task: that wait can be given up and taken up again."""

    def __init__(self, deltas: AsyncGenerator[Delta, None]) -> None:
        self._deltas = deltas
        self._first = asyncio.ensure_future(anext(deltas))

    async def wait(self, request: Request) -> None:
        """Until the first delta, or PING_SECONDS. Raises what the generation raised."""
        await _wait_connected(request, self._first, PING_SECONDS)
        if self._first.done():
            self._first.result()

    async def __aiter__(self) -> AsyncIterator[Delta]:
        yield await self._first
        async for delta in self._deltas:
            yield delta

    async def aclose(self) -> None:
        await _cancel(self._first)
        await self._deltas.aclose()


async def _events(
    deltas: _Started, answer: Answer, options: StreamOptions
) -> AsyncGenerator[bytes, None]:
    """The chunks, then [DONE]; an error takes the place of what it prevented."""
    try:
        async for chunk in _chunks(deltas, answer, options):
            yield chunk
        if options.include_usage:
            yield answer.envelope.chunk([], **_final_figures(answer.generation))
    except ApiError as error:
        yield event(error.body)
    except Exception:
        logger.exception("stream %s failed", answer.envelope.id)
        yield event(internal("The server failed on this request.").body)
    yield DONE


async def _chunks(
    deltas: _Started, answer: Answer, options: StreamOptions
) -> AsyncGenerator[bytes, None]:
    chunk, generation = answer.envelope.chunk, answer.generation
    roles_sent = False
    async for delta in deltas:
        usage = {"usage": generation.usage.model_dump()} if options.continuous_usage_stats else {}
        if not roles_sent:
            for index in range(answer.num_choices):
                yield chunk([_choice(index, {"role": "assistant", "content": ""})])
            roles_sent = True
        if delta.text:
            yield chunk([_choice(delta.index, {"content": delta.text})], **usage)
        if delta.finish_reason:
            yield chunk([_choice(delta.index, {}, delta.finish_reason)], **usage)


def _choice(index: int, delta: dict[str, str], reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": reason}


def _final_figures(generation: Generation) -> dict[str, Any]:
    figures: dict[str, Any] = {"usage": generation.usage.model_dump()}
    if summary := generation.speculation.summary():
        figures["metrics"] = {"speculative_decoding": summary.model_dump()}
    return figures


async def _collect(answer: Answer) -> list[Choice]:
    texts = [""] * answer.num_choices
    reasons: dict[int, Any] = {}
    async for delta in answer.deltas:
        texts[delta.index] += delta.text
        if delta.finish_reason:
            reasons[delta.index] = delta.finish_reason
    return [
        Choice(index=index, message=AssistantMessage(content=text), finish_reason=reasons[index])
        for index, text in enumerate(texts)
    ]


async def _unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled when the client leaves."""
    task = asyncio.create_task(work)
    try:
        await _wait_connected(request, task, None)
        return task.result()
    finally:
        await _cancel(task)


async def _wait_connected(
    request: Request, work: "asyncio.Future[Any]", max_seconds: float | None
) -> None:
    """Until ``work`` is done or time is up; raises ClientDisconnectedError if the client leaves."""
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({work, gone}, timeout=max_seconds, return_when=asyncio.FIRST_COMPLETED)
        if gone.done() and not work.done():
            raise ClientDisconnectedError
    finally:
        gone.cancel()


async def _disconnected(request: Request) -> None:
    """Returns when the client has left. The request's body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: "asyncio.Future[Any]") -> None:
    """Cancel and wait until it is over: an async generator can only be closed when it rests."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # seen, or asyncio complains that nobody looked
