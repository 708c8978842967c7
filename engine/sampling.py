"""From logits to tokens, for all rows of a batch of draft blocks at once.

The one place where sampling parameters act. Row i of a request's block is sampled as if the drafts
before it were the sequence: if they are all accepted they are, and if not the row is thrown away.
So a request gets the tokens that it would get one at a time.

Order, as in vLLM: logit_bias, min_tokens, penalties; then the argmax if temperature is 0 (or below
1e-5, where a division could overflow); else temperature, min_p, top_k, top_p and a draw.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from engine.messages import SamplingParams
from engine.noise import gumbel
from engine.slots import SlotTable, has_penalties

_MIN_TEMPERATURE = 1e-5


class SamplingRows:
    """Which requests of a batch need which treatment; decided on the host, without a device read.

    ``slots``: the slot of each request, on the host and as ``index [B]`` on the device.
    """

    def __init__(self, slots: list[int], table: SlotTable) -> None:
        self.table = table
        self.index = torch.tensor(slots, dtype=torch.int64, device=table.device)
        self._params = [table.params[slot] for slot in slots]

    def where(self, needs: Callable[[SamplingParams], bool]) -> Tensor | None:
        """Indices into the batch of the requests for which ``needs``, or None if there is none."""
        rows = [i for i, params in enumerate(self._params) if params is not None and needs(params)]
        return torch.tensor(rows, device=self.table.device) if rows else None


def sample(logits: Tensor, block: Tensor, rows: SamplingRows) -> Tensor:
    """One token per row: ``logits [B, W, vocab]`` to int64 ``[B, W]``.

    ``block [B, W]`` holds the tokens that the logits' rows were computed from: the last known
    token and the drafts after it.
    """
    logits = logits.float()
    for needs, apply in _LOGIT_PROCESSORS:
        chosen = rows.where(needs)
        if chosen is not None:
            changed = apply(logits[chosen], block[chosen], rows.index[chosen], rows.table)
            logits = logits.index_copy(0, chosen, changed)
    tokens = logits.argmax(-1)
    random = rows.where(_draws)
    if random is not None:
        drawn = _draw(logits[random], rows, random)
        tokens = tokens.index_copy(0, random, drawn)
    return tokens


def _add_bias(logits: Tensor, _block: Tensor, slots: Tensor, table: SlotTable) -> Tensor:
    return logits + table.logit_bias[slots][:, None]


def _forbid_stop(logits: Tensor, block: Tensor, slots: Tensor, table: SlotTable) -> Tensor:
    """min_tokens: no stop token before its time."""
    ids = table.stop_ids[slots][:, None].expand(-1, block.shape[1], -1)
    emitted = table.num_output[slots][:, None] + torch.arange(block.shape[1], device=logits.device)
    too_early = (emitted < table.min_output[slots][:, None])[:, :, None] & (ids >= 0)
    ban = torch.zeros_like(ids, dtype=logits.dtype).masked_fill(too_early, -torch.inf)
    return logits.scatter_add(2, ids.clamp(min=0), ban)


def _penalize(logits: Tensor, block: Tensor, slots: Tensor, table: SlotTable) -> Tensor:
    """Repetition, frequency and presence penalties, as vLLM defines them."""
    counts = _counts_before(block, table.output_counts[slots])
    emitted = counts > 0
    seen = emitted | table.in_prompt[slots][:, None]
    factor = table.repetition_penalty[slots][:, None, None]
    scaled = torch.where(logits > 0, logits / factor, logits * factor)
    logits = torch.where(seen, scaled, logits)
    logits = logits - table.frequency_penalty[slots][:, None, None] * counts
    return logits - table.presence_penalty[slots][:, None, None] * emitted


def _counts_before(block: Tensor, counts: Tensor) -> Tensor:
    """How often each token was emitted before each row: ``[R, W, vocab]``.

    ``counts [R, vocab]`` has everything that was emitted, the bonus included; row i adds the
    drafts 1 … i.
    """
    width = block.shape[1]
    drafts = block[:, None, 1:].expand(-1, width, -1)
    before = torch.ones(width, width, dtype=counts.dtype, device=block.device).tril()[:, 1:]
    counts = counts[:, None].repeat(1, width, 1)
    return counts.scatter_add(2, drafts, before.expand(len(block), -1, -1))


_LOGIT_PROCESSORS: list[
    tuple[Callable[[SamplingParams], bool], Callable[[Tensor, Tensor, Tensor, SlotTable], Tensor]]
] = [
    (lambda params: bool(params.logit_bias), _add_bias),
    (lambda params: params.min_tokens > 0, _forbid_stop),
    (has_penalties, _penalize),
]


def _draws(params: SamplingParams) -> bool:
    return params.temperature >= _MIN_TEMPERATURE


def _draw(logits: Tensor, rows: SamplingRows, chosen: Tensor) -> Tensor:
    """Draw from softmax(logits / temperature), cut off: ``[R, W, vocab]`` to ``[R, W]``."""
    table, slots = rows.table, rows.index[chosen]
    width, vocab_size = logits.shape[1:]
    logits = logits / table.temperature[slots][:, None, None]
    logits = _cut_off(logits, rows, chosen)
    # Row i's token will stand at position seq_len + 1 + i.
    offsets = torch.arange(1, width + 1, device=logits.device)
    positions = (table.seq_len[slots][:, None] + offsets).flatten()
    seeds = table.seeds[slots].repeat_interleave(width)
    return (logits + gumbel(seeds, positions, vocab_size).view_as(logits)).argmax(-1)


def _cut_off(logits: Tensor, rows: SamplingRows, chosen: Tensor) -> Tensor:
    """min_p, then top_k, then top_p: everything that they drop becomes -inf."""
    table, slots = rows.table, rows.index[chosen]
    if rows.where(lambda p: _draws(p) and p.min_p > 0) is not None:
        # p >= min_p * p_max, in logarithms; log 0 = -inf keeps everything.
        floor = logits.amax(-1, keepdim=True) + table.min_p[slots].log()[:, None, None]
        logits = logits.masked_fill(logits < floor, -torch.inf)
    if rows.where(lambda p: _draws(p) and (p.top_k > 0 or p.top_p < 1)) is not None:
        floor = _top_k_top_p_floor(logits, table.top_k[slots], table.top_p[slots])
        logits = logits.masked_fill(logits < floor, -torch.inf)
    return logits


def _top_k_top_p_floor(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """The smallest logit that stays in each row: ``[R, W, 1]`` for ``top_k`` and ``top_p [R]``.

    top_p keeps the fewest most likely tokens whose probabilities (after top_k) sum to at least it.
    """
    ordered = logits.sort(-1, descending=True).values
    vocab_size = logits.shape[-1]
    keep_k = torch.where(top_k > 0, top_k.clamp(max=vocab_size), vocab_size)[:, None, None]
    rank = torch.arange(vocab_size, device=logits.device)
    probabilities = ordered.masked_fill(rank >= keep_k, -torch.inf).softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    # The sum may round up to 1 before the end: a top_p of 1 is no limit, whoever shares the batch.
    limit = torch.where(top_p < 1, top_p, torch.inf)[:, None, None]
    keep = (before < limit) & (rank < keep_k)
    last = keep.sum(-1, keepdim=True).clamp(min=1) - 1
    return ordered.gather(-1, last)
