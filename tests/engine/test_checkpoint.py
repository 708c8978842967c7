"""What is wrong with a checkpoint directory is said in one line."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine.checkpoint import Checkpoint
from engine.config import ConfigError

INDEX = "model.safetensors.index.json"


def make(directory: Path, **config: Any) -> Checkpoint:
    (directory / "config.json").write_text(json.dumps(config))
    return Checkpoint(str(directory))


def test_no_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"{tmp_path}/config.json is missing"):
        _ = Checkpoint(str(tmp_path)).config


@pytest.mark.parametrize("text", ["{", "[1]", "", '"config"'])
def test_bad_json(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=rf"{tmp_path}/config.json (cannot be read|is not)"):
        _ = Checkpoint(str(tmp_path)).config


def test_config_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        _ = Checkpoint(str(tmp_path)).config


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({"eos_token_id": 3}, None, [3]),
        ({"eos_token_id": [3, 4]}, None, [3, 4]),
        ({"eos_token_id": 3}, {"eos_token_id": [5, 6]}, [5, 6]),
        ({"eos_token_id": 3}, {"eos_token_id": 0}, [0]),
        ({"eos_token_id": 3}, {"temperature": 0.6}, [3]),
        ({"eos_token_id": None}, None, []),
        ({}, None, []),
    ],
)
def test_eos_token_ids(
    config: dict[str, Any],
    generation: dict[str, Any] | None,
    expected: list[int],
    tmp_path: Path,
) -> None:
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert make(tmp_path, **config).eos_token_ids == expected


def test_dtype(tmp_path: Path) -> None:
    assert make(tmp_path, torch_dtype="bfloat16").dtype is torch.bfloat16
    assert make(tmp_path, dtype="float16").dtype is torch.float16
    assert make(tmp_path).dtype is torch.float32
    with pytest.raises(ConfigError, match=r"dtype = 'float8_e4m3fn' is not supported; .*float16"):
        _ = make(tmp_path, dtype="float8_e4m3fn").dtype


def test_missing_shard(tmp_path: Path) -> None:
    checkpoint = make(tmp_path)
    with pytest.raises(ConfigError, match=r"model.safetensors is missing"):
        _ = checkpoint.shards
    save_file({"a": torch.zeros(1)}, tmp_path / "one.safetensors")
    weight_map = {"a": "one.safetensors", "b": "two.safetensors", "c": "one.safetensors"}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ConfigError, match=rf"{tmp_path}.*two.safetensors is missing"):
        _ = checkpoint.shards
    save_file({"b": torch.zeros(1)}, tmp_path / "two.safetensors")
    assert [shard.name for shard in checkpoint.shards] == ["one.safetensors", "two.safetensors"]
    assert [name for shard in checkpoint.shards for name, _ in checkpoint.tensors(shard)] == [
        "a",
        "b",
    ]


@pytest.mark.parametrize("index", [{}, {"weight_map": ["model.safetensors"]}])
def test_index_without_a_map(index: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(ConfigError, match=f"{INDEX} has no weight_map"):
        _ = make(tmp_path).shards


@pytest.mark.parametrize("size", [0, 5, 60])
def test_truncated_shard(size: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(100)}, path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ConfigError, match=f"{path} cannot be read"):
        list(make(tmp_path).tensors(path))
