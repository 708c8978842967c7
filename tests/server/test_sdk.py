"""The openai client against a real server process over a scripted engine."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.server.serve_scripted import SLOW, TEXT
from tests.server.test_command_line import serving, wait_for

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def url(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    config = tmp_path_factory.mktemp("config") / "config.toml"
    config.write_text(
        f'[target]\nmodel = "{checkpoint}"\nserved_name = "tiny"\n[server]\nport = 0\n'
    )
    process: subprocess.Popen[str]
    with serving(config) as process:
        yield wait_for(process, "listening on ")


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    # A base URL with a slash too many, as people have it.
    with openai.OpenAI(base_url=f"{url}//v1/", api_key="any", max_retries=0) as client:
        yield client


def test_plain(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(model="tiny", messages=MESSAGES, n=2, seed=3)
    assert [choice.message.content for choice in completion.choices] == [TEXT, TEXT]
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage.completion_tokens > 10
    assert completion.usage.prompt_tokens_details.cached_tokens == 0
    assert completion.metrics["speculative_decoding"]["num_spec_tokens"] == 3


def test_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == TEXT
    assert chunks[-1].usage.total_tokens > 10


@pytest.mark.parametrize("n", [1, 3])
def test_stream_helper(client: openai.OpenAI, n: int) -> None:
    with client.chat.completions.stream(model="tiny", messages=MESSAGES, n=n) as stream:
        for _ in stream:
            pass
        completion = stream.get_final_completion()
    assert [choice.message.content for choice in completion.choices] == [TEXT] * n
    assert {choice.message.role for choice in completion.choices} == {"assistant"}


def test_stop(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(model="tiny", messages=MESSAGES, stop="over")
    assert completion.choices[0].message.content == TEXT.partition("over")[0]


def test_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as not_found:
        client.chat.completions.create(model="gpt-4", messages=MESSAGES)
    assert not_found.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="tiny", messages=MESSAGES, logprobs=True)
    assert refused.value.param == "logprobs"
    assert refused.value.code == "unsupported_parameter"


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "dflash-server"


def test_leaving_in_mid_stream_is_noticed(url: str, client: openai.OpenAI) -> None:
    before = num_disconnects(url)
    stream = client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True, seed=SLOW)
    next(iter(stream))
    stream.close()
    deadline = time.monotonic() + 5
    while num_disconnects(url) == before:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def num_disconnects(url: str) -> float:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    (line,) = [x for x in lines if x.startswith("dflash_client_disconnects_total ")]
    return float(line.split()[1])
