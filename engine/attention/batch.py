"""What attention needs to know of a batch, and the cache that it reads and writes."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class CacheSpec:
    """Geometry of one layer's keys and values."""

    num_kv_heads: int
    head_dim: int

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes that one token's key and value take in this layer."""
        return 2 * self.num_kv_heads * self.head_dim * dtype.itemsize


@dataclass(frozen=True)
class AttentionSpec:
    """How one layer attends.

    ``window``: a query at position p sees keys at positions > p - window. ``causal`` False lets
    every query of a draft block see the whole block.
    """

    num_heads: int
    cache: CacheSpec
    window: int | None = None
    causal: bool = True

    @property
    def scale(self) -> float:
        """Factor on the scores: 1 / sqrt(head_dim)."""
        return float(self.cache.head_dim**-0.5)


@dataclass(frozen=True)
class LayerCache:
    """One layer's paged keys and values, each ``[pages, page_size, kv_heads, head_dim]``."""

    keys: Tensor
    values: Tensor

    def write(self, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """Store ``keys`` and ``values [T, kv_heads, head_dim]`` at the flat ``slots [T]``.

        A slot is ``page * page_size + offset``. Slot 0 lies in the null page: a bin.
        """
        self.keys.flatten(0, 1).index_copy_(0, slots, keys)
        self.values.flatten(0, 1).index_copy_(0, slots, values)


@dataclass(frozen=True)
class AttentionBatch:
    """A ragged batch of B sequences with T new tokens together.

    ``query_start [B + 1]``: sequence b's new tokens are rows query_start[b] … query_start[b + 1].
    ``kv_lens [B]``: its tokens in the cache, the new ones included; the new ones are the last.
    ``page_table [B, pages]``; ``positions [T]``; ``slots [T]``: where the new tokens' K/V go.
    ``max_query_len``: the most new tokens of one sequence, known on the host.
    """

    positions: Tensor
    slots: Tensor
    query_start: Tensor
    kv_lens: Tensor
    page_table: Tensor
    max_query_len: int
