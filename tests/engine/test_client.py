"""EngineClient and its worker, as real processes over a real socket."""

import asyncio
import contextlib
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from engine.client import EngineClient, EngineDeadError
from engine.config import ConfigError
from engine.messages import Output, SamplingParams
from tests.engine.checkpoints import engine_config, make_engine
from tests.engine.probe import drive, submit

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.asyncio(loop_scope="module")

GREEDY = SamplingParams(max_tokens=10, temperature=0.0, ignore_eos=True)
LONG = SamplingParams(max_tokens=150, temperature=1.0, ignore_eos=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(target_dir: Path, drafter_dir: Path) -> AsyncIterator[EngineClient]:
    client = EngineClient(engine_config(target_dir, drafter_dir))
    await client.start()
    yield client
    await client.close()


async def collect(outputs: AsyncIterator[Output]) -> list[int]:
    received = [output async for output in outputs]
    assert [o.finish_reason for o in received[:-1]] == [None] * (len(received) - 1)
    assert received[-1].finish_reason is not None
    return [token for output in received for token in output.token_ids]


async def until(condition: object, seconds: float = 5) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.02)


def mode(path: Path) -> int:
    """st_mode, 0 if there is nothing."""
    return path.stat().st_mode if path.exists() else 0


def idle(client: EngineClient) -> bool:
    s = client.stats
    busy = s.num_requests_running + s.num_requests_waiting
    return not busy and s.num_free_kv_pages + s.num_cached_kv_pages == s.num_kv_pages > 0


async def test_generate(client: EngineClient, target_dir: Path) -> None:
    assert client.ready is not None
    assert client.ready.num_draft_tokens == 5
    assert client.alive
    tokens = await collect(client.generate("one", [1, 2, 3], GREEDY))
    expected = drive(make_engine(target_dir), [submit("one", [1, 2, 3], max_tokens=10)])
    assert tokens == expected.tokens["one"]


async def test_concurrent(client: EngineClient, target_dir: Path) -> None:
    prompts = {f"c{i}": [i, i + 1, i + 2] for i in range(12)}
    results = await asyncio.gather(
        *(collect(client.generate(name, prompt, GREEDY)) for name, prompt in prompts.items())
    )
    requests = [submit(name, prompt, max_tokens=10) for name, prompt in prompts.items()]
    expected = drive(make_engine(target_dir), requests).tokens
    assert dict(zip(prompts, results, strict=True)) == expected


async def test_an_impossible_request_gives_an_error_output(client: EngineClient) -> None:
    outputs = [o async for o in client.generate("bad", [12345], GREEDY)]
    assert [o.finish_reason for o in outputs] == ["error"]
    assert "12345" in str(outputs[0].error)


async def test_an_id_in_use(client: EngineClient) -> None:
    first = client.generate("twice", [1], LONG)
    received = [await anext(first)]
    with pytest.raises(ValueError, match="twice"):
        await anext(client.generate("twice", [1], GREEDY))
    received += [output async for output in first]
    assert sum(len(output.token_ids) for output in received) == 150
    assert len(await collect(client.generate("twice", [1], GREEDY))) == 10


async def test_closing_the_iterator_aborts(client: EngineClient) -> None:
    await until(lambda: idle(client))
    streams = [client.generate(f"left{i}", [1, 2, i], LONG) for i in range(3)]
    for stream in streams:
        await anext(stream)
    for stream in streams:
        await stream.aclose()
    await until(lambda: idle(client))


async def test_cancelling_the_task_aborts(client: EngineClient) -> None:
    tasks = [
        asyncio.create_task(collect(client.generate(f"task{i}", [3, i], LONG))) for i in range(6)
    ]
    await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await until(lambda: idle(client))
    assert len(await collect(client.generate("after", [1], GREEDY))) == 10


@pytest.mark.parametrize("frame", [b"", b"\xc1", b"\x80", b"\x82\xa4type\xa6Submit\xa1x\x01"])
async def test_a_malformed_frame_is_dropped(client: EngineClient, frame: bytes) -> None:
    await client._socket.send(frame)
    assert len(await collect(client.generate("still here", [1], GREEDY))) == 10


async def test_the_socket_is_private(client: EngineClient) -> None:
    assert client._worker is not None
    directory = Path(client._worker.directory.name)
    assert stat.S_IMODE(mode(directory)) == 0o700
    assert stat.S_ISSOCK(mode(directory / "engine.sock"))


async def test_a_killed_worker_wakes_its_requests(target_dir: Path) -> None:
    client = EngineClient(engine_config(target_dir, max_num_seqs=1))
    await client.start()
    assert client._worker is not None
    directory = Path(client._worker.directory.name)
    try:
        stream, waiting = client.generate("a", [1], LONG), client.generate("b", [1], LONG)
        await anext(stream)
        client._worker.process.kill()
        for outputs in (stream, waiting):
            with pytest.raises(EngineDeadError):
                await asyncio.wait_for(collect(outputs), 5)
        await until(lambda: not client.alive)
        with pytest.raises(EngineDeadError, match="not running"):
            await anext(client.generate("c", [1], GREEDY))
    finally:
        await client.close()
    assert not mode(directory)


async def test_a_configuration_that_cannot_work(target_dir: Path) -> None:
    client = EngineClient(engine_config(target_dir, max_model_len=1000))
    with pytest.raises(ConfigError, match=r"engine.max_model_len = 1000 .* 160"):
        await client.start()
    assert client._worker is not None
    directory = Path(client._worker.directory.name)
    await client.close()
    assert not mode(directory)
    assert client._worker.process.returncode == 2


SCRIPT = """
import asyncio, sys
from engine.client import EngineClient
from engine.config import EngineConfig

async def main():
    client = EngineClient(EngineConfig.model_validate_json(sys.argv[1]))
    await client.start()
    print(client._worker.process.pid, client._worker.directory.name, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def gone(pid: int) -> bool:
    """Ended, though perhaps not reaped: the container's first process may never do that."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_the_worker_leaves_when_its_parent_dies(target_dir: Path) -> None:
    config = engine_config(target_dir).model_dump_json()
    parent = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", SCRIPT, config], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert parent.stdout is not None
    worker = int((await asyncio.to_thread(parent.stdout.readline)).split()[0])
    assert not gone(worker)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    await until(lambda: gone(worker))


async def test_the_worker_notices_a_parent_that_died_while_it_loaded(
    target_dir: Path, tmp_path: Path
) -> None:
    settings = tmp_path / "config.json"
    settings.write_text(engine_config(target_dir).model_dump_json())
    command = [sys.executable, "-m", "engine.worker", f"ipc://{tmp_path}/s", str(settings), "1"]
    worker = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
    assert await asyncio.wait_for(worker.wait(), 30) == 0


async def test_closing_ends_what_runs(target_dir: Path) -> None:
    """A request gets its error at once, and no new one is taken."""
    client = EngineClient(engine_config(target_dir))
    await client.start()
    outputs = client.generate("x", [1, 2], SamplingParams(max_tokens=50, ignore_eos=True))
    await anext(outputs)
    closing = asyncio.create_task(client.close())
    with pytest.raises(EngineDeadError):
        async for _ in outputs:
            pass
    with pytest.raises(EngineDeadError):
        await anext(client.generate("y", [1], SamplingParams(max_tokens=1)))
    await closing


async def test_wait_dead_tells_an_unexpected_end(target_dir: Path) -> None:
    client = EngineClient(engine_config(target_dir))
    await client.start()
    dead = asyncio.create_task(client.wait_dead())
    assert client._worker is not None
    client._worker.process.kill()
    assert await asyncio.wait_for(dead, 10) == -9
    assert client.stats.num_requests_running == 0
    await client.close()


async def test_wait_dead_keeps_quiet_when_asked_to_end(target_dir: Path) -> None:
    client = EngineClient(engine_config(target_dir))
    await client.start()
    dead = asyncio.create_task(client.wait_dead())
    await client.close()
    await asyncio.sleep(0.05)
    assert not dead.done()
    dead.cancel()
