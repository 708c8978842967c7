"""Acceptance and commit in one small kernel: what ``engine.step`` does in a dozen operations."""

# mypy: disable-error-code="import-untyped,untyped-decorator,no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.accept.state import EXHAUSTED, STOPPED, SlotState
from kernels.sampling.noise import uniform_of_tokens

_STOPPED = tl.constexpr(STOPPED)
_EXHAUSTED = tl.constexpr(EXHAUSTED)


@triton.jit
def _accept_kernel(
    block_ptr,
    sampled_ptr,
    slots_ptr,
    state,
    rates_ptr,
    out_ptr,
    vocab_size,
    WIDTH: tl.constexpr,
    NUM_STOP_IDS: tl.constexpr,
    WIDTH_BLOCK: tl.constexpr,
    STOP_BLOCK: tl.constexpr,
):
    """One program of one warp per request: later stores cannot overtake earlier loads."""
    request = tl.program_id(0)
    slot = tl.load(slots_ptr + request)
    rank = tl.arange(0, WIDTH_BLOCK)
    inside = rank < WIDTH
    sampled = tl.load(sampled_ptr + request * WIDTH + rank, inside, -1)
    draft = tl.load(block_ptr + request * WIDTH + rank + 1, rank + 1 < WIDTH, -1)
    if rates_ptr is None:
        # The last row has no draft to compare with: it never matches, and ends the search.
        differs = (draft != sampled) | (rank + 1 >= WIDTH)
        accepted = tl.min(tl.where(differs, rank, WIDTH))
    else:
        seed, position = tl.load(state.seeds + slot), tl.load(state.seq_len + slot)
        draw = uniform_of_tokens(seed, position, rank * 0)
        rates = tl.load(rates_ptr + rank, rank + 1 < WIDTH, 0.0)
        accepted = tl.sum((draw < rates).to(tl.int32))
        sampled = tl.where(rank < accepted, draft, sampled)

    stop_rank = tl.arange(0, STOP_BLOCK)
    stop_ids = tl.load(state.stop_ids + slot * NUM_STOP_IDS + stop_rank,
                       stop_rank < NUM_STOP_IDS, -1)  # fmt: skip
    is_stop = tl.max((sampled[:, None] == stop_ids[None, :]).to(tl.int32), 1) > 0
    first_stop = tl.min(tl.where(is_stop & inside, rank, WIDTH))

    num_output = tl.load(state.num_output + slot)
    room = tl.maximum(tl.load(state.max_output + slot) - num_output, 0)
    room = tl.where(tl.load(state.done + slot), 0, room)
    count = tl.minimum(tl.minimum(accepted, first_stop).to(tl.int64) + 1, room)
    stopped = first_stop < count
    exhausted = (count == room) & (count > 0)

    row_ptr = out_ptr + request * (WIDTH + 2)
    tl.store(row_ptr + rank, sampled, inside)
    tl.store(row_ptr + WIDTH, count)
    flags = stopped.to(tl.int64) * _STOPPED + exhausted.to(tl.int64) * _EXHAUSTED
    tl.store(row_ptr + WIDTH + 1, flags)
    # Frozen slots and padding (many rows of the null slot) must change nothing.
    if count > 0:
        tl.store(state.seq_len + slot, tl.load(state.seq_len + slot) + count)
        tl.store(state.num_output + slot, num_output + count)
        tl.store(state.bonus + slot, tl.sum(tl.where(rank == count - 1, sampled, 0)))
        tl.store(state.done + slot, stopped | exhausted)
        if state.output_counts is not None:
            counts_ptr = state.output_counts + slot * vocab_size
            tl.atomic_add(counts_ptr + sampled, 1, rank < count, sem="relaxed")


def accept(
    block: Tensor,
    sampled: Tensor,
    slots: Tensor,
    state: SlotState,
    *,
    synthetic_rates: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Compare drafts with samples, emit, and advance the slots: ``engine.step.accept, commit``.

    int64 ``block [B, W]`` (bonus and drafts), ``sampled [B, W]`` (the target's tokens after each)
    and ``slots [B]``; a slot may appear twice only if it emits nothing (the null slot, whose
    ``max_output`` is 0). Returns ``out [B, W + 2]`` (int64, or any integer type that is passed):
    W sampled tokens, of which the first ``count`` are emitted; ``count``; and flags: STOPPED if
    the last emitted is a stop token, EXHAUSTED if max_output allows no more. Either freezes the
    slot (``done``); a frozen slot emits 0 tokens, with no flags, and keeps its state.

    ``synthetic_rates [W - 1]`` (float32) replaces the comparison, for speed with random weights:
    draft k is accepted with probability ``synthetic_rates[k - 1]``, and then emitted.
    """
    requests, width = block.shape
    if out is None:
        out = torch.empty(requests, width + 2, dtype=torch.int64, device=block.device)
    for tensor in (block, sampled, slots, out, state.stop_ids):
        assert tensor.is_contiguous()
    num_stop_ids = state.stop_ids.shape[1]
    if requests:
        _accept_kernel[(requests,)](
            block,
            sampled,
            slots,
            state,
            synthetic_rates,
            out,
            0 if state.output_counts is None else state.output_counts.shape[1],
            WIDTH=width,
            NUM_STOP_IDS=num_stop_ids,
            WIDTH_BLOCK=triton.next_power_of_2(width),
            STOP_BLOCK=triton.next_power_of_2(num_stop_ids),
            num_warps=1,
        )
    return out
