"""Acceptance and commit in plain torch."""

import torch
from torch import Tensor

from kernels.accept.state import EXHAUSTED, STOPPED, SlotState
from kernels.sampling.reference import uniform


def accept(
    block: Tensor,
    sampled: Tensor,
    slots: Tensor,
    state: SlotState,
    *,
    synthetic_rates: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """What a step emits, ``[B, W + 2]``, and advance the slots.

    See ``kernels.accept.triton.accept``.
    """
    width = block.shape[1]
    rank = torch.arange(width, device=block.device)
    if synthetic_rates is None:
        accepted = (block[:, 1:] == sampled[:, :-1]).long().cumprod(1).sum(1)
    else:
        assert state.seeds is not None
        draw = uniform(state.seeds[slots], state.seq_len[slots])
        accepted = (draw[:, None] < synthetic_rates).sum(1)
        drafts = torch.cat([block[:, 1:], sampled[:, -1:]], dim=1)
        sampled = torch.where(rank < accepted[:, None], drafts, sampled)
    is_stop = (sampled[:, :, None] == state.stop_ids[slots][:, None]).any(-1)
    first_stop = torch.where(is_stop, rank, width).amin(1)
    room = (state.max_output[slots] - state.num_output[slots]).clamp(min=0)
    room = torch.where(state.done[slots], 0, room)
    count = torch.minimum(torch.minimum(accepted, first_stop) + 1, room)
    stopped = first_stop < count
    exhausted = (count == room) & (count > 0)
    _commit(sampled, count, stopped | exhausted, slots, state)
    flags = STOPPED * stopped.long() + EXHAUSTED * exhausted.long()
    result = torch.cat([sampled, count[:, None], flags[:, None]], dim=1)
    return result if out is None else out.copy_(result)


def _commit(sampled: Tensor, count: Tensor, ended: Tensor, slots: Tensor, state: SlotState) -> None:
    """Slots that emit nothing (frozen, or the null slot, even many times) stay as they are."""
    moves = count > 0
    sampled, count, slots = sampled[moves], count[moves], slots[moves]
    state.seq_len[slots] += count
    state.num_output[slots] += count
    state.bonus[slots] = sampled.gather(1, count[:, None] - 1).squeeze(1)
    state.done[slots] |= ended[moves]
    if state.output_counts is not None:
        emitted = torch.arange(sampled.shape[1], device=sampled.device) < count[:, None]
        rows = slots[:, None].expand_as(emitted)
        ones = emitted.to(state.output_counts.dtype)
        state.output_counts.index_put_((rows, sampled), ones, accumulate=True)
