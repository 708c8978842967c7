"""The attention back ends and the choice between them."""

from importlib.util import find_spec
from typing import Protocol

import torch
from torch import Tensor

from engine.attention import torch_backend
from engine.attention.batch import AttentionBatch, AttentionSpec, LayerCache
from engine.config import ConfigError


class AttentionBackend(Protocol):
    """Attention of T new tokens over a paged cache that already holds their keys and values."""

    def __call__(
        self, query: Tensor, cache: LayerCache, batch: AttentionBatch, spec: AttentionSpec
    ) -> Tensor: ...


def select_backend(key: str, name: str, device: torch.device) -> AttentionBackend:
    """The back end called ``name``; ``auto`` is triton on a GPU and torch elsewhere.

    ``key`` is the configuration key that asks, for the message of the ConfigError.
    """
    if name == "torch" or (name == "auto" and device.type != "cuda"):
        return torch_backend.attend
    if device.type != "cuda":
        raise ConfigError(f'{key} = "triton" needs a GPU, the device is {device}; set "torch"')
    if find_spec("triton") is None:
        raise ConfigError(
            f'{key} = "{name}" needs the package triton: pip install -e ".[gpu]", or set "torch"'
        )
    # Imported here: a machine without a GPU need not have triton.
    from engine.attention import triton_backend  # noqa: PLC0415

    return triton_backend.attend
