"""Norm and rotation of query and key heads, and the write to the paged cache, in plain torch."""

import torch
from torch import Tensor
from torch.nn import functional as F


def qk_norm_rope(
    qkv: Tensor,
    positions: Tensor,
    slots: Tensor,
    cos: Tensor,
    sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    *,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    eps: float = 1e-6,
    out: Tensor | None = None,
) -> Tensor:
    """Queries ``[T, heads, head_dim]`` of ``qkv``; keys and values go to the cache.

    See ``kernels.qk_norm_rope.triton.qk_norm_rope``.
    """
    kv_heads, head_dim = key_cache.shape[2:]
    heads = qkv.unflatten(1, (-1, head_dim))
    query, key, value = heads.split([heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    query = _rotate(_norm(query, q_weight, eps), positions, cos, sin)
    key = _rotate(_norm(key, k_weight, eps), positions, cos, sin)
    _write(key_cache, key, slots)
    _write(value_cache, value, slots)
    return query if out is None else out.copy_(query)


def write_context(
    kv: Tensor,
    positions: Tensor,
    slots: Tensor,
    cos: Tensor,
    sin: Tensor,
    key_caches: Tensor,
    value_caches: Tensor,
    *,
    k_weights: Tensor | None = None,
    eps: float = 1e-6,
    counts: Tensor | None = None,
) -> None:
    """Write the context of L layers. See ``kernels.qk_norm_rope.triton.write_context``."""
    if counts is not None:
        kept = torch.arange(len(kv) // len(counts), device=kv.device) < counts[:, None]
        kv, positions, slots = (t[kept.flatten()] for t in (kv, positions, slots))
    for layer in range(kv.shape[1]):
        weight = None if k_weights is None else k_weights[layer]
        key = _rotate(_norm(kv[:, layer, 0], weight, eps), positions, cos, sin)
        _write(key_caches[layer], key, slots)
        _write(value_caches[layer], kv[:, layer, 1], slots)


def _norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if weight is None:
        return x
    return F.rms_norm(x.float(), weight.shape, eps=eps).to(x.dtype) * weight.to(x.dtype)


def _rotate(x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the first ``2 * cos.shape[1]`` dimensions; their halves are the pairs."""
    rotated, rest = x.tensor_split([2 * cos.shape[1]], dim=-1)
    first, second = rotated.chunk(2, dim=-1)
    cos, sin = (table[positions].to(x.dtype).unsqueeze(1) for table in (cos, sin))
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def _write(cache: Tensor, heads: Tensor, slots: Tensor) -> None:
    page_size = cache.shape[1]
    cache[slots // page_size, slots % page_size] = heads
