"""A real server process of the bundled pair."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

ROOT = Path(__file__).parents[2]
START_TIMEOUT = 120


@dataclass(frozen=True)
class RunningServer:
    url: str
    process: subprocess.Popen[bytes]

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", **options)

    def metric(self, name: str) -> float:
        """The value of a metric, summed over its labels."""
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        values = [line.rsplit(" ", 1) for line in lines if line.startswith(name)]
        matching = [float(v) for key, v in values if key == name or key.startswith(name + "{")]
        assert matching, f"no metric {name}"
        return sum(matching)


@contextmanager
def run_server(*flags: str) -> Iterator[RunningServer]:
    """``python -m server configs/demo.toml`` on a free port, until it is ready."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "server", "configs/demo.toml", "--port", str(port), *flags]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    server = RunningServer(f"http://127.0.0.1:{port}", process)
    try:
        _wait_until_ready(server)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def _wait_until_ready(server: RunningServer) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        assert server.process.poll() is None, "the server ended while starting"
        try:
            if httpx.get(f"{server.url}/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    pytest.fail("the server did not become ready")
