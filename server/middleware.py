"""What surrounds every request: its id, its log line, the size of its body, forgiving paths.

Plain ASGI, so that streams pass through untouched.
"""

import asyncio
import logging
import re
import time
import uuid
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import body_too_large, error_response, internal
from server.generation import Generation

access_log = logging.getLogger("server.access")
logger = logging.getLogger(__name__)

_REPEATED_SLASHES = re.compile("/{2,}")
# A request id of the client's ends up in log lines and in a header: nothing but these characters.
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_PROBES = frozenset({"/health", "/ready", "/metrics"})


class RequestContext:
    """Gives each request its id and writes one log line when it is over.

    Sets ``request.state.request_id`` and ``started_at``. A route that generates leaves
    ``request.state.generation``.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Base URLs that end with a slash are a common slip: //v1/models means /v1/models.
        scope["path"] = _REPEATED_SLASHES.sub("/", scope["path"])
        state = scope.setdefault("state", {})
        state["request_id"] = _request_id(Headers(scope=scope))
        state["status"] = 0
        state["started_at"] = time.monotonic()
        try:
            await self._respond(scope, receive, send)
        finally:
            _log(scope, time.monotonic() - state["started_at"])

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["state"]

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                state["status"] = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = state["request_id"]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except asyncio.CancelledError:
            # Only startup.py cancels requests, at the very end. uvicorn would print a traceback.
            logger.warning("request %s was cut off by the shutdown", state["request_id"])
        except Exception:
            logger.exception("request %s failed", state["request_id"])
            if state["status"]:  # too late for another answer: break the connection off
                raise
            response = error_response(internal("The server failed on this request."))
            await response(scope, receive, send_with_id)


class BodyLimit:
    """Refuses bodies above a size, by their header or while they arrive: never held in memory."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "")
        if length.isdigit() and int(length[:20]) > self._max_bytes:
            await error_response(body_too_large(self._max_bytes))(scope, receive, send)
            return
        num_bytes = 0

        async def receive_limited() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_bytes:
                raise body_too_large(self._max_bytes)
            return message

        await self._app(scope, receive_limited, send)


def _request_id(headers: Headers) -> str:
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _log(scope: Scope, elapsed: float) -> None:
    """One line of key=value; never any text of prompt or answer."""
    state = scope["state"]
    fields: dict[str, Any] = {
        "request_id": state["request_id"],
        "method": scope["method"],
        "path": ascii(scope["path"])[1:-1],
        "status": state["status"],
        "seconds": f"{elapsed:.3f}",
    }
    if generation := state.get("generation"):
        fields |= _generation_fields(generation)
    level = logging.DEBUG if scope["path"] in _PROBES else logging.INFO
    access_log.log(level, " ".join(f"{key}={value}" for key, value in fields.items()))


def _generation_fields(generation: Generation) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "prompt_tokens": generation.num_prompt_tokens,
        "cached_tokens": generation.num_cached_tokens,
        "completion_tokens": generation.num_completion_tokens,
        "finish_reason": ",".join(generation.finish_reasons),
    }
    if generation.time_to_first_token is not None:
        fields["ttft"] = f"{generation.time_to_first_token:.3f}"
    if generation.speculation.num_draft_tokens:
        label = "synthetic_" if generation.speculation.synthetic else ""
        fields[f"{label}acceptance_length"] = f"{generation.speculation.mean_acceptance_length:.2f}"
    return fields
