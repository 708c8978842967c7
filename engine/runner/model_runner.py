"""Runs target and drafter: prefill chunks, and the speculative step over all running requests."""

import logging
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.attention.backend import select_backend
from engine.attention.batch import AttentionBatch, CacheSpec
from engine.checkpoint import Checkpoint
from engine.config import ConfigError, EngineConfig
from engine.layers.rope import RotaryEmbedding
from engine.models.dflash import DFlashDrafter, check_context_length
from engine.models.registry import TargetModel
from engine.request import Request
from engine.runner import kv_cache
from engine.runner.loading import build_models, choose_device, fill
from engine.runner.paged_model import M, PagedModel
from engine.sampling import SamplingRows, sample
from engine.scheduler import PrefillChunk
from engine.slots import SlotTable
from engine.step import Accepted, accept, commit, emitted_mask

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Emission:
    """What one step emits for one request, on the host."""

    request: Request
    token_ids: list[int]
    stopped: bool
    exhausted: bool


class ModelRunner:
    """Owns the device: weights, caches and slots. Raises ConfigError for what does not fit."""

    @torch.inference_mode()
    def __init__(self, config: EngineConfig) -> None:
        self.device = choose_device(config.engine.device)
        # Everything that can be refused without the weights is, before they are loaded.
        target, drafter = build_models(config, self.device)
        self.dtype = target.config.dtype
        self.vocab_size = target.config.vocab_size
        self.eos_token_ids = _eos_token_ids(config, self.vocab_size)
        self.max_model_len = _max_model_len(config, target, drafter)
        self.num_draft_tokens = _num_draft_tokens(config, drafter)
        self.synthetic_rates = _synthetic_rates(config, self.num_draft_tokens, self.device)
        self.page_size = config.engine.page_size
        fill(target, config.target, self.device)
        if drafter is not None and config.drafter is not None:
            fill(drafter, config.drafter, self.device)
        self._allocate(config, target, drafter)

    def _allocate(
        self, config: EngineConfig, target: TargetModel, drafter: DFlashDrafter | None
    ) -> None:
        """Caches, rotary tables and slots; drafts may stand past max_model_len."""
        positions = self.max_model_len + self.num_draft_tokens
        specs = _cache_specs(target) + (_cache_specs(drafter) if drafter else [])
        bytes_per_page = kv_cache.page_bytes(specs, self.page_size, self.dtype)
        self.num_pages = kv_cache.num_pages_that_fit(config.engine, bytes_per_page, self.device)
        caches = kv_cache.allocate(specs, self.num_pages, self.page_size, self.dtype, self.device)
        split = target.config.num_layers

        def paged(model: M, layers: slice, key: str) -> PagedModel[M]:
            shape = model.config
            rope = RotaryEmbedding(shape.rope, shape.head_dim, positions, self.device)
            attend = select_backend(f"engine.{key}", getattr(options, key), self.device)
            return PagedModel(model, caches[layers], rope, attend)

        options = config.engine
        self.target = paged(target, slice(split), "attention_backend")
        self.drafter = (
            paged(drafter, slice(split, None), "draft_attention_backend") if drafter else None
        )
        max_pages = -(-positions // self.page_size)
        self.table = SlotTable(options.max_num_seqs, max_pages, self.vocab_size, self.device)
        log.info("KV cache: %d tokens in %d pages", self.num_kv_tokens, self.num_pages - 1)

    @property
    def num_kv_tokens(self) -> int:
        """Tokens that the KV cache holds; page 0 is the null page."""
        return (self.num_pages - 1) * self.page_size

    @torch.inference_mode()
    def prefill(self, chunks: list[PrefillChunk]) -> list[Emission]:
        """Commit the chunks' tokens; sample the next token of those that are a prompt's last."""
        self._update_slots([chunk.request for chunk in chunks])
        tokens = [t for c in chunks for t in c.request.token_ids[c.start : c.end]]
        token_ids = torch.tensor(tokens, device=self.device)
        batch = self._prefill_batch(chunks)
        hidden, features = self._forward_target(token_ids, batch)
        self._write_draft_context(features, batch)
        last = [i for i, chunk in enumerate(chunks) if chunk.is_last]
        if not last:
            return []
        return self._sample_first(
            [chunks[i] for i in last], hidden[batch.query_start[1:][last] - 1]
        )

    @torch.inference_mode()
    def step(self, requests: list[Request], num_drafts: int) -> list[Emission]:
        """One speculative step: draft, verify, accept, commit. Without drafts it is a plain one."""
        self._update_slots(requests)
        slots = _slots(requests)
        rows = SamplingRows(slots, self.table)
        batch = self._block_batch(rows.index, num_drafts + 1)
        block = self._propose(rows.index, batch, num_drafts)
        hidden, features = self._forward_target(block.flatten(), batch)
        logits = self.target.model.logits(hidden).unflatten(0, block.shape)
        rates = None if self.synthetic_rates is None else self.synthetic_rates[:num_drafts]
        accepted = self._accept(logits, block, rows, rates)
        kept = emitted_mask(accepted).flatten()
        # Rejected rows must never become context: they go to the null page.
        self._write_draft_context(features, replace(batch, slots=batch.slots * kept))
        return _emissions(requests, accepted)

    def _propose(self, slots: Tensor, batch: AttentionBatch, num_drafts: int) -> Tensor:
        """Draft blocks ``[B, W]``: each slot's bonus and the drafter's guesses after it."""
        bonus = self.table.bonus[slots][:, None]
        if self.drafter is None or num_drafts == 0:
            return bonus
        masks = bonus.new_full((len(slots), num_drafts), self.mask_token_id)
        block = torch.cat([bonus, masks], dim=1)
        embedded = self.target.model.embed(block.flatten())
        hidden = self.drafter.model(embedded, self.drafter.context(batch))
        rows = hidden.unflatten(0, block.shape)[:, 1:].flatten(0, 1)
        drafts = self.target.model.logits(rows).argmax(-1)
        return torch.cat([bonus, drafts.view_as(masks)], dim=1)

    @property
    def mask_token_id(self) -> int:
        """The token that stands for a position to be drafted."""
        assert self.drafter is not None
        return self.drafter.model.mask_token_id

    def _forward_target(
        self, token_ids: Tensor, batch: AttentionBatch
    ) -> tuple[Tensor, Tensor | None]:
        capture = self.drafter.model.target_layer_ids if self.drafter else ()
        result: tuple[Tensor, Tensor | None] = self.target.model(
            token_ids, self.target.context(batch), capture
        )
        return result

    def _write_draft_context(self, features: Tensor | None, batch: AttentionBatch) -> None:
        if self.drafter is not None and features is not None:
            self.drafter.model.write_context(features, self.drafter.context(batch))

    def _accept(
        self,
        logits: Tensor,
        block: Tensor,
        rows: SamplingRows,
        synthetic_rates: Tensor | None = None,
    ) -> Accepted:
        """Sample every row, accept drafts, advance the slots."""
        sampled = sample(logits, block, rows)
        accepted = accept(block, sampled, rows.index, self.table, synthetic_rates)
        commit(accepted, rows.index, self.table)
        return accepted

    def _sample_first(self, chunks: list[PrefillChunk], hidden: Tensor) -> list[Emission]:
        """A prompt's last token is a draft block without drafts: ``hidden [B, hidden]``."""
        requests = [chunk.request for chunk in chunks]
        rows = SamplingRows(_slots(requests), self.table)
        ends = torch.tensor([chunk.end for chunk in chunks], device=self.device)
        self.table.seq_len[rows.index] = ends - 1
        block = torch.tensor([[r.token_ids[-1]] for r in requests], device=self.device)
        logits = self.target.model.logits(hidden)[:, None]
        return _emissions(requests, self._accept(logits, block, rows))

    def _prefill_batch(self, chunks: list[PrefillChunk]) -> AttentionBatch:
        lengths = [chunk.end - chunk.start for chunk in chunks]
        positions = torch.cat([torch.arange(c.start, c.end, device=self.device) for c in chunks])
        sequence = torch.arange(len(chunks)).repeat_interleave(torch.tensor(lengths))
        starts = torch.tensor([0, *lengths]).cumsum(0)
        ends = torch.tensor([chunk.end for chunk in chunks])
        slots = torch.tensor(_slots([chunk.request for chunk in chunks]))
        slots, sequence, starts, ends = (t.to(self.device) for t in (slots, sequence, starts, ends))
        return self._batch(slots, sequence, positions, starts, ends, max(lengths))

    def _block_batch(self, slots: Tensor, width: int) -> AttentionBatch:
        """``width`` tokens after the committed ones of every slot."""
        committed = self.table.seq_len[slots]
        count = len(slots)
        offsets = torch.arange(width, device=self.device)
        positions = (committed[:, None] + offsets).flatten()
        index = torch.arange(count, device=self.device)
        sequence = index[:, None].expand(-1, width).flatten()
        starts = torch.arange(count + 1, device=self.device) * width
        return self._batch(slots, sequence, positions, starts, committed + width, width)

    def _batch(
        self,
        slots: Tensor,
        sequence: Tensor,
        positions: Tensor,
        query_start: Tensor,
        kv_lens: Tensor,
        max_query_len: int,
    ) -> AttentionBatch:
        """``sequence [T]`` says to which of the batch's ``slots [B]`` each new token belongs."""
        page_table = self.table.page_table[slots]
        pages = page_table[sequence, positions // self.page_size]
        cache_slots = pages * self.page_size + positions % self.page_size
        return AttentionBatch(
            positions, cache_slots, query_start, kv_lens, page_table, max_query_len
        )

    def _update_slots(self, requests: list[Request]) -> None:
        for request in requests:
            self.table.update(request, self.eos_token_ids)


def _slots(requests: list[Request]) -> list[int]:
    return [request.slot for request in requests if request.slot is not None]


def _emissions(requests: list[Request], accepted: Accepted) -> list[Emission]:
    """Bring a step's result to the host."""
    columns = (accepted.tokens, accepted.count, accepted.stopped, accepted.exhausted)
    rows = zip(requests, *(column.tolist() for column in columns), strict=True)
    return [Emission(r, tokens[:count], stop, end) for r, tokens, count, stop, end in rows]


def _cache_specs(model: TargetModel | DFlashDrafter) -> list[CacheSpec]:
    config = model.config
    return [config.attention_spec(layer).cache for layer in range(config.num_layers)]


def _eos_token_ids(config: EngineConfig, vocab_size: int) -> list[int]:
    ids = Checkpoint(config.target.model).eos_token_ids
    for token in ids:
        if not 0 <= token < vocab_size:
            raise ConfigError(
                f"{config.target.model}: eos_token_id = {token} is outside the vocabulary of "
                f"{vocab_size}; correct it in generation_config.json"
            )
    return ids


def _max_model_len(config: EngineConfig, target: TargetModel, drafter: DFlashDrafter | None) -> int:
    limit = target.config.max_position_embeddings
    wanted = config.engine.max_model_len
    if wanted is not None and wanted > limit:
        raise ConfigError(
            f"engine.max_model_len = {wanted} is more than the target's "
            f"max_position_embeddings = {limit}; set engine.max_model_len = {limit} or less"
        )
    length = wanted or min([limit] + ([drafter.config.max_position_embeddings] if drafter else []))
    if drafter is not None:
        check_context_length(drafter.config, length)
    return length


def _num_draft_tokens(config: EngineConfig, drafter: DFlashDrafter | None) -> int:
    wanted = config.engine.num_draft_tokens
    if drafter is None:
        if wanted != "auto":
            raise ConfigError(
                f"engine.num_draft_tokens = {wanted} needs a drafter; add a [drafter] table or "
                "remove the key"
            )
        return 0
    most = drafter.block_size - 1
    if wanted == "auto":
        return most
    if wanted > most:
        raise ConfigError(
            f"engine.num_draft_tokens = {wanted}, but the drafter's block_size = "
            f"{drafter.block_size} allows {most}; set it to {most} or less"
        )
    return wanted


def _synthetic_rates(
    config: EngineConfig, num_draft_tokens: int, device: torch.device
) -> Tensor | None:
    rates = config.engine.synthetic_acceptance_rates
    if rates is None:
        return None
    key = f"engine.synthetic_acceptance_rates = {rates}"
    for table, checkpoint in (("target", config.target), ("drafter", config.drafter)):
        if checkpoint is None or checkpoint.load_format != "dummy":
            raise ConfigError(
                f'{key} needs {table}.load_format = "dummy": with real weights the target decides; '
                "remove the key"
            )
    if len(rates) != num_draft_tokens or rates != sorted(rates, reverse=True):
        raise ConfigError(
            f"{key}: give {num_draft_tokens} rates, one per draft, none above the one before"
        )
    log.warning("SYNTHETIC acceptance: drafts are accepted by chance; measure nothing but speed")
    return torch.tensor(rates, device=device)
