"""EngineClient: the API process's side of the engine."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator

import msgspec
import zmq
import zmq.asyncio

from engine.config import ConfigError, EngineConfig
from engine.launch import WorkerProcess, launch_worker
from engine.messages import (
    Abort,
    Failed,
    FromWorker,
    Heartbeat,
    Output,
    Outputs,
    Ready,
    SamplingParams,
    Shutdown,
    Stats,
    Submit,
    ToWorker,
)

log = logging.getLogger(__name__)

# A prompt chunk of the CPU can take seconds, and the heart beats between steps.
HEARTBEAT_TIMEOUT = 15.0
SHUTDOWN_TIMEOUT = 5.0


class EngineDeadError(Exception):
    """The worker died or stopped answering; requests in flight are lost."""


class EngineClient:
    """Starts the worker process, submits requests and streams their outputs.

    Belongs to one event loop. ``ready`` and ``stats`` hold what the worker said last.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.ready: Ready | None = None
        self.stats = Stats()
        self._outputs: dict[str, asyncio.Queue[Output | None]] = {}
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
        self._socket: zmq.asyncio.Socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._worker: WorkerProcess | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._started: asyncio.Future[Ready] | None = None
        self._closing = False
        self._last_sign_of_life = time.monotonic()

    async def start(self) -> Ready:
        """Launch the worker and wait until it serves. Raises ConfigError with the worker's line."""
        self._started = asyncio.get_running_loop().create_future()
        self._worker = await launch_worker(self.config, self._socket.bind)
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._watch())]
        self.ready = await self._started
        return self.ready

    async def generate(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
    ) -> AsyncGenerator[Output, None]:
        """Outputs of one request, one per step, ending with one whose finish_reason is set.

        Closing or cancelling the iterator aborts the request. Raises EngineDeadError, and
        ValueError for an id that is in use.
        """
        if not self.running:
            raise EngineDeadError("the engine is not running")
        if request_id in self._outputs:
            raise ValueError(f"request {request_id} runs already; use a new id")
        queue = self._outputs[request_id] = asyncio.Queue()
        finished = False
        try:
            self._send(
                Submit(
                    request_id=request_id,
                    prompt_token_ids=prompt_token_ids,
                    params=params,
                    priority=priority,
                    cache_salt=cache_salt,
                )
            )
            while not finished:
                output = await queue.get()
                if output is None:
                    raise EngineDeadError("the engine died while the request ran")
                finished = output.finish_reason is not None
                yield output
        finally:
            del self._outputs[request_id]
            if not finished and self.running:
                self._send(Abort(request_id))

    @property
    def running(self) -> bool:
        """The worker has started, its process lives and it takes requests."""
        if self.ready is None or self._worker is None or self._closing:
            return False
        return self._worker.process.returncode is None

    @property
    def heartbeat_age(self) -> float:
        """Seconds since the worker's last sign of life."""
        return time.monotonic() - self._last_sign_of_life

    @property
    def alive(self) -> bool:
        """The worker process runs and its heartbeat is fresh."""
        return self.running and self.heartbeat_age < HEARTBEAT_TIMEOUT

    async def close(self) -> None:
        """Shut the worker down (kill it if it does not leave) and remove the socket.

        Requests that still run get EngineDeadError at once.
        """
        self._closing = True
        loading = self._started is not None and not self._started.done()
        self._fail_all(EngineDeadError("the engine was closed"))
        if self._worker is not None:
            # A worker that is loading reads no messages: there is nothing to wait for.
            await self._end_process(self._worker.process, 0 if loading else SHUTDOWN_TIMEOUT)
            self._worker.directory.cleanup()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.close()

    async def wait_dead(self) -> int:
        """Return the worker's exit code once it has ended without being told to."""
        assert self._worker is not None
        code = await self._worker.process.wait()
        if self._closing:
            await asyncio.Event().wait()  # until cancelled: this end was asked for
        return code

    async def _end_process(self, process: asyncio.subprocess.Process, patience: float) -> None:
        if process.returncode is None:
            self._send(Shutdown())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), patience)
        if process.returncode is None:
            process.kill()
            await process.wait()

    def _send(self, message: ToWorker) -> None:
        # Not awaited: a task that is being cancelled cannot wait, and once the worker is gone the
        # send would never end. zmq keeps the order.
        self._socket.send(self._encoder.encode(message))

    async def _receive(self) -> None:
        """Hand the worker's messages to whom they concern."""
        while True:
            frame = await self._socket.recv()
            self._last_sign_of_life = time.monotonic()
            try:
                self._handle(self._decoder.decode(frame))
            except msgspec.MsgspecError as error:
                log.error("dropped a malformed message of the worker: %s", error)

    def _handle(self, message: FromWorker) -> None:
        match message:
            case Outputs(outputs):
                for output in outputs:
                    if (queue := self._outputs.get(output.request_id)) is not None:
                        queue.put_nowait(output)
            case Heartbeat(stats):
                self.stats = stats
            case Ready():
                self._resolve_start(message)
            case Failed(reason):
                self._resolve_start(ConfigError(reason))

    def _resolve_start(self, result: Ready | Exception) -> None:
        assert self._started is not None
        if self._started.done():
            return
        if isinstance(result, Ready):
            self._started.set_result(result)
        else:
            self._started.set_exception(result)

    async def _watch(self) -> None:
        """Wake every waiting request when the worker's process ends."""
        assert self._worker is not None
        code = await self._worker.process.wait()
        # What it sent last may still be in the socket.
        await asyncio.sleep(0.1)
        if self.ready is not None and not self._closing:
            log.error("the engine worker ended with code %d", code)
        self.stats = Stats()
        self._fail_all(EngineDeadError(f"the engine worker exited with code {code}"))

    def _fail_all(self, error: EngineDeadError) -> None:
        """End a start that waits, and every request that runs."""
        if self._started is not None:
            self._resolve_start(error)
        for queue in self._outputs.values():
            queue.put_nowait(None)
