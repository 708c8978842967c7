"""The worker process: ``python -m engine.worker SOCKET CONFIG.json PARENT_PID``.

One loop: drain messages, run a step, send its outputs in one message, beat the heart.
"""

import logging
import os
import shutil
import sys
import time
from pathlib import Path

import msgspec
import torch
import zmq

from engine.config import ConfigError, EngineConfig
from engine.core import EngineCore
from engine.messages import (
    Abort,
    Failed,
    FromWorker,
    Heartbeat,
    Output,
    Outputs,
    Shutdown,
    Submit,
    ToWorker,
)

log = logging.getLogger(__name__)

HEARTBEAT_INTERVAL = 0.5
LINGER_MS = 1000


class Worker:
    """Connects an EngineCore with the API process."""

    def __init__(self, core: EngineCore, socket: "zmq.Socket[bytes]", parent: int) -> None:
        self._core = core
        self._socket = socket
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
        self._parent = parent
        self._last_beat = 0.0
        self._leaving = False

    def run(self) -> None:
        """Serve until the API process says Shutdown, or is gone."""
        self._send(self._core.ready())
        while not self._leaving and os.getppid() == self._parent:
            self._receive(0 if self._core.has_work else HEARTBEAT_INTERVAL)
            if self._core.has_work:
                self._send_outputs(self._core.step())
            self._beat()

    def _receive(self, timeout: float) -> None:
        """Handle every message that is there; wait ``timeout`` seconds for the first."""
        while self._socket.poll(int(timeout * 1000)):
            frame = self._socket.recv()
            try:
                self._handle(self._decoder.decode(frame))
            except msgspec.MsgspecError as error:
                log.error("dropped a malformed message: %s", error)
            timeout = 0

    def _handle(self, message: ToWorker) -> None:
        match message:
            case Submit():
                refusal = self._core.submit(message)
                self._send_outputs([refusal] if refusal else [])
            case Abort(request_id):
                self._core.abort(request_id)
            case Shutdown():
                self._leaving = True

    def _send_outputs(self, outputs: list[Output]) -> None:
        if outputs:
            self._send(Outputs(outputs))

    def _beat(self) -> None:
        now = time.monotonic()
        if now - self._last_beat >= HEARTBEAT_INTERVAL:
            self._last_beat = now
            self._send(Heartbeat(self._core.stats()))

    def _send(self, message: FromWorker) -> None:
        self._socket.send(self._encoder.encode(message))


def _explain(error: Exception) -> str:
    """One line for the operator. What nobody foresaw keeps its traceback, in the log."""
    if isinstance(error, ConfigError):
        return str(error)
    # The CPU's allocator has no error class of its own.
    if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error):
        return (
            f"the memory does not suffice ({error}); lower engine.kv_cache_gib, "
            "engine.gpu_memory_utilization or engine.max_num_seqs, or use a smaller model"
        )
    log.error("while starting", exc_info=error)
    return f"the engine cannot start: {type(error).__name__}: {error}; please report this"


def main(address: str, config_path: str, parent: str) -> int:
    """Load the models and serve; a configuration that cannot work is reported to the parent."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s engine: %(message)s")
    config = EngineConfig.model_validate_json(Path(config_path).read_text())
    # Leaving the block sends what is queued: a Failed must arrive before the process ends.
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, LINGER_MS)
        socket.connect(address)
        try:
            core = EngineCore(config)
        except Exception as error:
            socket.send(msgspec.msgpack.encode(Failed(_explain(error))))
            return 2
        # Given, not asked for here: the parent may have died while the models were loaded.
        Worker(core, socket, int(parent)).run()
    if os.getppid() != int(parent):
        # Nobody else is left to remove the private directory.
        shutil.rmtree(Path(config_path).parent, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
