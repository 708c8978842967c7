"""A checkpoint directory in Hugging Face format: config.json, generation_config.json, weights."""

import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.config import ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Checkpoint:
    """Reads a checkpoint; tensors are streamed shard by shard, never all at once."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.json."""
        path = self.directory / "config.json"
        if not path.is_file():
            raise ConfigError(f"{path} is missing: {self.directory} holds no checkpoint")
        return self._read_json(path)

    @cached_property
    def eos_token_ids(self) -> list[int]:
        """Tokens that end a generation: of generation_config.json, else of config.json."""
        path = self.directory / "generation_config.json"
        generation = self._read_json(path) if path.is_file() else {}
        ids = generation.get("eos_token_id", self.config.get("eos_token_id"))
        listed = [] if ids is None else ids if isinstance(ids, list) else [ids]
        if not all(isinstance(token, int) for token in listed):
            raise ConfigError(f"{path}: eos_token_id = {ids!r} is no token id; correct it")
        return listed

    @property
    def dtype(self) -> torch.dtype:
        """The type that the weights are stored in, as config.json says; float32 if it does not."""
        name = self.config.get("dtype") or self.config.get("torch_dtype") or "float32"
        if name not in DTYPES:
            raise ConfigError(
                f"{self.directory}/config.json: dtype = {name!r} is not supported; "
                f"set dtype to one of {', '.join(DTYPES)}"
            )
        return DTYPES[name]

    @cached_property
    def shards(self) -> list[Path]:
        """The safetensors files, from the index if there is one."""
        index = self.directory / "model.safetensors.index.json"
        if index.is_file():
            weight_map = self._read_json(index).get("weight_map")
            if not isinstance(weight_map, dict) or not all(
                isinstance(name, str) for name in weight_map.values()
            ):
                raise ConfigError(f"{index} has no weight_map: fetch the checkpoint again")
            names = sorted(set(weight_map.values()))
        else:
            names = ["model.safetensors"]
        missing = [name for name in names if not (self.directory / name).is_file()]
        if missing:
            raise ConfigError(f"{self.directory}: weight file {missing[0]} is missing")
        return [self.directory / name for name in names]

    def tensors(self, shard: Path) -> Iterator[tuple[str, Tensor]]:
        """Names and tensors of one shard, memory-mapped: valid until the next one is asked for."""
        try:
            with safe_open(shard, framework="pt", device="cpu") as file:
                for name in file.keys():  # noqa: SIM118 (safe_open is no mapping)
                    yield name, file.get_tensor(name)
        except SafetensorError as error:
            raise ConfigError(f"{shard} cannot be read: {error}; fetch it again") from None

    def _read_json(self, path: Path) -> dict[str, Any]:
        try:
            content = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from None
        if not isinstance(content, dict):
            raise ConfigError(f"{path} is not a JSON object")
        return content
