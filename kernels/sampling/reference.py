"""Sampling in plain torch: sorts the vocabulary and copies the logits as float32."""

import torch
from torch import Tensor

from kernels.sampling.params import SlotParams

_MIN_TEMPERATURE = 1e-5
_MASK = 0xFFFFFFFF


def argmax(logits: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Index of the largest of ``logits [R, vocab]``, the lowest where it is not alone."""
    # torch promises no order among equals on a GPU.
    tokens = torch.arange(logits.shape[1], device=logits.device)
    largest = logits == logits.amax(-1, keepdim=True)
    result = torch.where(largest, tokens, logits.shape[1]).amin(-1)
    return result if out is None else out.copy_(result)


def sample(
    logits: Tensor, block: Tensor, slots: Tensor, params: SlotParams, *, out: Tensor | None = None
) -> Tensor:
    """One token per row, int64 ``[B, W]``. See ``kernels.sampling.triton.sample``."""
    params.check()
    scores = process(logits, block, slots, params)
    temperature = params.temperature[slots][:, None, None]
    random = temperature >= _MIN_TEMPERATURE
    scores = torch.where(random, scores / temperature, scores)
    if params.top_k is not None:
        floor = torch.where(random, _floor(scores, slots, params), -torch.inf)
        scores = scores.masked_fill(scores < floor, -torch.inf)
    scores = scores + torch.where(random, _noise(scores, slots, params), 0.0)
    tokens = argmax(scores.flatten(0, 1)).view(block.shape)
    return tokens if out is None else out.copy_(tokens)


def process(logits: Tensor, block: Tensor, slots: Tensor, params: SlotParams) -> Tensor:
    """float32 ``[B, W, vocab]`` after soft-cap, bias, min_tokens and penalties."""
    scores = logits.float().unflatten(0, block.shape)
    rank = torch.arange(block.shape[1], device=logits.device)
    if params.softcap is not None:
        scores = params.softcap * torch.tanh(scores / params.softcap)
    if params.logit_bias is not None and params.has_logit_bias is not None:
        biased = params.has_logit_bias[slots][:, None, None]
        scores = scores + torch.where(biased, params.logit_bias[slots][:, None], 0.0)
    if params.min_output is not None and params.stop_ids is not None:
        early = params.num_output[slots][:, None] + rank < params.min_output[slots][:, None]
        ids = params.stop_ids[slots][:, None].expand(-1, block.shape[1], -1)
        ban = torch.zeros_like(ids, dtype=scores.dtype)
        ban = ban.masked_fill(early[:, :, None] & (ids >= 0), -torch.inf)
        scores = scores.scatter_add(2, ids.clamp(min=0), ban)
    if params.repetition_penalty is not None:
        scores = _penalize(scores, block, slots, params)
    return scores


def _penalize(scores: Tensor, block: Tensor, slots: Tensor, params: SlotParams) -> Tensor:
    assert params.output_counts is not None
    assert params.in_prompt is not None
    width = block.shape[1]
    counts = params.output_counts[slots][:, None].repeat(1, width, 1)
    before = torch.ones(width, width, dtype=counts.dtype, device=block.device).tril()[:, 1:]
    drafts = block[:, None, 1:].expand(-1, width, -1)
    counts = counts.scatter_add(2, drafts, before.expand(len(block), -1, -1))
    emitted = counts > 0
    seen = emitted | params.in_prompt[slots][:, None]
    repetition, frequency, presence = (
        penalty[slots][:, None, None]
        for penalty in (
            params.repetition_penalty, params.frequency_penalty, params.presence_penalty
        )
        if penalty is not None
    )  # fmt: skip
    scaled = torch.where(scores > 0, scores / repetition, scores * repetition)
    return torch.where(seen, scaled, scores) - frequency * counts - presence * emitted


def _floor(scores: Tensor, slots: Tensor, params: SlotParams) -> Tensor:
    """The smallest logit that min_p, then top_k, then top_p keep: ``[B, W, 1]``."""
    assert params.top_k is not None
    assert params.top_p is not None
    assert params.min_p is not None
    vocab_size = scores.shape[-1]
    min_p_floor = scores.amax(-1, keepdim=True) + params.min_p[slots].log()[:, None, None]
    scores = scores.masked_fill(scores < min_p_floor, -torch.inf)
    ordered = scores.sort(-1, descending=True).values
    top_k = params.top_k[slots]
    keep_k = torch.where(top_k > 0, top_k.clamp(max=vocab_size), vocab_size)[:, None, None]
    rank = torch.arange(vocab_size, device=scores.device)
    probabilities = ordered.masked_fill(rank >= keep_k, -torch.inf).softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    top_p = params.top_p[slots]
    limit = torch.where(top_p < 1, top_p, torch.inf)[:, None, None]
    last = ((before < limit) & (rank < keep_k)).sum(-1, keepdim=True).clamp(min=1) - 1
    return torch.maximum(ordered.gather(-1, last), min_p_floor)


def _noise(scores: Tensor, slots: Tensor, params: SlotParams) -> Tensor:
    width = scores.shape[1]
    offsets = torch.arange(1, width + 1, device=scores.device)
    positions = (params.seq_len[slots][:, None] + offsets).flatten()
    seeds = params.seeds[slots].repeat_interleave(width)
    return gumbel(seeds, positions, scores.shape[-1]).view_as(scores)


def gumbel(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """float32 ``[R, vocab_size]`` for int64 ``seeds`` and ``positions [R]``: ``engine.noise``."""
    numbers = _uniform(seeds, positions, -(-vocab_size // 4))[:, :vocab_size]
    return -torch.log(-torch.log1p(-numbers))


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """One float32 in (0, 1) for each of ``seeds`` and ``positions [R]``."""
    return _uniform(seeds, positions, 1)[:, 0]


def _uniform(seeds: Tensor, positions: Tensor, groups: int) -> Tensor:
    """``[R, 4 * groups]`` by pcg4d (JCGT 9:3, 2020) of (group, position, the seed's two words), in
    int64 because torch has no uint32 arithmetic."""
    x = torch.arange(groups, device=seeds.device).expand(len(seeds), -1)
    y, z, w = ((v & _MASK)[:, None] for v in (positions, seeds, seeds >> 32))
    x, y, z, w = ((v * 1664525 + 1013904223) & _MASK for v in (x, y, z, w))
    x, y, z, w = _mix(x, y, z, w)
    x, y, z, w = (v ^ (v >> 16) for v in (x, y, z, w))
    bits = torch.stack(_mix(x, y, z, w), dim=-1).flatten(1)
    return (bits.clamp(max=2**32 - 256).float() + 0.5) * 2.0**-32


def _mix(x: Tensor, y: Tensor, z: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x = (x + y * w) & _MASK
    y = (y + z * x) & _MASK
    z = (z + x * y) & _MASK
    w = (w + y * z) & _MASK
    return x, y, z, w
