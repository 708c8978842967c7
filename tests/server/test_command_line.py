"""The real process: exit codes, its one line on stderr, signals, the port."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.server.serve_scripted import SLOW

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


@pytest.mark.parametrize(("deadline", "complete"), [("20", True), ("0", False)])
def test_running_requests_finish_until_the_deadline(
    config: Path, deadline: str, complete: bool
) -> None:
    with serving(config, "--set", f"server.shutdown_timeout={deadline}") as process:
        url = wait_for(process, "listening on ")
        body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "seed": SLOW}
        received = ""
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=20) as response:
            try:
                for text in response.iter_text():
                    if not received:
                        process.send_signal(signal.SIGTERM)
                    received += text
            except httpx.HTTPError:
                assert not complete
        process.communicate(timeout=10)
    assert process.returncode == 0
    assert ("[DONE]" in received) is complete
