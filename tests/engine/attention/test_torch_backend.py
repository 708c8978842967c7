"""Paged attention against softmax attention written out for one query at a time."""

import math
from random import Random

import pytest
import torch
from torch import Tensor

from engine.attention.batch import AttentionBatch, AttentionSpec, CacheSpec, LayerCache
from engine.attention.torch_backend import attend

HEADS, HEAD_DIM = 6, 8


def one_query(
    query: Tensor, keys: Tensor, values: Tensor, position: int, spec: AttentionSpec
) -> Tensor:
    """``query [heads, dim]`` over ``keys`` and ``values [length, kv_heads, dim]``."""
    group = spec.num_heads // spec.cache.num_kv_heads
    seen = [
        p
        for p in range(len(keys))
        if (not spec.causal or p <= position)
        and (spec.window is None or position - p < spec.window)
    ]
    rows = []
    for head, q in enumerate(query):
        scores = torch.stack([q @ keys[p, head // group] for p in seen]) / math.sqrt(HEAD_DIM)
        rows.append(scores.softmax(0) @ values[seen, head // group])
    return torch.stack(rows)


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize(
    ("causal", "window"), [(True, None), (False, None), (True, 5), (False, 5), (True, 1)]
)
def test_equals_softmax_attention(
    causal: bool, window: int | None, page_size: int, kv_heads: int
) -> None:
    """Three sequences of ragged lengths on shuffled pages full of NaN where nothing was written."""
    torch.manual_seed(0)
    spec = AttentionSpec(HEADS, CacheSpec(kv_heads, HEAD_DIM), window, causal)
    lengths, new = [13, 1, 30], [4, 1, 30]
    table_width = -(-max(lengths) // page_size) + 2
    pages = list(range(1, 3 * table_width + 1))
    Random(1).shuffle(pages)
    page_table = torch.tensor(pages).view(3, table_width)
    shape = (len(pages) + 1, page_size, kv_heads, HEAD_DIM)
    cache = LayerCache(torch.full(shape, torch.nan), torch.full(shape, torch.nan))
    keys = [torch.randn(n, kv_heads, HEAD_DIM) for n in lengths]
    values = [torch.randn(n, kv_heads, HEAD_DIM) for n in lengths]
    for row, length in enumerate(lengths):
        positions = torch.arange(length)
        slots = page_table[row, positions // page_size] * page_size + positions % page_size
        cache.write(keys[row], values[row], slots)
    positions = torch.cat([torch.arange(n - q, n) for n, q in zip(lengths, new, strict=True)])
    batch = AttentionBatch(
        positions=positions,
        slots=torch.zeros_like(positions),
        query_start=torch.tensor([0, *new]).cumsum(0),
        kv_lens=torch.tensor(lengths),
        page_table=page_table,
        max_query_len=max(new),
    )
    query = torch.randn(sum(new), HEADS, HEAD_DIM)
    output = attend(query, cache, batch, spec)
    sequence = [row for row, count in enumerate(new) for _ in range(count)]
    for index, (row, position) in enumerate(zip(sequence, positions.tolist(), strict=True)):
        expected = one_query(query[index], keys[row], values[row], position, spec)
        torch.testing.assert_close(output[index], expected, atol=1e-5, rtol=1e-5)


def test_bytes_per_token() -> None:
    assert CacheSpec(2, 64).bytes_per_token(torch.bfloat16) == 2 * 2 * 64 * 2
