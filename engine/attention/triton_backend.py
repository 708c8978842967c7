"""Attention through our Triton kernel, for GPUs."""

from torch import Tensor

from engine.attention.batch import AttentionBatch, AttentionSpec, LayerCache
from kernels.paged_attention.triton import paged_attention


def attend(query: Tensor, cache: LayerCache, batch: AttentionBatch, spec: AttentionSpec) -> Tensor:
    """``query [T, heads, head_dim]`` over the cached keys and values, to the same shape."""
    return paged_attention(
        query,
        cache.keys,
        cache.values,
        batch.page_table,
        batch.kv_lens,
        batch.query_start,
        max_query_len=batch.max_query_len,
        # What the page table can address: a bound that a captured graph can keep.
        max_kv_len=batch.page_table.shape[1] * cache.keys.shape[1],
        scale=spec.scale,
        causal=spec.causal,
        window=spec.window,
    )
