"""The speculative contract: propose, verify, accept, commit — on tensors, without the host.

A greedy draft is a proposal that puts all its weight on one token, so accepting it exactly when the
target's own sample equals it is rejection sampling (arXiv 2211.17192) without its second draw. The
target's samples depend on (seed, position) only, so what a request emits does not depend on what
was drafted: drafts decide how many tokens a step emits, never which.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.noise import uniform
from engine.slots import SlotTable


@dataclass(frozen=True)
class Accepted:
    """What a step emits: the first ``count [B]`` of ``tokens [B, W]``. ``stopped [B]``: the last
    of them is a stop token; ``exhausted [B]``: it is the last that max_tokens allows."""

    tokens: Tensor
    count: Tensor
    stopped: Tensor
    exhausted: Tensor


def accept(
    block: Tensor,
    sampled: Tensor,
    slots: Tensor,
    table: SlotTable,
    synthetic_rates: Tensor | None = None,
) -> Accepted:
    """Compare the drafts of ``block [B, W]`` with the target's ``sampled [B, W]``.

    Row i of ``sampled`` is the target's token after block[:, : i + 1]. Drafts are accepted up to
    the first that differs; the target's own token there (or after the last draft) is emitted too.
    A stop token and max_tokens end the emission.

    ``synthetic_rates [W - 1]`` replaces the comparison, to measure speed with random weights: draft
    k is accepted with probability ``synthetic_rates[k - 1]``, and then it is what is emitted.
    """
    if synthetic_rates is None:
        accepted = (block[:, 1:] == sampled[:, :-1]).long().cumprod(1).sum(1)
    else:
        accepted = _synthetic_count(synthetic_rates, slots, table)
        sampled = _keep_drafts(block, sampled, accepted)
    count = accepted + 1
    is_stop = (sampled[:, :, None] == table.stop_ids[slots][:, None]).any(-1)
    width = sampled.shape[1]
    rank = torch.arange(width, device=sampled.device)
    first_stop = torch.where(is_stop, rank, width).amin(1)
    room = table.max_output[slots] - table.num_output[slots]
    count = torch.minimum(torch.minimum(count, first_stop + 1), room)
    return Accepted(sampled, count, first_stop < count, count == room)


def _synthetic_count(rates: Tensor, slots: Tensor, table: SlotTable) -> Tensor:
    """Drafts to accept ``[B]``: one draw, so that ``rates`` are the unconditional probabilities."""
    draw = uniform(table.seeds[slots], table.seq_len[slots])
    return (draw[:, None] < rates).sum(1)


def _keep_drafts(block: Tensor, sampled: Tensor, accepted: Tensor) -> Tensor:
    drafts = torch.cat([block[:, 1:], sampled[:, -1:]], dim=1)
    rank = torch.arange(sampled.shape[1], device=sampled.device)
    return torch.where(rank < accepted[:, None], drafts, sampled)


def commit(accepted: Accepted, slots: Tensor, table: SlotTable) -> None:
    """Advance the slots: the old bonus and the accepted drafts are committed now, and the last
    emitted token is the new bonus."""
    table.seq_len[slots] += accepted.count
    table.num_output[slots] += accepted.count
    table.bonus[slots] = accepted.tokens.gather(1, accepted.count[:, None] - 1).squeeze(1)
    emitted = emitted_mask(accepted)
    rows = slots[:, None].expand_as(emitted)
    table.output_counts.index_put_(
        (rows, accepted.tokens), emitted.to(table.output_counts.dtype), accumulate=True
    )


def emitted_mask(accepted: Accepted) -> Tensor:
    """Which rows of ``[B, W]`` were emitted; the same rows are committed."""
    rank = torch.arange(accepted.tokens.shape[1], device=accepted.tokens.device)
    return rank < accepted.count[:, None]
