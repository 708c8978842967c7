"""Norm and rotation of query and key heads, and the write to the paged cache, as one kernel.

It reads the output of the fused projection where it lies. Roundings follow
``engine.layers.{norm,rope}``: the normed head, cos, sin and the products are rounded to the heads'
type, as transformers does it, so that GPU and CPU path compute the same numbers.
"""

# mypy: disable-error-code="import-untyped,untyped-decorator,no-untyped-def"

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_ELEMENTS_PER_PROGRAM = 1024


class _Cache(NamedTuple):
    """Keys or values ``[pages, page_size, kv_heads, head_dim]`` and their strides."""

    ptr: Any
    page_stride: Any
    token_stride: Any
    head_stride: Any


@triton.jit
def _rounded(x, like):
    """float32 ``x`` with the precision of ``like``."""
    return x.to(like.dtype).to(tl.float32)


@triton.jit
def _turned_heads(
    source_ptr,
    weight_ptr,
    cos_ptr,
    sin_ptr,
    target_ptrs,
    heads,
    inside_heads,
    eps,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    REST_BLOCK: tl.constexpr,
):
    """Normalise and turn the ``heads [H]`` at ``source_ptr``; store them at ``target_ptrs [H]``.

    Dimension i < HALF pairs with i + HALF; those from 2 * HALF on are only normalised.
    ``cos_ptr`` and ``sin_ptr`` point at the position's row of the tables.
    """
    pair = tl.arange(0, HALF_BLOCK)
    inside = inside_heads[:, None] & (pair < HALF)[None, :]
    first_ptrs = source_ptr + heads[:, None] * HEAD_DIM + pair[None, :]
    raw_first = tl.load(first_ptrs, inside, 0.0)
    first = raw_first.to(tl.float32)
    second = tl.load(first_ptrs + HALF, inside, 0.0).to(tl.float32)
    rest_dim = 2 * HALF + tl.arange(0, REST_BLOCK)
    inside_rest = inside_heads[:, None] & (rest_dim < HEAD_DIM)[None, :]
    if HEAD_DIM > 2 * HALF:
        rest_ptrs = source_ptr + heads[:, None] * HEAD_DIM + rest_dim[None, :]
        rest = tl.load(rest_ptrs, inside_rest, 0.0).to(tl.float32)
    if weight_ptr is not None:
        squares = tl.sum(first * first + second * second, 1)
        if HEAD_DIM > 2 * HALF:
            squares += tl.sum(rest * rest, 1)
        scale = tl.rsqrt(squares / HEAD_DIM + eps)[:, None]
        weight = tl.load(weight_ptr + pair, pair < HALF, 0.0)[None, :].to(tl.float32)
        first = _rounded(_rounded(first * scale, raw_first) * weight, raw_first)
        weight = tl.load(weight_ptr + HALF + pair, pair < HALF, 0.0)[None, :].to(tl.float32)
        second = _rounded(_rounded(second * scale, raw_first) * weight, raw_first)
        if HEAD_DIM > 2 * HALF:
            weight = tl.load(weight_ptr + rest_dim, rest_dim < HEAD_DIM, 0.0)[None, :]
            rest = _rounded(rest * scale, raw_first) * weight.to(tl.float32)
    cos = _rounded(tl.load(cos_ptr + pair, pair < HALF, 0.0), raw_first)[None, :]
    sin = _rounded(tl.load(sin_ptr + pair, pair < HALF, 0.0), raw_first)[None, :]
    turned_first = _rounded(first * cos, raw_first) - _rounded(second * sin, raw_first)
    turned_second = _rounded(second * cos, raw_first) + _rounded(first * sin, raw_first)
    tl.store(target_ptrs[:, None] + pair[None, :], turned_first, inside)
    tl.store(target_ptrs[:, None] + HALF + pair[None, :], turned_second, inside)
    if HEAD_DIM > 2 * HALF:
        tl.store(target_ptrs[:, None] + rest_dim[None, :], rest, inside_rest)


@triton.jit
def _copied_heads(
    source_ptr, target_ptrs, heads, inside_heads, HEAD_DIM: tl.constexpr, DIM_BLOCK: tl.constexpr
):
    dim = tl.arange(0, DIM_BLOCK)
    inside = inside_heads[:, None] & (dim < HEAD_DIM)[None, :]
    copied = tl.load(source_ptr + heads[:, None] * HEAD_DIM + dim[None, :], inside, 0.0)
    tl.store(target_ptrs[:, None] + dim[None, :], copied, inside)


@triton.jit
def _cache_ptrs(cache, slot, heads, PAGE_SIZE: tl.constexpr):
    """Where ``heads [H]`` of the token at the flat ``slot`` lie."""
    page, offset = slot // PAGE_SIZE, slot % PAGE_SIZE
    row = page * cache.page_stride + offset * cache.token_stride
    return cache.ptr + row + heads * cache.head_stride


@triton.jit
def _qk_norm_rope_kernel(
    qkv_ptr,
    positions_ptr,
    slots_ptr,
    cos_ptr,
    sin_ptr,
    keys,
    values,
    q_weight_ptr,
    k_weight_ptr,
    out_ptr,
    qkv_stride,
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HEADS_BLOCK: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    REST_BLOCK: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
):
    """Grid (T, head blocks): first the blocks of query heads, then of key, then of value heads."""
    QUERY_BLOCKS: tl.constexpr = (NUM_HEADS + HEADS_BLOCK - 1) // HEADS_BLOCK
    KV_BLOCKS: tl.constexpr = (NUM_KV_HEADS + HEADS_BLOCK - 1) // HEADS_BLOCK
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    source_ptr = qkv_ptr + row * qkv_stride
    position = tl.load(positions_ptr + row)
    slot = tl.load(slots_ptr + row)
    cos_ptr += position * HALF
    sin_ptr += position * HALF
    if block < QUERY_BLOCKS:
        heads = block * HEADS_BLOCK + tl.arange(0, HEADS_BLOCK)
        targets = out_ptr + (row * NUM_HEADS + heads) * HEAD_DIM
        _turned_heads(
            source_ptr, q_weight_ptr, cos_ptr, sin_ptr, targets, heads, heads < NUM_HEADS, eps,
            HEAD_DIM, HALF, HALF_BLOCK, REST_BLOCK,
        )  # fmt: skip
    elif block < QUERY_BLOCKS + KV_BLOCKS:
        heads = (block - QUERY_BLOCKS) * HEADS_BLOCK + tl.arange(0, HEADS_BLOCK)
        source_ptr += NUM_HEADS * HEAD_DIM
        targets = _cache_ptrs(keys, slot, heads, PAGE_SIZE)
        _turned_heads(
            source_ptr, k_weight_ptr, cos_ptr, sin_ptr, targets, heads, heads < NUM_KV_HEADS, eps,
            HEAD_DIM, HALF, HALF_BLOCK, REST_BLOCK,
        )  # fmt: skip
    else:
        heads = (block - QUERY_BLOCKS - KV_BLOCKS) * HEADS_BLOCK + tl.arange(0, HEADS_BLOCK)
        source_ptr += (NUM_HEADS + NUM_KV_HEADS) * HEAD_DIM
        targets = _cache_ptrs(values, slot, heads, PAGE_SIZE)
        _copied_heads(source_ptr, targets, heads, heads < NUM_KV_HEADS, HEAD_DIM, DIM_BLOCK)


@triton.jit
def _write_context_kernel(
    kv_ptr,
    positions_ptr,
    slots_ptr,
    counts_ptr,
    cos_ptr,
    sin_ptr,
    keys,
    values,
    k_weights_ptr,
    kv_stride,
    key_layer_stride,
    value_layer_stride,
    counts_stride,
    width,
    eps,
    NUM_LAYERS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HEADS_BLOCK: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    REST_BLOCK: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
):
    """Grid (T, 2 * L * head blocks): keys and values alternate, then layers, then head blocks."""
    row = tl.program_id(0).to(tl.int64)
    # Nested: the first condition is decided when the kernel is compiled, the second when it runs.
    if counts_ptr is not None:  # noqa: SIM102
        if row % width >= tl.load(counts_ptr + row // width * counts_stride):
            return
    is_value = tl.program_id(1) % 2
    layer = (tl.program_id(1) // 2 % NUM_LAYERS).to(tl.int64)
    heads = tl.program_id(1) // (2 * NUM_LAYERS) * HEADS_BLOCK + tl.arange(0, HEADS_BLOCK)
    source_ptr = kv_ptr + row * kv_stride + (layer * 2 + is_value) * (NUM_KV_HEADS * HEAD_DIM)
    slot = tl.load(slots_ptr + row)
    if is_value:
        targets = _cache_ptrs(values, slot, heads, PAGE_SIZE) + layer * value_layer_stride
        _copied_heads(source_ptr, targets, heads, heads < NUM_KV_HEADS, HEAD_DIM, DIM_BLOCK)
    else:
        position = tl.load(positions_ptr + row)
        targets = _cache_ptrs(keys, slot, heads, PAGE_SIZE) + layer * key_layer_stride
        weight_ptr = k_weights_ptr
        if k_weights_ptr is not None:
            weight_ptr = k_weights_ptr + layer * HEAD_DIM
        _turned_heads(
            source_ptr, weight_ptr, cos_ptr + position * HALF, sin_ptr + position * HALF, targets,
            heads, heads < NUM_KV_HEADS, eps, HEAD_DIM, HALF, HALF_BLOCK, REST_BLOCK,
        )  # fmt: skip


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
    """Turned queries ``[T, heads, head_dim]`` of ``qkv``; keys and values go to the cache.

    ``qkv [T, (heads + 2 * kv_heads) * head_dim]``: output of the fused projection, rows may be
    strided. ``positions [T]``: rows of the float32 tables ``cos`` and ``sin [length, rotary / 2]``;
    only the first ``rotary`` dimensions of a head turn, dimension i with i + rotary / 2
    (``engine.layers.rope.rotate``). ``slots [T]``: ``page * page_size + offset`` in the caches
    ``[pages, page_size, kv_heads, head_dim]``; many rows may write to the null page, in any order.
    ``q_weight`` and ``k_weight [head_dim]`` normalise each head first; None: no norm.
    """
    kv_heads, head_dim = key_cache.shape[2:]
    num_heads = qkv.shape[1] // head_dim - 2 * kv_heads
    if out is None:
        out = torch.empty(len(qkv), num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    _check(qkv, cos, sin, key_cache, value_cache)
    assert out.is_contiguous()
    heads_block = _heads_block(head_dim)
    blocks = triton.cdiv(num_heads, heads_block) + 2 * triton.cdiv(kv_heads, heads_block)
    if len(qkv):
        _qk_norm_rope_kernel[(len(qkv), blocks)](
            qkv, positions, slots, cos, sin,
            _Cache(key_cache, *key_cache.stride()[:3]),
            _Cache(value_cache, *value_cache.stride()[:3]),
            q_weight, k_weight, out, qkv.stride(0), eps,
            NUM_HEADS=num_heads, **_shape(key_cache, cos),
        )  # fmt: skip
    return out


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
    """Write keys (normed and turned) and values of a drafter's context, for its L layers at once.

    ``kv [T, L, 2, kv_heads, head_dim]`` (keys first; rows may be strided) into the stacked caches
    ``[L, pages, page_size, kv_heads, head_dim]``, of which each layer's cache is a view.
    ``k_weights [L, head_dim]`` or None. ``counts [B]``: T is B blocks of equal width, of which only
    the first ``counts[b]`` rows are written (rejected drafts must never become context).
    The rest as in ``qk_norm_rope``.
    """
    num_layers, _, _, kv_heads, head_dim = key_caches.shape
    _check(kv, cos, sin, key_caches[0], value_caches[0])
    assert kv.shape[1:] == (num_layers, 2, kv_heads, head_dim)
    assert kv.stride()[1:] == (2 * kv_heads * head_dim, kv_heads * head_dim, head_dim, 1)
    assert k_weights is None or k_weights.is_contiguous()
    blocks = 2 * num_layers * triton.cdiv(kv_heads, _heads_block(head_dim))
    if len(kv):
        _write_context_kernel[(len(kv), blocks)](
            kv, positions, slots, counts, cos, sin,
            _Cache(key_caches, *key_caches.stride()[1:4]),
            _Cache(value_caches, *value_caches.stride()[1:4]),
            k_weights, kv.stride(0), key_caches.stride(0), value_caches.stride(0),
            0 if counts is None else counts.stride(0),
            1 if counts is None else len(kv) // len(counts), eps,
            NUM_LAYERS=num_layers, **_shape(key_caches[0], cos),
        )  # fmt: skip


def _heads_block(head_dim: int) -> int:
    return max(_ELEMENTS_PER_PROGRAM // triton.next_power_of_2(head_dim), 1)


def _shape(cache: Tensor, cos: Tensor) -> dict[str, int]:
    """The compile-time constants that both kernels share."""
    page_size, kv_heads, head_dim = cache.shape[1:]
    half = cos.shape[1]
    return {
        "NUM_KV_HEADS": kv_heads,
        "HEAD_DIM": head_dim,
        "HALF": half,
        "PAGE_SIZE": page_size,
        "HEADS_BLOCK": _heads_block(head_dim),
        "HALF_BLOCK": triton.next_power_of_2(half),
        "REST_BLOCK": triton.next_power_of_2(max(head_dim - 2 * half, 1)),
        "DIM_BLOCK": triton.next_power_of_2(head_dim),
        "num_warps": 4,
    }


def _check(x: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor) -> None:
    """Layouts that the kernels take for granted."""
    assert x.stride(-1) == keys.stride(-1) == values.stride(-1) == 1
    assert cos.is_contiguous()
    assert sin.is_contiguous()
    assert 2 * cos.shape[1] <= keys.shape[-1]
    assert keys.shape == values.shape
