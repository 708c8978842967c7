"""Paged attention in plain torch, one sequence and one head group after another, in fp32."""

import torch
from torch import Tensor


def paged_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    page_table: Tensor,
    kv_lens: Tensor,
    query_start: Tensor,
    *,
    max_query_len: int,
    max_kv_len: int,
    scale: float,
    causal: bool,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The meaning of ``kernels.paged_attention.triton.paged_attention``, which see.

    Reads lengths on the host; raises ValueError if a sequence exceeds a stated bound.
    """
    out = torch.empty_like(query) if out is None else out
    starts, lengths = query_start.tolist(), kv_lens.tolist()
    for row, (start, end, length) in enumerate(zip(starts, starts[1:], lengths, strict=False)):
        if end - start > max_query_len or length > max_kv_len:
            raise ValueError(
                f"sequence {row} has {end - start} new tokens and {length} in all; the bounds are "
                f"{max_query_len} and {max_kv_len}"
            )
        if length == 0:
            out[start:end] = 0
            continue
        k = _rows(keys, page_table[row], length)
        v = _rows(values, page_table[row], length)
        seen = visible(end - start, length, causal, window, query.device)
        out[start:end] = _attend(query[start:end], k, v, seen, scale, softcap, sinks)
    return out


def visible(
    queries: int, length: int, causal: bool, window: int | None, device: torch.device
) -> Tensor:
    """Which of ``length`` keys each of the last ``queries`` positions sees: bool ``[Q, L]``."""
    keys = torch.arange(length, device=device)
    positions = keys[length - queries :, None]
    seen = torch.ones(queries, length, dtype=torch.bool, device=device)
    if causal:
        seen &= keys <= positions
    if window is not None:
        seen &= keys > positions - window
    return seen


def _rows(cache: Tensor, pages: Tensor, length: int) -> Tensor:
    """A sequence's first ``length`` cached rows, ``[length, kv_heads, head_dim]``."""
    needed = -(-length // cache.shape[1])
    return cache[pages[:needed].long()].flatten(0, 1)[:length]


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    seen: Tensor,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """``query [Q, heads, dim]`` over ``keys, values [L, kv_heads, dim]``."""
    group = query.shape[1] // keys.shape[1]
    # A row that no query sees may hold NaN, which a weight of 0 would not silence.
    unseen = ~seen.any(0)[:, None, None]
    k = keys.float().masked_fill(unseen, 0).repeat_interleave(group, dim=1)
    v = values.float().masked_fill(unseen, 0).repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", query.float(), k) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        column = sinks.float()[:, None, None].expand(-1, len(query), 1)
        scores = torch.cat([scores, column], dim=-1)
    weights = scores.softmax(-1)[..., : len(keys)]
    return torch.einsum("hqk,khd->qhd", weights, v).to(query.dtype)
