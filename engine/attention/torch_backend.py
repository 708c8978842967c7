"""The reference: attention over the paged cache in plain torch, one sequence after another."""

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.attention.batch import AttentionBatch, AttentionSpec, LayerCache


def attend(query: Tensor, cache: LayerCache, batch: AttentionBatch, spec: AttentionSpec) -> Tensor:
    """``query [T, heads, head_dim]`` over the cached keys and values, to the same shape.

    The new tokens' own keys and values must have been written to the cache before.
    """
    output = torch.empty_like(query)
    starts, lengths = batch.query_start.tolist(), batch.kv_lens.tolist()
    for row, (start, end, length) in enumerate(zip(starts, starts[1:], lengths, strict=False)):
        keys = _gather(cache.keys, batch.page_table[row], length)
        values = _gather(cache.values, batch.page_table[row], length)
        mask = visible(batch.positions[start:end], length, spec)
        output[start:end] = _attend_one(query[start:end], keys, values, mask, spec)
    return output


def visible(positions: Tensor, length: int, spec: AttentionSpec) -> Tensor:
    """Which of ``length`` keys the queries at ``positions [Q]`` see: bool ``[Q, length]``."""
    keys = torch.arange(length, device=positions.device)
    mask = torch.ones(len(positions), length, dtype=torch.bool, device=positions.device)
    if spec.causal:
        mask &= keys <= positions[:, None]
    if spec.window is not None:
        mask &= keys > positions[:, None] - spec.window
    return mask


def _gather(pages: Tensor, page_table: Tensor, length: int) -> Tensor:
    """The first ``length`` rows behind ``page_table [pages]``, as ``[kv_heads, length, dim]``."""
    needed = -(-length // pages.shape[1])
    return pages.index_select(0, page_table[:needed]).flatten(0, 1)[:length].transpose(0, 1)


def _attend_one(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, spec: AttentionSpec
) -> Tensor:
    """One sequence: the query heads that share a key head are stacked as rows."""
    length, heads, head_dim = query.shape
    kv_heads = spec.cache.num_kv_heads
    group = heads // kv_heads
    stacked = query.view(length, kv_heads, group, head_dim).permute(1, 2, 0, 3)
    out = F.scaled_dot_product_attention(
        stacked.reshape(1, kv_heads, group * length, head_dim),
        keys.unsqueeze(0),
        values.unsqueeze(0),
        attn_mask=mask.repeat(group, 1),
        scale=spec.scale,
    )
    return out.view(kv_heads, group, length, head_dim).permute(2, 0, 1, 3).flatten(1, 2)
