"""Checkpoints that are no directory: one clear line, quickly, without a network."""

import time
from pathlib import Path

import pytest

from engine.config import ConfigError, DrafterConfig, EngineConfig, TargetConfig
from engine.launch import resolve_checkpoints


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # huggingface_hub reads the variable when it is imported.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def config(model: str, revision: str | None = None) -> EngineConfig:
    return EngineConfig(target=TargetConfig(model=model, revision=revision))


def refusal(settings: EngineConfig) -> str:
    with pytest.raises(ConfigError) as error:
        resolve_checkpoints(settings)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_directories_stay(tmp_path: Path) -> None:
    settings = EngineConfig(
        target=TargetConfig(model=str(tmp_path)), drafter=DrafterConfig(model=str(tmp_path))
    )
    assert resolve_checkpoints(settings) == settings


def test_a_revision_of_a_directory(tmp_path: Path) -> None:
    message = refusal(config(str(tmp_path), revision="v1"))
    assert "target.revision = 'v1'" in message
    assert str(tmp_path) in message


@pytest.mark.parametrize("model", ["/no/such/place", "./models/qwen", "../x", "qwen", "a/b/c"])
def test_neither_directory_nor_hub_id(model: str) -> None:
    message = refusal(config(model))
    assert f"target.model = {model!r}" in message
    assert "hub id" in message


def test_a_hub_id_without_a_network() -> None:
    start = time.monotonic()
    message = refusal(config("nobody/no-such-model", revision="abc"))
    assert time.monotonic() - start < 5
    for word in ["target.model = 'nobody/no-such-model'", "revision abc", "Hugging Face hub"]:
        assert word in message


def test_the_drafter_is_named(tmp_path: Path) -> None:
    settings = config(str(tmp_path)).model_copy(update={"drafter": DrafterConfig(model="x")})
    assert "drafter.model = 'x'" in refusal(settings)
