"""A model together with what it needs to run over paged caches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from engine.attention.backend import AttentionBackend
from engine.attention.batch import AttentionBatch, LayerCache
from engine.layers.rope import RotaryEmbedding
from engine.models.decoder import ForwardContext
from engine.models.dflash import DFlashDrafter
from engine.models.registry import TargetModel

M = TypeVar("M", TargetModel, DFlashDrafter)


@dataclass(frozen=True)
class PagedModel(Generic[M]):
    """``caches``: one per layer of ``model``; ``rope``: tables that reach past max_model_len."""

    model: M
    caches: Sequence[LayerCache]
    rope: RotaryEmbedding
    attend: AttentionBackend

    def context(self, batch: AttentionBatch) -> ForwardContext:
        """What the layers share in one forward pass over ``batch``."""
        cos, sin = self.rope(batch.positions, self.model.config.dtype)
        return ForwardContext(batch, self.caches, cos, sin, self.attend)
