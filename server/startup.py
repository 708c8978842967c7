"""The life of the server process: listen, load, serve, leave."""

import asyncio
import contextlib
import json
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import uvicorn
import uvloop

from engine.client import EngineClient, EngineDeadError
from engine.config import ConfigError
from engine.launch import resolve_checkpoints
from server.app import create_app
from server.config import Config, ServerConfig
from server.service import Service, Serving, run_in_daemon_thread

LAST_WORDS_SECONDS = 2
"""What streams get, after the deadline, to send their error and [DONE] to clients that read."""


def serve(config: Config) -> int:
    """Run until SIGTERM or Ctrl-C; returns the exit code: 1 if the engine's worker died.

    Raises ConfigError, also for what only the worker could find out.
    """
    _configure_logging(config.server.log_level)
    # Before anything slow: a port that is taken should not cost a minute of loading.
    listener = _listen(config.server)
    try:
        uvloop.run(_Process(config, listener).run())
    except EngineDeadError as error:
        print(f"error: {error}; its own messages are above", file=sys.stderr)
        return 1
    return 0


class _HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers, which would end the process by the signal."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Process:
    """HTTP answers from the start; the model loads behind it."""

    def __init__(self, config: Config, listener: socket.socket) -> None:
        self._config = config
        self._listener = listener
        self._service = Service(config.served_name)
        self._http = _HttpServer(_uvicorn_config(self._service, config.server))
        self._engine: EngineClient | None = None
        self._closing: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self) -> None:
        loading = asyncio.create_task(self._load())
        self._handle_signals(loading)
        http = asyncio.create_task(self._http.serve(sockets=[self._listener]))
        ending = asyncio.create_task(self._end_requests())
        try:
            with contextlib.suppress(asyncio.CancelledError):  # told to stop while loading
                _announce(self._config, await loading, self._listener)
                await self._watch_engine(http)
        except (ConfigError, EngineDeadError):
            self._hurry.set()  # nothing that runs can come to a good end
            raise
        finally:
            self._stop()
            await http
            ending.cancel()
            self._service.close()
            await self._close_engine()

    async def _watch_engine(self, http: "asyncio.Task[None]") -> None:
        """Until HTTP ends; raises EngineDeadError when the worker ends before.

        Nothing can be served without it, and whoever supervises this process starts a new one.
        """
        assert self._engine is not None
        death = asyncio.create_task(self._engine.wait_dead())
        try:
            await asyncio.wait({http, death}, return_when=asyncio.FIRST_COMPLETED)
            if death.done():
                raise EngineDeadError(f"the engine worker ended with exit code {death.result()}")
        finally:
            death.cancel()

    def _stop(self) -> None:
        """Accept no more connections; running requests have until the deadline."""
        self._stopping.set()
        self._http.should_exit = True

    async def _end_requests(self) -> None:
        """At the deadline, or when told to hurry, end what still runs.

        By closing the engine: every request then gets an error and ends in good order. uvicorn at
        its own deadline would only cut the connections.
        """
        await self._stopping.wait()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), self._config.server.shutdown_timeout)
        closing = asyncio.create_task(self._close_engine())
        await asyncio.sleep(LAST_WORDS_SECONDS)
        self._break_off()
        await closing

    def _break_off(self) -> None:
        """Leave clients that do not read, and requests that are not in the engine."""
        for connection in list(self._http.server_state.connections):
            connection.transport.abort()
        for task in list(self._http.server_state.tasks):
            task.cancel()

    async def _close_engine(self) -> None:
        """Close it once, however many ask for it and however many of those are cancelled."""
        if self._engine is None:
            return
        if self._closing is None:
            self._closing = asyncio.create_task(self._engine.close())
        await asyncio.shield(self._closing)

    async def _load(self) -> Serving:
        _say(f"loading {_checkpoints(self._config)}")
        config = self._config.engine_config()
        resolved = await run_in_daemon_thread(resolve_checkpoints, config)
        self._engine = EngineClient(resolved)
        return await self._service.start(self._engine, Path(resolved.target.model))

    def _handle_signals(self, loading: "asyncio.Task[Serving]") -> None:
        def stop() -> None:
            loading.cancel()
            # The first lets running requests finish, for a while; the second does not.
            if self._stopping.is_set():
                self._hurry.set()
            self._stop()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop)


def _uvicorn_config(service: Service, config: ServerConfig) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(service, config),
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
    )


def _listen(config: ServerConfig) -> socket.socket:
    try:
        family = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0][0]
    except OSError as error:
        raise ConfigError(
            f"server.host = {config.host!r}: {error.strerror}; "
            "pass an address of this machine with --host"
        ) from None
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"server.host = {config.host!r}, server.port = {config.port}: {error.strerror}; "
            "stop what listens there, or pass another --port or --host"
        ) from None


def _configure_logging(level: str) -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # Ours only. Libraries at debug level would print texts of users.
    for name in ("server", "engine"):
        logging.getLogger(name).setLevel(level.upper())


def _checkpoints(config: Config) -> str:
    drafter = f" with drafter {config.drafter.model}" if config.drafter else ", without a drafter"
    return f"{config.target.model}{drafter}"


def _announce(config: Config, serving: Serving, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    drafts = serving.ready.num_draft_tokens
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    _say(
        f"serving {config.served_name} on {serving.ready.device} ({serving.ready.dtype}), "
        f"context {serving.max_model_len} tokens, "
        + (f"{drafts} drafts in a block" if drafts else "no speculation")
    )
    if serving.ready.synthetic:
        _say("SYNTHETIC acceptance: drafts are accepted by chance; measure nothing but speed")
    _say(f"listening on {url}")
    reachable = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    body = {
        "model": config.served_name,
        "messages": [{"role": "user", "content": "Hello!"}],
        "stream": True,
    }
    _say(
        f"try: curl -N {reachable}/v1/chat/completions -H 'Content-Type: application/json' "
        f"-d '{json.dumps(body)}'"
    )


def _say(text: str) -> None:
    print(text, flush=True)
