"""Norm, rotation and cache write against the reference, and the reference against the engine."""

from typing import Any

import pytest
import torch
from torch import Tensor

from engine.attention.batch import LayerCache
from engine.layers.norm import RMSNorm
from engine.layers.rope import RopeParameters, RotaryEmbedding, rotate
from kernels.qk_norm_rope import reference, triton

EPS = 1e-6
PAGE_SIZE, PAGES, LENGTH = 4, 6, 40
DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * torch.cuda.is_available()
# heads, kv_heads, head_dim, rotary dimensions
SHAPES = [(4, 2, 16, 16), (3, 1, 128, 128), (6, 2, 96, 96), (5, 3, 80, 32), (2, 1, 512, 512)]


def tables(rotary: int, device: torch.device) -> tuple[Tensor, Tensor]:
    rope = RotaryEmbedding(RopeParameters(1e4), rotary, LENGTH, device)
    return rope.cos, rope.sin


def random_slots(count: int, device: torch.device) -> Tensor:
    """Different slots, but for the null page, which is drawn at least twice."""
    slots = torch.randperm((PAGES - 1) * PAGE_SIZE, device=device)[:count] + PAGE_SIZE
    slots[:2] = 0
    return slots


def assert_same_cache(ours: Tensor, expected: Tensor) -> None:
    """Beyond the null page: in the bin the order of writes is undefined. ``[pages, …]``"""
    eps = torch.finfo(ours.dtype).eps
    torch.testing.assert_close(ours[1:], expected[1:], rtol=4 * eps, atol=4 * eps)


def inputs(
    shape: tuple[int, int, int, int], rows: int, dtype: torch.dtype, device: torch.device
) -> dict[str, Any]:
    heads, kv_heads, head_dim, rotary = shape
    cos, sin = tables(rotary, device)

    def random(*size: int) -> Tensor:
        return torch.randn(size, dtype=dtype, device=device)

    return {
        "qkv": random(rows, (heads + 2 * kv_heads) * head_dim),
        "positions": torch.randint(LENGTH, (rows,), device=device),
        "slots": random_slots(rows, device),
        "cos": cos,
        "sin": sin,
        "key_cache": torch.zeros(PAGES, PAGE_SIZE, kv_heads, head_dim, dtype=dtype, device=device),
        "value_cache": torch.zeros(
            PAGES, PAGE_SIZE, kv_heads, head_dim, dtype=dtype, device=device
        ),
        "q_weight": random(head_dim),
        "k_weight": random(head_dim),
        "eps": EPS,
    }


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_qk_norm_rope(
    shape: tuple[int, int, int, int], dtype: torch.dtype, norm: bool, device: torch.device
) -> None:
    torch.manual_seed(0)
    ours = inputs(shape, 5, dtype, device)
    if not norm:
        ours |= {"q_weight": None, "k_weight": None}
    theirs = ours | {name: ours[name].clone() for name in ("key_cache", "value_cache")}
    query = triton.qk_norm_rope(**ours)
    expected = reference.qk_norm_rope(**theirs)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(query, expected, rtol=4 * eps, atol=4 * eps)
    assert_same_cache(ours["key_cache"], theirs["key_cache"])
    assert torch.equal(ours["value_cache"][1:], theirs["value_cache"][1:])


def test_strided_input_and_cache(device: torch.device) -> None:
    """Rows of a wider tensor; keys and values interleaved in one pool."""
    torch.manual_seed(1)
    ours = inputs(SHAPES[0], 5, torch.float32, device)
    theirs = dict(ours)
    pool = torch.zeros(PAGES, 2, PAGE_SIZE, 2, 16, device=device)
    wide = torch.randn(5, 200, device=device)
    ours |= {"qkv": wide[:, 8:136], "key_cache": pool[:, 0], "value_cache": pool[:, 1]}
    theirs |= {"qkv": wide[:, 8:136].contiguous()}
    out = torch.empty(5, 4, 16, device=device)
    assert triton.qk_norm_rope(**ours, out=out) is out
    torch.testing.assert_close(out, reference.qk_norm_rope(**theirs))
    assert_same_cache(pool[:, 0], theirs["key_cache"])
    assert_same_cache(pool[:, 1], theirs["value_cache"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_reference_is_the_engines(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    given = inputs(SHAPES[0], 5, dtype, torch.device("cpu"))
    rope = RotaryEmbedding(RopeParameters(1e4), 16, LENGTH, torch.device("cpu"))
    cos, sin = rope(given["positions"], dtype)
    query, key, value = given["qkv"].unflatten(1, (-1, 16)).split([4, 2, 2], dim=1)
    norm = RMSNorm(16, EPS)
    cache = LayerCache(given["key_cache"].clone(), given["value_cache"].clone())
    with torch.inference_mode():
        norm.weight = torch.nn.Parameter(given["k_weight"])
        cache.write(rotate(norm(key), cos, sin), value, given["slots"])
        norm.weight = torch.nn.Parameter(given["q_weight"])
        expected = rotate(norm(query), cos, sin)
    assert torch.equal(reference.qk_norm_rope(**given), expected)
    assert torch.equal(given["key_cache"][1:], cache.keys[1:])
    assert torch.equal(given["value_cache"][1:], cache.values[1:])


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_write_context(dtype: torch.dtype, masked: bool, norm: bool, device: torch.device) -> None:
    torch.manual_seed(3)
    layers, kv_heads, head_dim, blocks, width = 3, 2, 16, 3, 4
    cos, sin = tables(head_dim, device)
    shape = (layers, PAGES, PAGE_SIZE, kv_heads, head_dim)
    ours = torch.zeros(2, *shape, dtype=dtype, device=device)
    theirs = ours.clone()
    # The counts may be a column of what acceptance returns.
    accepted = torch.tensor([[7, 2], [7, 0], [7, 4]], device=device)
    arguments: dict[str, Any] = {
        "kv": torch.randn(
            blocks * width, layers, 2, kv_heads, head_dim, dtype=dtype, device=device
        ),
        "positions": torch.randint(LENGTH, (blocks * width,), device=device),
        "slots": random_slots(blocks * width, device),
        "cos": cos,
        "sin": sin,
        "k_weights": torch.randn(layers, head_dim, dtype=dtype, device=device) if norm else None,
        "counts": accepted[:, 1] if masked else None,
        "eps": EPS,
    }
    triton.write_context(**arguments, key_caches=ours[0], value_caches=ours[1])
    reference.write_context(**arguments, key_caches=theirs[0], value_caches=theirs[1])
    for layer in range(layers):
        assert_same_cache(ours[0, layer], theirs[0, layer])
        assert torch.equal(ours[1, layer, 1:], theirs[1, layer, 1:])
