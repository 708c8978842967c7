"""The real process: exit codes, its one line on stderr, signals, the port."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.serve_scripted import DEADLY, SLOW

ROOT = Path(__file__).parents[2]
SCRIPTED = [sys.executable, str(Path(__file__).with_name("serve_scripted.py"))]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def config(tmp_path: Path, checkpoint: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(f'[target]\nmodel = "{checkpoint}"\nserved_name = "tiny"\n[server]\nport = 0\n')
    return path


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=30, cwd=ROOT, env=ENVIRONMENT, check=False
    )


def assert_one_line(result: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    for part in parts:
        assert part in line


@contextmanager
def serving(config: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [*SCRIPTED, str(config), *arguments]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=ENVIRONMENT,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(process: subprocess.Popen[str], beginning: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(beginning):
            return line.removeprefix(beginning).strip()
    raise AssertionError(f"ended without {beginning!r}")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def test_configuration_error(config: Path) -> None:
    command = [sys.executable, "-m", "server", str(config)]
    assert_one_line(run([*command, "--port", "many"]), "server.port", "'many'", "integer")
    assert_one_line(run([*command, "--set", "engine.max_seqs=1"]), "engine.max_num_seqs")
    assert_one_line(run([sys.executable, "-m", "server", "absent.toml"]), "absent.toml", "no such")


def test_help_imports_nothing_heavy() -> None:
    result = run([sys.executable, "-X", "importtime", "-m", "server", "--help"])
    assert result.returncode == 0
    assert "engine.device" not in result.stdout
    assert "max_num_seqs  (integer, default 64)" in result.stdout
    assert not {"torch", "transformers", "fastapi"} & imported(result.stderr)


def test_the_server_process_never_imports_torch() -> None:
    result = run([sys.executable, "-X", "importtime", "-c", "import server.startup"])
    assert result.returncode == 0
    assert "fastapi" in imported(result.stderr)
    assert "torch" not in imported(result.stderr)


def imported(importtime: str) -> set[str]:
    return {line.rpartition("|")[2].strip() for line in importtime.splitlines()}


def test_error_of_the_worker(config: Path) -> None:
    result = run([*SCRIPTED, str(config), "--set", "target.served_name=fails"])
    assert_one_line(result, "target.model = 'x': no such thing; use another")


def test_worker_that_dies_while_it_starts(config: Path) -> None:
    result = run([*SCRIPTED, str(config), "--set", "target.served_name=dies"])
    assert result.returncode == 1
    assert result.stderr.startswith("error: the engine worker exited with code 9")
    assert "engine closed" in result.stdout


def test_checkpoint_without_tokenizer(config: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    command = [sys.executable, "-m", "server", str(config)]
    result = run([*command, "--set", f"target.model={tmp_path}/empty"])
    assert_one_line(result, "target.model", "empty")


def test_port_in_use(config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        assert_one_line(run([*SCRIPTED, str(config), "--port", port]), port, "in use", "--port")


def test_foreign_host(config: Path) -> None:
    result = run([*SCRIPTED, str(config), "--host", "no-such-host.invalid"])
    assert_one_line(result, "no-such-host.invalid", "--host")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_cleanly(config: Path, number: signal.Signals) -> None:
    with serving(config) as process:
        url = wait_for(process, "listening on ")
        assert "/v1/chat/completions" in wait_for(process, "try: curl")
        assert httpx.get(f"{url}/ready").status_code == 200
        process.send_signal(number)
        output, errors = process.communicate(timeout=10)
    assert process.returncode == 0
    assert "engine closed" in output
    assert "Traceback" not in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("module", ["pydantic", "fastapi"])
def test_signals_while_modules_load(config: Path, number: signal.Signals, module: str) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "server", str(config), "--port", "0"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=ENVIRONMENT
    ) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if f" {module}" in line)
        process.send_signal(number)
        errors = process.stderr.read()
    assert process.returncode == 0
    assert "Traceback" not in errors


def test_health_answers_while_loading_and_a_signal_ends_it(config: Path) -> None:
    port = free_port()
    arguments = ("--set", "target.served_name=hangs", "--port", str(port))
    with serving(config, *arguments) as process:
        wait_for(process, "loading ")
        transport = httpx.HTTPTransport(retries=5)
        with httpx.Client(transport=transport, base_url=f"http://127.0.0.1:{port}") as http:
            assert http.get("/health").status_code == 200
            assert http.get("/ready").status_code == 503
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=10)
    assert process.returncode == 0
    assert "engine closed" in output
    assert "Traceback" not in errors


def chat(**parameters: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hi"}], **parameters}


def stream_until_end(
    process: subprocess.Popen[str], signals: int, seed: int = SLOW
) -> tuple[str, str, str]:
    """What a client of a stream receives when the signals come after its beginning, then what the
    process writes until it ends."""
    url = wait_for(process, "listening on ")
    received = ""
    body = chat(stream=True, seed=seed)
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=20) as response:
        for text in response.iter_text():
            for _ in range(0 if received else signals):
                process.send_signal(signal.SIGTERM)
                time.sleep(0.3)
            received += text
    output, errors = process.communicate(timeout=10)
    return received, output, errors


def assert_ended_by_error(received: str) -> None:
    *_, error, done, rest = received.split("\n\n")
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "engine_dead"
    assert (done, rest) == ("data: [DONE]", "")


def test_running_requests_finish_before_the_deadline(config: Path) -> None:
    with serving(config) as process:
        received, output, errors = stream_until_end(process, signals=1)
    assert process.returncode == 0
    assert '"finish_reason":"stop"' in received
    assert received.endswith("data: [DONE]\n\n")
    assert '"error"' not in received
    assert "engine closed" in output
    assert "Traceback" not in errors


@pytest.mark.parametrize(("timeout", "signals"), [("0", 1), ("30", 2)])
def test_deadline_and_second_signal_end_streams_in_order(
    config: Path, timeout: str, signals: int
) -> None:
    with serving(config, "--set", f"server.shutdown_timeout={timeout}") as process:
        received, output, errors = stream_until_end(process, signals)
    assert process.returncode == 0
    assert_ended_by_error(received)
    assert "engine closed" in output
    assert "Traceback" not in errors


def test_deadline_answers_what_does_not_stream(config: Path) -> None:
    with (
        serving(config, "--set", "server.shutdown_timeout=0") as process,
        ThreadPoolExecutor() as threads,
    ):
        url = wait_for(process, "listening on ")
        sent = threads.submit(
            httpx.post, f"{url}/v1/chat/completions", json=chat(seed=SLOW), timeout=20
        )
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        response = sent.result()
        _, errors = process.communicate(timeout=10)
    assert response.status_code == 503
    assert response.headers["retry-after"]
    assert response.json()["error"]["code"] == "engine_dead"
    assert "Traceback" not in errors


def test_client_that_does_not_read_cannot_hold_it_up(config: Path) -> None:
    with serving(config, "--set", "server.shutdown_timeout=0") as process:
        port = int(wait_for(process, "listening on ").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            # Half a request: it never gets as far as the engine.
            client.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"
            )
            time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=10)
    assert process.returncode == 0
    assert "Traceback" not in errors


def test_end_of_the_worker_ends_the_server(config: Path) -> None:
    with serving(config) as process:
        received, output, errors = stream_until_end(process, signals=0, seed=DEADLY)
    assert process.returncode == 1
    assert_ended_by_error(received)
    assert "engine closed" in output
    assert errors.splitlines()[-1].startswith("error: the engine worker ended with exit code 9")
    assert "Traceback" not in errors
