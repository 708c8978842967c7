"""The attention back ends and the choice between them."""

from typing import Protocol

from torch import Tensor

from engine.attention import torch_backend
from engine.attention.batch import AttentionBatch, AttentionSpec, LayerCache


class AttentionBackend(Protocol):
    """Attention of T new tokens over a paged cache that already holds their keys and values."""

    def __call__(
        self, query: Tensor, cache: LayerCache, batch: AttentionBatch, spec: AttentionSpec
    ) -> Tensor: ...


BACKENDS: dict[str, AttentionBackend] = {"torch": torch_backend.attend}


def select_backend(name: str) -> AttentionBackend:
    """The back end called ``name``; ``auto`` takes the best one that is there."""
    return BACKENDS["torch" if name == "auto" else name]
