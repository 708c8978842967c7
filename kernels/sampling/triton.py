"""From logits to tokens without sorting the vocabulary and without a float32 copy of it.

A vocabulary is cut into chunks, and consecutive chunks into as many splits as fill the GPU when
there are few rows. No result depends on the number of splits, so that a request samples the same
tokens in any batch: maxima and counts are exact, and probabilities are summed as integers.

- *Greedy* rows and rows that draw from the whole vocabulary need one pass: ``_scan_kernel`` takes
  the maximum of the logits, or of logits / temperature + noise, per split; ``_pick_kernel`` takes
  the maximum of these.
- Rows with top_k, top_p or min_p take the row's maximum from that pass. ``_histogram_kernel``
  counts tokens by their distance from it in bins of a quarter nat, which bounds the cutoff from
  below. ``_gather_kernel`` collects the tokens above that bound, as a rule a few hundred.
  ``_draw_kernel`` finds the exact cutoffs among them by bisection over the bits of the logit, and
  draws. A distribution too flat for the candidate list is bisected over the logits themselves:
  slow, but exact.
"""

# mypy: disable-error-code="import-untyped,untyped-decorator,no-untyped-def"

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.sampling.logits import processed_logits
from kernels.sampling.noise import gumbel_of_range, gumbel_of_tokens
from kernels.sampling.params import SlotParams

# Tokens per iteration; enough programs for 8 on each of 132 multiprocessors.
_BLOCK = 4096
_PROGRAMS = 1056
# Candidates that a row may keep, and how many of them one iteration of the bisection takes.
_CAPACITY = 8192
_DRAW_BLOCK = 2048

_MIN_TEMPERATURE = tl.constexpr(1e-5)
_BINS = tl.constexpr(128)
_BINS_PER_NAT = tl.constexpr(4.0)
# Probabilities relative to the largest are integers in units of 2**-40: 2**18 of them cannot
# overflow, and what rounds to nothing sums to less than float32 resolves.
_MASS_OF_ONE = tl.constexpr(2.0**40)
_LOG2_E = tl.constexpr(1.4426950408889634)


class _Partials(NamedTuple):
    """Best score and its token per row and split, ``[R, splits]``."""

    score: Any
    token: Any


class _Candidates(NamedTuple):
    """``histogram [R, splits, bins]`` and ``mass [R, splits]`` of what min_p keeps;
    ``logit`` and ``token [R, capacity]`` of tokens that may survive all cutoffs, ``count [R]``
    of them; more than the capacity: none is stored."""

    histogram: Any
    mass: Any
    logit: Any
    token: Any
    count: Any


class _Batch(NamedTuple):
    """``logits [R, vocab]`` with their row stride, ``block [B, W]``, ``slots [B]``, R = B * W."""

    logits: Any
    stride: Any
    block: Any
    slots: Any
    vocab_size: Any


@triton.jit
def _best(score, token):
    """The largest score and the lowest token that has it."""
    top = tl.max(score)
    return top, tl.min(tl.where(score == top, token, 0x7FFFFFFF))


@triton.jit
def _best_partial(partials, row, splits, SPLITS_BLOCK: tl.constexpr):
    split = tl.arange(0, SPLITS_BLOCK)
    inside = split < splits
    score = tl.load(partials.score + row * splits + split, inside, -float("inf"))
    token = tl.load(partials.token + row * splits + split, inside, 0x7FFFFFFF)
    return _best(score, token)


@triton.jit
def _has_cutoff(state, slot):
    """Whether the slot draws from less than the whole vocabulary."""
    cuts = (tl.load(state.top_k + slot) > 0) | (tl.load(state.top_p + slot) < 1.0)
    cuts = cuts | (tl.load(state.min_p + slot) > 0.0)
    return cuts & (tl.load(state.temperature + slot) >= _MIN_TEMPERATURE)


@triton.jit
def _chunk(batch, width, row, first, slot, state, BLOCK: tl.constexpr,
           NUM_STOP_IDS: tl.constexpr):  # fmt: skip
    """Tokens from ``first`` on and their processed logits."""
    tokens = first + tl.arange(0, BLOCK)
    logits = processed_logits(
        batch.logits + row * batch.stride, tokens, batch.vocab_size,
        batch.block + row // width * width, row % width, slot, state, NUM_STOP_IDS,
    )  # fmt: skip
    return tokens, logits


@triton.jit(do_not_specialize=["chunks", "splits"])
def _argmax_kernel(
    logits_ptr, stride, vocab_size, partials, chunks, splits, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    tokens = split * chunks * BLOCK + tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), -float("inf"), tl.float32)
    best_token = tokens
    for _ in range(chunks):
        logits = tl.load(logits_ptr + row * stride + tokens, tokens < vocab_size, -float("inf"))
        better = logits.to(tl.float32) > best
        best = tl.where(better, logits.to(tl.float32), best)
        best_token = tl.where(better, tokens, best_token)
        tokens += BLOCK
    score, token = _best(best, best_token)
    tl.store(partials.score + row * splits + split, score)
    tl.store(partials.token + row * splits + split, token)


@triton.jit(do_not_specialize=["width", "chunks", "splits"])
def _scan_kernel(
    batch,
    width,
    state,
    partials,
    chunks,
    splits,
    NUM_STOP_IDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Per split, the best of the logits, or of the noisy logits where all tokens may be drawn."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    slot = tl.load(batch.slots + row // width)
    temperature = tl.load(state.temperature + slot)
    noisy = temperature >= _MIN_TEMPERATURE
    if state.top_k is not None:
        noisy = noisy & (_has_cutoff(state, slot) == 0)
    seed = tl.load(state.seeds + slot)
    position = tl.load(state.seq_len + slot) + 1 + row % width
    best = tl.full((BLOCK,), -float("inf"), tl.float32)
    first = split * chunks * BLOCK
    best_token = first + tl.arange(0, BLOCK)
    for _ in range(chunks):
        tokens, score = _chunk(batch, width, row, first, slot, state, BLOCK, NUM_STOP_IDS)
        if noisy:
            noise = gumbel_of_range(seed, position, first // 4, BLOCK // 4)
            score = tl.math.div_rn(score, temperature) + noise
        better = score > best
        best = tl.where(better, score, best)
        best_token = tl.where(better, tokens, best_token)
        first += BLOCK
    score, token = _best(best, best_token)
    tl.store(partials.score + row * splits + split, score)
    tl.store(partials.token + row * splits + split, token)


@triton.jit(do_not_specialize=["splits"])
def _pick_kernel(partials, out_ptr, splits, SPLITS_BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    _, token = _best_partial(partials, row, splits, SPLITS_BLOCK)
    tl.store(out_ptr + row, token.to(tl.int64))


@triton.jit
def _min_p_floor(state, slot, top):
    """The smallest logit that min_p keeps; log 0 = -inf keeps everything."""
    min_p = tl.load(state.min_p + slot)
    temperature = tl.load(state.temperature + slot)
    log_min_p = tl.log(tl.where(min_p > 0.0, min_p, 1.0))
    return tl.where(min_p > 0.0, top + temperature * log_min_p, -float("inf"))


@triton.jit
def _bins(logits, top, temperature):
    """Distance from the maximum in bins; the last takes all that is farther, and NaN."""
    distance = (top - logits) / temperature * _BINS_PER_NAT
    return tl.where(distance < _BINS - 1, distance, _BINS - 1).to(tl.int32)


@triton.jit
def _mass(logits, top, temperature):
    """Probability relative to the maximum's, as int64."""
    return (tl.exp2((logits - top) * (_LOG2_E / temperature)) * _MASS_OF_ONE).to(tl.int64)


@triton.jit(do_not_specialize=["width", "chunks", "splits"])
def _histogram_kernel(
    batch,
    width,
    state,
    partials,
    candidates,
    chunks,
    splits,
    NUM_STOP_IDS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS_BLOCK: tl.constexpr,
):
    """Count each split's tokens that min_p keeps by their distance from the maximum."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    slot = tl.load(batch.slots + row // width)
    if _has_cutoff(state, slot):
        top, _ = _best_partial(partials, row, splits, SPLITS_BLOCK)
        temperature = tl.load(state.temperature + slot)
        floor = _min_p_floor(state, slot, top)
        counts = tl.zeros((_BINS,), tl.int32)
        first = split * chunks * BLOCK
        for _ in range(chunks):
            tokens, logits = _chunk(batch, width, row, first, slot, state, BLOCK, NUM_STOP_IDS)
            kept = (tokens < batch.vocab_size) & (logits >= floor)
            counts += tl.histogram(_bins(logits, top, temperature), _BINS, kept)
            first += BLOCK
        target = candidates.histogram + (row * splits + split) * _BINS
        tl.store(target + tl.arange(0, _BINS), counts)


@triton.jit
def _last_bin(histogram, top_k, top_p):
    """The last bin whose tokens may survive top_k and top_p, given ``histogram [bins]``."""
    bins = tl.arange(0, _BINS)
    counts = histogram.to(tl.float32)
    upper = counts * tl.exp(-bins.to(tl.float32) / _BINS_PER_NAT)
    lower = tl.where(bins < _BINS - 1, upper * 0.7788, 0.0)
    tail = tl.sum(upper) - tl.cumsum(upper)
    # top_p is reached in a bin after which no more than 1 - top_p of the mass can be left. The
    # factor covers the rounding of this estimate.
    enough_mass = tail + tl.sum(upper) * 1e-5 <= (1.0 - top_p) * tl.sum(lower)
    # With top_k, top_p is a part of the mass of the k tokens, so all k must be there.
    enough_tokens = tl.cumsum(histogram) >= top_k
    enough = ((top_k > 0) & enough_tokens) | ((top_k <= 0) & (top_p < 1.0) & enough_mass)
    return tl.min(tl.where(enough, bins, _BINS - 1))


@triton.jit(do_not_specialize=["width", "chunks", "splits"])
def _gather_kernel(
    batch,
    width,
    state,
    partials,
    candidates,
    chunks,
    splits,
    NUM_STOP_IDS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS_BLOCK: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """Store the tokens that may survive, in their order, and the mass of what min_p keeps."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    slot = tl.load(batch.slots + row // width)
    if _has_cutoff(state, slot):
        top, _ = _best_partial(partials, row, splits, SPLITS_BLOCK)
        temperature = tl.load(state.temperature + slot)
        floor = _min_p_floor(state, slot, top)
        top_k = tl.load(state.top_k + slot)
        top_p = tl.load(state.top_p + slot)

        bins = tl.arange(0, _BINS)
        split_index = tl.arange(0, SPLITS_BLOCK)
        histogram = tl.load(
            candidates.histogram + (row * splits + split_index[:, None]) * _BINS + bins[None, :],
            (split_index < splits)[:, None], 0,
        )  # fmt: skip
        last_bin = _last_bin(tl.sum(histogram, 0), top_k, top_p)
        histogram = tl.where(bins[None, :] <= last_bin, histogram, 0)
        counts = tl.sum(histogram, 1)
        count = tl.sum(counts)
        offset = tl.sum(tl.where(split_index < split, counts, 0))
        if split == 0:
            tl.store(candidates.count + row, count)

        mass = tl.zeros((BLOCK,), tl.int64)
        first = split * chunks * BLOCK
        for _ in range(chunks):
            tokens, logits = _chunk(batch, width, row, first, slot, state, BLOCK, NUM_STOP_IDS)
            kept = (tokens < batch.vocab_size) & (logits >= floor)
            mass += tl.where(kept, _mass(logits, top, temperature), 0)
            kept = kept & (_bins(logits, top, temperature) <= last_bin)
            found = tl.sum(kept.to(tl.int32))
            if (found > 0) & (count <= CAPACITY):
                place = row * CAPACITY + offset + tl.cumsum(kept.to(tl.int32)) - 1
                tl.store(candidates.logit + place, logits, kept)
                tl.store(candidates.token + place, tokens, kept)
                offset += found
            first += BLOCK
        tl.store(candidates.mass + row * splits + split, tl.sum(mass))


class _Entries(NamedTuple):
    """What there is to search for one row: ``length`` candidates, if ``count`` of them fit, or else
    the whole vocabulary. ``floor`` is min_p's; ``top`` the largest logit."""

    batch: Any
    width: Any
    state: Any
    candidates: Any
    row: Any
    slot: Any
    count: Any
    length: Any
    floor: Any
    top: Any
    temperature: Any


@triton.jit
def _listed(entries, first, NUM_STOP_IDS: tl.constexpr, BLOCK: tl.constexpr,
            CAPACITY: tl.constexpr):  # fmt: skip
    """Tokens, logits and whether they count, for the entries from ``first`` on."""
    kept = first + tl.arange(0, BLOCK) < entries.length
    if entries.count <= CAPACITY:
        place = entries.row * CAPACITY + first + tl.arange(0, BLOCK)
        logits = tl.load(entries.candidates.logit + place, kept, -float("inf"))
        tokens = tl.load(entries.candidates.token + place, kept, 0)
    else:
        tokens, logits = _chunk(
            entries.batch, entries.width, entries.row, first, entries.slot, entries.state,
            BLOCK, NUM_STOP_IDS,
        )  # fmt: skip
        kept = kept & (logits >= entries.floor)
    return tokens, logits, kept


@triton.jit
def _keys(logits):
    """int64 in [0, 2**32) that is ordered as the float32 ``logits`` are."""
    # Adding 0 turns -0 into 0, which has the same value and must have the same key.
    bits = (logits + 0.0).to(tl.int32, bitcast=True).to(tl.int64)
    return tl.where(bits >= 0, bits + 0x80000000, -1 - bits)


@triton.jit
def _sum_from(entries, key, WEIGH: tl.constexpr, NUM_STOP_IDS: tl.constexpr, BLOCK: tl.constexpr,
              CAPACITY: tl.constexpr):  # fmt: skip
    """Number, or with WEIGH mass, of the listed tokens whose key is at least ``key``: int64."""
    total = tl.zeros((BLOCK,), tl.int64)
    for first in range(0, entries.length, BLOCK):
        _, logits, kept = _listed(entries, first, NUM_STOP_IDS, BLOCK, CAPACITY)
        kept = kept & (_keys(logits) >= key)
        if WEIGH:
            total += tl.where(kept, _mass(logits, entries.top, entries.temperature), 0)
        else:
            total += kept.to(tl.int64)
    return tl.sum(total)


@triton.jit
def _smallest_key(entries, NUM_STOP_IDS: tl.constexpr, BLOCK: tl.constexpr,
                  CAPACITY: tl.constexpr):  # fmt: skip
    keys = tl.full((BLOCK,), 0xFFFFFFFF, tl.int64)
    for first in range(0, entries.length, BLOCK):
        _, logits, kept = _listed(entries, first, NUM_STOP_IDS, BLOCK, CAPACITY)
        keys = tl.minimum(keys, tl.where(kept, _keys(logits), 0xFFFFFFFF))
    return tl.min(keys)


@triton.jit
def _largest_key(entries, wanted, smallest, largest, WEIGH: tl.constexpr, LOW_BIT: tl.constexpr,
                 NUM_STOP_IDS: tl.constexpr, BLOCK: tl.constexpr,
                 CAPACITY: tl.constexpr):  # fmt: skip
    """The largest key from which on the listed tokens number (weigh) at least ``wanted``.

    That is the smallest key that stays: with one more, the tokens above are not enough. All
    together must be enough. ``smallest`` and ``largest``: the range of the keys.
    """
    key = tl.full((), 0, tl.int64)
    step = tl.full((), 0x80000000, tl.int64)
    for _ in range(32 - LOW_BIT):
        # The keys of most candidates agree in the high bits, which then need no counting.
        if (smallest ^ largest) >= step:
            total = _sum_from(entries, key + step, WEIGH, NUM_STOP_IDS, BLOCK, CAPACITY)
            key = tl.where(total.to(tl.float64) >= wanted, key + step, key)
        else:
            key += smallest & step
        step = step // 2
    return key


@triton.jit
def _mass_of_top_k(entries, top_k, cutoff, LOW_BIT: tl.constexpr, NUM_STOP_IDS: tl.constexpr,
                   BLOCK: tl.constexpr, CAPACITY: tl.constexpr):  # fmt: skip
    """Of equal tokens at the ``cutoff`` of top_k, only as many as there is room for."""
    above = cutoff + (1 << LOW_BIT)
    number_above = _sum_from(entries, above, False, NUM_STOP_IDS, BLOCK, CAPACITY)
    mass_above = _sum_from(entries, above, True, NUM_STOP_IDS, BLOCK, CAPACITY)
    number = _sum_from(entries, cutoff, False, NUM_STOP_IDS, BLOCK, CAPACITY)
    mass = _sum_from(entries, cutoff, True, NUM_STOP_IDS, BLOCK, CAPACITY)
    mass_each = (mass - mass_above) // (number - number_above)
    return mass_above + (top_k - number_above) * mass_each


@triton.jit
def _drawn(entries, cutoff, seed, position, NUM_STOP_IDS: tl.constexpr, BLOCK: tl.constexpr,
           CAPACITY: tl.constexpr):  # fmt: skip
    """The listed token with the largest noisy logit, among keys from ``cutoff`` on."""
    best = tl.full((BLOCK,), -float("inf"), tl.float32)
    best_token = tl.full((BLOCK,), 0x7FFFFFFF, tl.int32)
    for first in range(0, entries.length, BLOCK):
        tokens, logits, kept = _listed(entries, first, NUM_STOP_IDS, BLOCK, CAPACITY)
        noise = gumbel_of_tokens(seed, position, tokens)
        score = tl.math.div_rn(logits, entries.temperature) + noise
        better = kept & (_keys(logits) >= cutoff) & (score > best)
        best = tl.where(better, score, best)
        best_token = tl.where(better, tokens, best_token)
    _, token = _best(best, best_token)
    return token


@triton.jit(do_not_specialize=["width", "splits"])
def _draw_kernel(
    batch,
    width,
    state,
    partials,
    candidates,
    out_ptr,
    splits,
    NUM_STOP_IDS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS_BLOCK: tl.constexpr,
    CAPACITY: tl.constexpr,
    LOW_BIT: tl.constexpr,
):
    """One program per row. LOW_BIT: how many low bits of a key tell nothing, because the logits
    came from a narrower type; keys that agree above it are equal."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(batch.slots + row // width)
    top, token = _best_partial(partials, row, splits, SPLITS_BLOCK)
    if _has_cutoff(state, slot):
        temperature = tl.load(state.temperature + slot)
        floor = _min_p_floor(state, slot, top)
        count = tl.load(candidates.count + row)
        length = tl.where(count <= CAPACITY, count, batch.vocab_size)
        entries = _Entries(
            batch, width, state, candidates, row, slot, count, length, floor, top, temperature
        )  # fmt: skip
        top_k = tl.load(state.top_k + slot)
        top_p = tl.load(state.top_p + slot).to(tl.float64)
        smallest = _smallest_key(entries, NUM_STOP_IDS, BLOCK, CAPACITY)
        largest = _keys(top)
        cutoff = tl.full((), 0, tl.int64)
        if top_k > 0:  # noqa: SIM102
            # Fewer can only be listed if there are no more: then top_k cuts nothing.
            if top_k <= _sum_from(entries, cutoff, False, NUM_STOP_IDS, BLOCK, CAPACITY):
                cutoff = _largest_key(
                    entries, top_k.to(tl.float64), smallest, largest,
                    False, LOW_BIT, NUM_STOP_IDS, BLOCK, CAPACITY,
                )  # fmt: skip
        if top_p < 1.0:
            split = tl.arange(0, SPLITS_BLOCK)
            mass = tl.sum(tl.load(candidates.mass + row * splits + split, split < splits, 0))
            if cutoff > 0:
                mass = _mass_of_top_k(
                    entries, top_k, cutoff, LOW_BIT, NUM_STOP_IDS, BLOCK, CAPACITY
                )
            # At least 1: whatever top_p is, the most likely token stays.
            wanted = tl.maximum(top_p * mass.to(tl.float64), 1.0)
            top_p_cutoff = _largest_key(
                entries, wanted, smallest, largest,
                True, LOW_BIT, NUM_STOP_IDS, BLOCK, CAPACITY,
            )  # fmt: skip
            cutoff = tl.maximum(cutoff, top_p_cutoff)
        seed = tl.load(state.seeds + slot)
        position = tl.load(state.seq_len + slot) + 1 + row % width
        drawn = _drawn(entries, cutoff, seed, position, NUM_STOP_IDS, BLOCK, CAPACITY)
        # Nothing to draw from (all logits -inf): the argmax is at least a token.
        token = tl.where(drawn < batch.vocab_size, drawn, token)
    tl.store(out_ptr + row, token.to(tl.int64))


def argmax(logits: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Index of the largest of ``logits [R, vocab]``, the lowest where it is not alone.

    int64 ``[R]``. Rows may be strided. NaN is never the largest.
    """
    rows, vocab_size = logits.shape
    assert logits.stride(1) == 1
    if out is None:
        out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows:
        chunks, splits = _split(rows, vocab_size)
        partials = _empty_partials(rows, splits, logits.device)
        _argmax_kernel[(rows, splits)](
            logits, logits.stride(0), vocab_size, partials, chunks, splits,
            BLOCK=_BLOCK, num_warps=8,
        )  # fmt: skip
        _pick(partials, out, splits, vocab_size)
    return out


def sample(
    logits: Tensor, block: Tensor, slots: Tensor, params: SlotParams, *, out: Tensor | None = None
) -> Tensor:
    """One token per row, int64 ``[B, W]``: ``engine.sampling.sample``, decided on the device.

    ``logits [B * W, vocab]`` (bfloat16, float16 or float32, rows may be strided); ``block [B, W]``
    holds the tokens that they were computed from; ``slots [B]``. Row i of a block samples the token
    at position ``seq_len + 1 + i``, with the drafts before it counted as emitted.
    """
    rows, vocab_size = logits.shape
    width = block.shape[1]
    params.check()
    assert logits.stride(1) == 1
    assert block.is_contiguous()
    assert slots.is_contiguous()
    assert rows == block.numel() == len(slots) * width
    if out is None:
        out = torch.empty(block.shape, dtype=torch.int64, device=logits.device)
    if rows == 0:
        return out
    chunks, splits = _split(rows, vocab_size)
    batch = _Batch(logits, logits.stride(0), block, slots, vocab_size)
    partials = _empty_partials(rows, splits, logits.device)
    stop_ids = params.stop_ids
    constants = {"NUM_STOP_IDS": 0 if stop_ids is None else stop_ids.shape[1]}
    grid = (rows, splits)
    _scan_kernel[grid](
        batch, width, params, partials, chunks, splits, **constants, BLOCK=_BLOCK, num_warps=8
    )
    if params.top_k is None:
        _pick(partials, out, splits, vocab_size)
        return out
    candidates = _empty_candidates(rows, splits, logits.device)
    constants["SPLITS_BLOCK"] = _splits_block(vocab_size)
    _histogram_kernel[grid](
        batch, width, params, partials, candidates, chunks, splits,
        **constants, BLOCK=_BLOCK, num_warps=8,
    )  # fmt: skip
    _gather_kernel[grid](
        batch, width, params, partials, candidates, chunks, splits,
        **constants, BLOCK=_BLOCK, CAPACITY=_CAPACITY, num_warps=8,
    )  # fmt: skip
    _draw_kernel[(rows,)](
        batch, width, params, partials, candidates, out, splits,
        **constants, BLOCK=_DRAW_BLOCK, CAPACITY=_CAPACITY, LOW_BIT=_low_bit(logits.dtype, params),
        num_warps=8,
    )  # fmt: skip
    return out


def _split(rows: int, vocab_size: int) -> tuple[int, int]:
    """Chunks per split and splits per row."""
    chunks = triton.cdiv(vocab_size, _BLOCK)
    chunks_per_split = triton.cdiv(chunks, triton.cdiv(_PROGRAMS, rows))
    return chunks_per_split, triton.cdiv(chunks, chunks_per_split)


def _low_bit(dtype: torch.dtype, params: SlotParams) -> int:
    """How many low bits are the same in all keys of one sign: float32 keeps 23 of the fraction."""
    if params.changes_logits:
        return 0
    # A subnormal float16 uses up to 10 bits of the fraction too, so 13 hold for all of them.
    return {torch.bfloat16: 16, torch.float16: 13}.get(dtype, 0)


def _splits_block(vocab_size: int) -> int:
    """Room for the most splits there can be: one compiled kernel serves any number of rows."""
    return triton.next_power_of_2(triton.cdiv(vocab_size, _BLOCK))


def _pick(partials: _Partials, out: Tensor, splits: int, vocab_size: int) -> None:
    _pick_kernel[(out.numel(),)](
        partials, out, splits, SPLITS_BLOCK=_splits_block(vocab_size), num_warps=1
    )


def _empty_partials(rows: int, splits: int, device: torch.device) -> _Partials:
    score = torch.empty(rows, splits, dtype=torch.float32, device=device)
    return _Partials(score, torch.empty(rows, splits, dtype=torch.int32, device=device))


def _empty_candidates(rows: int, splits: int, device: torch.device) -> _Candidates:
    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(rows, *shape, dtype=dtype, device=device)

    return _Candidates(
        histogram=empty(splits, int(_BINS.value)),
        mass=empty(splits, dtype=torch.int64),
        logit=empty(_CAPACITY, dtype=torch.float32),
        token=empty(_CAPACITY),
        count=empty(),
    )
