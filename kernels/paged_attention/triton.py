"""Attention of new tokens over a paged KV cache, in Triton.

One kernel for plain decode (1 query), verify (causal in the block), draft (bidirectional in the
block) and prefill chunks (long queries). It is FlashAttention-2 (arXiv 2307.08691) with
Flash-Decoding's split of the keys (Dao et al. 2023, https://crfm.stanford.edu/2023/10/12/flashdecoding.html):

- A program owns ``block_m`` query rows of one kv head: all the query heads that share it, stacked
  for as many tokens as fit, so that every K/V tile is read once for all of them.
- The visible keys are cut into ``num_splits`` parts by the real length, on the device. With one
  part the program writes the output, otherwise a normalised partial and its log-sum-exp, which a
  second kernel combines.

Grids depend on shapes alone and no device data is read on the host, so that a launch can be
captured in a CUDA graph and replayed with other lengths.

Softmax runs in base 2 (scale and log2(e) are one factor). The running maximum starts at a finite
-1e30: a row that sees nothing keeps a sum of 0 without any NaN to guard against.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import math
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import cuda

from kernels.paged_attention.plan import (
    LaunchPlan,
    LaunchSettings,
    make_plan,
    num_sms,
    workspace_numel,
)

LOG2_E = math.log2(math.e)
HEAD_DIMS = (16, 32, 64, 128, 256, 512)


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
    workspace: Tensor | None = None,
    settings: LaunchSettings | None = None,
    num_splits: int | None = None,
) -> Tensor:
    """Attention of T new tokens, in B sequences, over a cache that already holds their K/V.

    The last ``query_start[b + 1] - query_start[b]`` of sequence b's ``kv_lens[b]`` cached tokens
    are its queries. A query at position p sees keys at positions <= p if ``causal``, otherwise all
    of its sequence, and with a ``window`` only those > p - window.

    Args:
        query: ``[T, heads, head_dim]`` bf16, fp16 or fp32; head_dim one of HEAD_DIMS, contiguous
            in its last dimension; heads a multiple of kv_heads.
        keys, values: ``[pages, page_size, kv_heads, head_dim]``, query's dtype, equal strides.
            Rows that no query may see are not read into the result, whatever they hold.
        page_table: ``[B, max_pages]`` int32 or int64; entries past a sequence's length are ignored.
        kv_lens: ``[B]`` int32 or int64, tokens in the cache with the new ones. 0 marks padding:
            its queries' output is 0.
        query_start: ``[B + 1]`` int32 or int64, non-decreasing. Output rows that belong to no
            sequence are undefined.
        max_query_len: no sequence has more new tokens; a bound for the grid.
        max_kv_len: no sequence is longer; a bound that only the number of splits depends on.
        scale: positive factor on the scores.
        softcap: scores become ``softcap * tanh(score / softcap)``.
        sinks: ``[heads]``, a logit per head that joins the softmax's denominator.
        out: where the result goes, ``[T, heads, head_dim]``; allocated if None.
        workspace: fp32 scratch of at least ``workspace_size`` elements; allocated if None. Its
            contents do not matter; one may serve every layer of a stream.
        settings, num_splits: override the launch's choice (benchmarks and tests).

    Returns:
        ``out``. Scores, softmax and sums are in fp32.

    Raises:
        ValueError: the shapes, dtypes or strides are not as above.
    """
    _check(query, keys, values, page_table, kv_lens, query_start, scale)
    out = torch.empty_like(query) if out is None else out
    num_tokens, num_heads, head_dim = query.shape
    plan = make_plan(
        len(kv_lens),
        max_query_len,
        num_heads,
        keys.shape[2],
        head_dim,
        query.element_size(),
        max_kv_len,
        window,
        num_sms(query.device),
        settings,
        num_splits,
    )
    numel = workspace_numel(plan, num_tokens, num_heads, head_dim)
    partials, log_sums = _scratch(workspace, numel, query)
    _launch_attend(
        query, keys, values, page_table, kv_lens, query_start, out, partials, log_sums, sinks,
        plan, scale, causal, window, softcap,
    )  # fmt: skip
    if plan.num_splits > 1:
        _launch_combine(partials, log_sums, sinks, out, plan)
    return out


def workspace_size(
    query: Tensor,
    num_kv_heads: int,
    num_sequences: int,
    *,
    max_query_len: int,
    max_kv_len: int,
    window: int | None = None,
) -> int:
    """fp32 elements that ``paged_attention`` needs as workspace for these shapes."""
    tokens, heads, head_dim = query.shape
    sms = num_sms(query.device)
    plan = make_plan(
        num_sequences, max_query_len, heads, num_kv_heads, head_dim, query.element_size(),
        max_kv_len, window, sms,
    )  # fmt: skip
    return workspace_numel(plan, tokens, heads, head_dim)


def _check(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    page_table: Tensor,
    kv_lens: Tensor,
    query_start: Tensor,
    scale: float,
) -> None:
    heads, head_dim = query.shape[1:]
    if head_dim not in HEAD_DIMS:
        raise ValueError(f"head_dim = {head_dim} is not one of {HEAD_DIMS}")
    if keys.shape != values.shape or keys.stride() != values.stride():
        raise ValueError(
            f"keys {tuple(keys.shape)} with strides {keys.stride()} and values "
            f"{tuple(values.shape)} with strides {values.stride()} must have one layout"
        )
    if keys.shape[3] != head_dim or heads % keys.shape[2]:
        raise ValueError(
            f"query {tuple(query.shape)} does not fit a cache {tuple(keys.shape)}: head_dim must "
            "be the same and heads a multiple of kv_heads"
        )
    if query.stride(2) != 1 or keys.stride(3) != 1:
        raise ValueError("query, keys and values must be contiguous in their last dimension")
    if any(t.stride(-1) != 1 for t in (page_table, kv_lens, query_start)):
        raise ValueError("page_table's rows, kv_lens and query_start must be contiguous")
    if not query.dtype == keys.dtype == values.dtype:
        raise ValueError(f"query is {query.dtype}, the cache {keys.dtype}; they must be the same")
    if len(page_table) != len(kv_lens) or len(query_start) != len(kv_lens) + 1:
        raise ValueError(
            f"page_table has {len(page_table)} rows, kv_lens {len(kv_lens)}, query_start "
            f"{len(query_start)}; expected B, B and B + 1"
        )
    if scale <= 0:
        raise ValueError(f"scale = {scale} must be positive")


def _scratch(workspace: Tensor | None, numel: int, query: Tensor) -> tuple[Tensor, Tensor]:
    """Partials ``[splits, T, heads, head_dim]`` and log sums ``[splits, T, heads]``, both flat."""
    if numel == 0:
        return query, query  # never touched
    if workspace is None:
        workspace = torch.empty(numel, dtype=torch.float32, device=query.device)
    if workspace.dtype != torch.float32 or workspace.numel() < numel:
        raise ValueError(
            f"workspace holds {workspace.numel()} elements of {workspace.dtype}; this launch needs "
            f"{numel} of torch.float32"
        )
    split = numel // (query.shape[2] + 1) * query.shape[2]
    return workspace.view(-1)[:split], workspace.view(-1)[split:numel]


def _launch_attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    page_table: Tensor,
    kv_lens: Tensor,
    query_start: Tensor,
    out: Tensor,
    partials: Tensor,
    log_sums: Tensor,
    sinks: Tensor | None,
    plan: LaunchPlan,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
) -> None:
    num_tokens, num_heads, head_dim = query.shape
    page_size, num_kv_heads = keys.shape[1:3]
    settings = plan.settings
    # tanh(x) = 1 - 2 / (2**(2 x log2(e)) + 1), so the soft-cap needs these two factors.
    inner = scale * LOG2_E if softcap is None else 2 * scale / softcap * LOG2_E
    outer = 1.0 if softcap is None else softcap * LOG2_E
    grid = (len(kv_lens) * plan.tiles_per_sequence * num_kv_heads, plan.num_splits)
    _attend_kernel[grid](
        query, keys, values, page_table, kv_lens, query_start, out, partials, log_sums,
        query if sinks is None else sinks,
        inner, outer, num_tokens, plan.tiles_per_sequence, plan.num_splits,
        settings.min_tiles, 0 if window is None else window,
        query.stride(0), query.stride(1), keys.stride(0), keys.stride(1), keys.stride(2),
        page_table.stride(0), out.stride(0), out.stride(1),
        HEAD_DIM=head_dim, KV_HEADS=num_kv_heads, GROUP=num_heads // num_kv_heads,
        PAGE_SIZE=page_size, BLOCK_M=settings.block_m, BLOCK_N=settings.block_n,
        CAUSAL=causal, HAS_WINDOW=window is not None, HAS_SOFTCAP=softcap is not None,
        HAS_SINKS=sinks is not None, SPLIT=plan.num_splits > 1, STAGED=settings.staged_masks,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        DEPENDENT=settings.dependent_launch,
        num_warps=settings.num_warps, num_stages=settings.num_stages,
        **_dependent(settings),
    )  # fmt: skip


def _launch_combine(
    partials: Tensor, log_sums: Tensor, sinks: Tensor | None, out: Tensor, plan: LaunchPlan
) -> None:
    num_tokens, num_heads, head_dim = out.shape
    rows = num_tokens * num_heads
    splits, block_rows, num_warps = _combine_shape(plan.num_splits, head_dim)
    _combine_kernel[(triton.cdiv(rows, block_rows),)](
        partials, log_sums, out if sinks is None else sinks, out, rows, plan.num_splits,
        out.stride(0), out.stride(1),
        HEAD_DIM=head_dim, HEADS=num_heads, SPLITS=splits, ROWS=block_rows,
        HAS_SINKS=sinks is not None, DEPENDENT=plan.settings.dependent_launch,
        num_warps=num_warps, **_dependent(plan.settings),
    )  # fmt: skip


@lru_cache
def _combine_shape(num_splits: int, head_dim: int) -> tuple[int, int, int]:
    """(splits as a power of two, rows of a program, warps).

    Up to 8192 fp32 values in a program, 64 a thread: all their loads are in flight at once.
    """
    splits = triton.next_power_of_2(num_splits)
    rows = max(1, min(8, 4096 // (splits * head_dim)))
    return splits, rows, max(1, min(8, splits * rows * head_dim // 1024))


def _dependent(settings: LaunchSettings) -> dict[str, bool]:
    return {"launch_pdl": True} if settings.dependent_launch else {}


@triton.jit
def _page_of(tile, end_tile, table_ptr, PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """The page that holds ``tile``, if tiles lie within pages; 0 past the end."""
    page = tl.zeros([], dtype=tl.int64)
    if PAGE_SIZE % BLOCK_N == 0:
        at = table_ptr + tile * BLOCK_N // PAGE_SIZE
        page = tl.load(at, mask=tile < end_tile, other=0).to(tl.int64)
    return page


@triton.jit
def _attend_tiles(  # noqa: PLR0912
    acc, row_sum, row_max, q, row_limit, row_floor, page,
    key_ptr, value_ptr, table_ptr, first_tile, end_tile, first_key, end_key, inner, outer,
    stride_page, stride_token,
    HEAD_DIM: tl.constexpr, PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Online softmax over the key tiles first_tile … end_tile - 1.

    A row sees keys row_floor < key <= row_limit. Unless MASKED, all rows must see all these keys;
    if MASKED, rows of the cache outside first_key … end_key - 1 are not read. ``page`` is the
    first tile's (see _page_of).
    """
    ONE_PAGE: tl.constexpr = PAGE_SIZE % BLOCK_N == 0
    offsets = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, HEAD_DIM)
    tile_rows = offsets[:, None] * stride_token + dims[None, :]
    for tile in tl.range(first_tile, end_tile):
        start = tile * BLOCK_N
        positions = start + offsets
        if ONE_PAGE:
            base = page * stride_page + (start % PAGE_SIZE) * stride_token
            rows = base + tile_rows
            # A tile ahead: the next tile's loads must not wait for their address.
            page = _page_of(tile + 1, end_tile, table_ptr, PAGE_SIZE, BLOCK_N)
        else:
            slot = positions // PAGE_SIZE
            if MASKED:
                inside = (positions >= first_key) & (positions < end_key)
                pages = tl.load(table_ptr + slot, mask=inside, other=0).to(tl.int64)
            else:
                pages = tl.load(table_ptr + slot).to(tl.int64)
            starts = pages * stride_page + (positions % PAGE_SIZE) * stride_token
            rows = starts[:, None] + dims[None, :]
        if MASKED:
            valid = ((positions >= first_key) & (positions < end_key))[:, None]
            k = tl.load(key_ptr + rows, mask=valid, other=0.0)
        else:
            k = tl.load(key_ptr + rows)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if HAS_SOFTCAP:
            scores = outer - 2 * outer / (tl.exp2(scores * inner) + 1)
            factor = 1.0
        else:
            factor = inner
        if MASKED:
            visible = positions[None, :] <= row_limit[:, None]
            if HAS_WINDOW:
                visible &= positions[None, :] > row_floor[:, None]
            scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1) * factor)
        p = tl.exp2(scores * factor - new_max[:, None])
        shrink = tl.exp2(row_max - new_max)
        row_sum = row_sum * shrink + tl.sum(p, 1)
        row_max = new_max
        if MASKED:
            v = tl.load(value_ptr + rows, mask=valid, other=0.0)
        else:
            v = tl.load(value_ptr + rows)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
    return acc, row_sum, row_max


# What differs between batches must not make for another kernel.
@triton.jit(
    do_not_specialize=[
        "num_tokens",
        "tiles_per_sequence",
        "num_splits",
        "min_tiles",
        "window",
        "stride_table",
    ]
)
def _attend_kernel(  # noqa: PLR0915
    query_ptr, key_ptr, value_ptr, table_ptr, kv_lens_ptr, query_start_ptr,
    out_ptr, partial_ptr, log_sum_ptr, sink_ptr,
    inner, outer, num_tokens, tiles_per_sequence, num_splits, min_tiles, window,
    stride_query, stride_query_head, stride_page, stride_token, stride_kv_head,
    stride_table, stride_out, stride_out_head,
    HEAD_DIM: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
    PAGE_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr, SPLIT: tl.constexpr, STAGED: tl.constexpr,
    PRECISION: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Program (tile of a sequence's query rows and kv head, split of its keys).

    kv_head runs fastest: neighbours read neighbouring stretches of the same cache rows. A
    sequence's last query tile, the longest under a causal mask, starts first.
    """
    if DEPENDENT:
        cuda.gdc_wait()
        cuda.gdc_launch_dependents()
    TOKENS: tl.constexpr = BLOCK_M // GROUP
    kv_head = tl.program_id(0) % KV_HEADS
    tile = tl.program_id(0) // KV_HEADS
    split = tl.program_id(1)
    sequence = tile // tiles_per_sequence
    first_token = (tiles_per_sequence - 1 - tile % tiles_per_sequence) * TOKENS

    query_start = tl.load(query_start_ptr + sequence).to(tl.int32)
    query_len = tl.load(query_start_ptr + sequence + 1).to(tl.int32) - query_start
    kv_len = tl.load(kv_lens_ptr + sequence).to(tl.int32)
    if first_token >= query_len:
        return

    # Row r of the tile: token r // GROUP, query head r % GROUP of this kv head.
    rows = tl.arange(0, BLOCK_M)
    tokens = first_token + rows // GROUP
    heads = kv_head * GROUP + rows % GROUP
    used = (rows < TOKENS * GROUP) & (tokens < query_len)
    dims = tl.arange(0, HEAD_DIM)

    # Any row of the tile sees keys first_key … end_key - 1; one row floor < key <= limit.
    context = kv_len - query_len
    first_position = context + first_token
    last_position = context + tl.minimum(first_token + TOKENS, query_len) - 1
    positions = context + tokens
    row_limit = tl.zeros_like(positions) + (kv_len - 1)
    end_key = kv_len
    all_see_below = kv_len
    if CAUSAL:
        row_limit = tl.minimum(positions, row_limit)
        end_key = tl.minimum(kv_len, last_position + 1)
        all_see_below = tl.minimum(kv_len, first_position + 1)
    row_floor = positions - window
    first_key = 0
    all_see_from = 0
    if HAS_WINDOW:
        first_key = tl.maximum(first_position - window + 1, 0)
        all_see_from = tl.maximum(last_position - window + 1, 0)

    # This split's share of the key tiles, by the real length. With at least min_tiles for each,
    # short contexts use fewer splits and leave the combine less to read.
    first_tile = first_key // BLOCK_N
    end_tile = tl.cdiv(tl.maximum(end_key, 0), BLOCK_N)
    if SPLIT:
        share = tl.maximum(tl.cdiv(end_tile - first_tile, num_splits), min_tiles)
        first_tile += split * share
        end_tile = tl.minimum(first_tile + share, end_tile)

    key_ptr += kv_head * stride_kv_head
    value_ptr += kv_head * stride_kv_head
    table_ptr += sequence.to(tl.int64) * stride_table
    # Asked for before the query, so that both are under way together.
    page = _page_of(first_tile, end_tile, table_ptr, PAGE_SIZE, BLOCK_N)
    query_rows = (query_start + tokens).to(tl.int64) * stride_query + heads * stride_query_head
    q = tl.load(query_ptr + query_rows[:, None] + dims[None, :], mask=used[:, None], other=0.0)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    row_max = tl.zeros([BLOCK_M], dtype=tl.float32) - 1e30

    if STAGED:
        # Tiles at the window's edge, tiles that all rows see whole, tiles at the diagonal.
        full_from = tl.cdiv(all_see_from, BLOCK_N)
        full_from = tl.minimum(tl.maximum(full_from, first_tile), end_tile)
        full_end = tl.maximum(all_see_below, 0) // BLOCK_N
        full_end = tl.maximum(tl.minimum(full_end, end_tile), full_from)
        if HAS_WINDOW:
            acc, row_sum, row_max = _attend_tiles(
                acc, row_sum, row_max, q, row_limit, row_floor, page,
                key_ptr, value_ptr, table_ptr, first_tile, full_from, first_key, end_key,
                inner, outer, stride_page, stride_token,
                HEAD_DIM, PAGE_SIZE, BLOCK_N, HAS_WINDOW, HAS_SOFTCAP, True, PRECISION,
            )  # fmt: skip
            page = _page_of(full_from, full_end, table_ptr, PAGE_SIZE, BLOCK_N)
        acc, row_sum, row_max = _attend_tiles(
            acc, row_sum, row_max, q, row_limit, row_floor, page,
            key_ptr, value_ptr, table_ptr, full_from, full_end, first_key, end_key,
            inner, outer, stride_page, stride_token,
            HEAD_DIM, PAGE_SIZE, BLOCK_N, HAS_WINDOW, HAS_SOFTCAP, False, PRECISION,
        )  # fmt: skip
        page = _page_of(full_end, end_tile, table_ptr, PAGE_SIZE, BLOCK_N)
        first_tile = full_end
    acc, row_sum, row_max = _attend_tiles(
        acc, row_sum, row_max, q, row_limit, row_floor, page,
        key_ptr, value_ptr, table_ptr, first_tile, end_tile, first_key, end_key,
        inner, outer, stride_page, stride_token,
        HEAD_DIM, PAGE_SIZE, BLOCK_N, HAS_WINDOW, HAS_SOFTCAP, True, PRECISION,
    )  # fmt: skip

    if SPLIT:
        acc = acc / tl.where(row_sum > 0, row_sum, 1.0)[:, None]
        log_sum = tl.where(row_sum > 0, row_max + tl.log2(row_sum), float("-inf"))
        row = (split.to(tl.int64) * num_tokens + query_start + tokens) * (KV_HEADS * GROUP) + heads
        tl.store(log_sum_ptr + row, log_sum, mask=used)
        # An empty part's weight is 0: the combine does not read its partial.
        stored = (used & (row_sum > 0))[:, None]
        tl.store(partial_ptr + row[:, None] * HEAD_DIM + dims[None, :], acc, mask=stored)
    else:
        if HAS_SINKS:
            sink = tl.load(sink_ptr + heads).to(tl.float32) * 1.4426950408889634
            row_sum += tl.exp2(sink - row_max)
        acc = acc / tl.where(row_sum > 0, row_sum, 1.0)[:, None]
        out_rows = (query_start + tokens).to(tl.int64) * stride_out + heads * stride_out_head
        out = acc.to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + out_rows[:, None] + dims[None, :], out, mask=used[:, None])


@triton.jit(do_not_specialize=["num_rows", "num_splits"])
def _combine_kernel(
    partial_ptr, log_sum_ptr, sink_ptr, out_ptr, num_rows, num_splits,
    stride_out, stride_out_head,
    HEAD_DIM: tl.constexpr, HEADS: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr,
    HAS_SINKS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Weigh ROWS rows' partials (row = token and head) by their share of the softmax's sum."""
    if DEPENDENT:
        cuda.gdc_wait()
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    splits = tl.arange(0, SPLITS)
    dims = tl.arange(0, HEAD_DIM)
    inside = rows < num_rows
    at = splits[:, None].to(tl.int64) * num_rows + rows[None, :]
    there = (splits < num_splits)[:, None] & inside[None, :]
    log_sums = tl.load(log_sum_ptr + at, mask=there, other=float("-inf"))
    top = tl.maximum(tl.max(log_sums, 0), -1e30)
    weights = tl.exp2(log_sums - top[None, :])
    total = tl.sum(weights, 0)
    if HAS_SINKS:
        sink = tl.load(sink_ptr + rows % HEADS).to(tl.float32) * 1.4426950408889634
        total += tl.exp2(sink - top)
    weights = weights / tl.where(total > 0, total, 1.0)[None, :]
    cells = at[:, :, None] * HEAD_DIM + dims[None, None, :]
    full = (log_sums > float("-inf"))[:, :, None]
    if SPLITS <= 16:
        # Read empty parts too, whose contents mean nothing: so that these loads need not wait
        # for the log sums.
        partials = tl.where(full, tl.load(partial_ptr + cells, mask=there[:, :, None]), 0.0)
    else:
        partials = tl.load(partial_ptr + cells, mask=full, other=0.0)
    out = tl.sum(partials * weights[:, :, None], 0).to(out_ptr.dtype.element_ty)
    out_rows = (rows // HEADS).to(tl.int64) * stride_out + (rows % HEADS) * stride_out_head
    tl.store(out_ptr + out_rows[:, None] + dims[None, :], out, mask=inside[:, None])
