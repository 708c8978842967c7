"""Device-resident state of the running requests, one row ("slot") each.

A step reads and writes these tensors and needs nothing from the host, so that steps can follow
each other without waiting for it.
"""

import torch
from torch import Tensor

from engine.messages import MAX_STOP_TOKEN_IDS, SamplingParams
from engine.request import Request


class SlotTable:
    """Tensors of shape ``[slots, …]``.

    ``seq_len``: committed tokens; ``bonus``: the newest token, not committed yet; ``num_output``:
    tokens emitted so far; ``max_output``: how many may be; ``stop_ids``: tokens that end the
    request, padded with -1; ``page_table``: the request's pages, padded with the null page.
    ``output_counts`` and ``in_prompt`` count tokens of the vocabulary for the penalties.
    """

    def __init__(
        self, max_num_seqs: int, max_pages: int, vocab_size: int, device: torch.device
    ) -> None:
        self.device = device
        self.params: list[SamplingParams | None] = [None] * max_num_seqs
        self._admissions: list[tuple[int, int] | None] = [None] * max_num_seqs
        self._num_pages = [0] * max_num_seqs

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(max_num_seqs, *shape, dtype=dtype, device=device)

        self.seq_len = zeros()
        self.bonus = zeros()
        self.num_output = zeros()
        self.max_output = zeros()
        self.min_output = zeros()
        self.stop_ids = zeros(MAX_STOP_TOKEN_IDS)
        self.page_table = zeros(max_pages)
        self.seeds = zeros()
        self.temperature = zeros(dtype=torch.float32)
        self.top_k = zeros()
        self.top_p = zeros(dtype=torch.float32)
        self.min_p = zeros(dtype=torch.float32)
        self.repetition_penalty = zeros(dtype=torch.float32)
        self.frequency_penalty = zeros(dtype=torch.float32)
        self.presence_penalty = zeros(dtype=torch.float32)
        self.logit_bias = zeros(vocab_size, dtype=torch.float32)
        self.output_counts = zeros(vocab_size, dtype=torch.int32)
        self.in_prompt = zeros(vocab_size, dtype=torch.bool)

    def update(self, request: Request, eos_token_ids: list[int]) -> None:
        """Bring the row of a running request up to date with what the scheduler decided."""
        slot = request.slot
        assert slot is not None
        admission = (request.arrival, request.num_preemptions)
        if self._admissions[slot] != admission:
            self._admissions[slot] = admission
            self._num_pages[slot] = 0
            self._fill(slot, request, eos_token_ids)
        if self._num_pages[slot] != len(request.pages):
            self._num_pages[slot] = len(request.pages)
            self._set_pages(slot, request.pages)

    def _fill(self, slot: int, request: Request, eos_token_ids: list[int]) -> None:
        """Set up the row of a request that was just admitted."""
        params = request.params
        self.params[slot] = params
        self.num_output[slot] = request.num_output_tokens
        self.max_output[slot] = params.max_tokens
        self.min_output[slot] = params.min_tokens
        # Any 64 bits: the noise takes them apart into two words.
        self.seeds[slot] = (params.seed + 2**63) % 2**64 - 2**63
        self.temperature[slot] = params.temperature
        self.top_k[slot] = params.top_k
        self.top_p[slot] = params.top_p
        self.min_p[slot] = params.min_p
        self._fill_stop_ids(slot, params, eos_token_ids)
        self._fill_penalties(slot, request)

    def _set_pages(self, slot: int, pages: list[int]) -> None:
        self.page_table[slot].zero_()
        self.page_table[slot, : len(pages)] = torch.tensor(pages, device=self.device)

    def _fill_stop_ids(self, slot: int, params: SamplingParams, eos: list[int]) -> None:
        ids = stop_token_ids(params, eos)
        self.stop_ids[slot].fill_(-1)
        self.stop_ids[slot, : len(ids)] = torch.tensor(ids, dtype=torch.int64, device=self.device)

    def _fill_penalties(self, slot: int, request: Request) -> None:
        params = request.params
        self.repetition_penalty[slot] = params.repetition_penalty
        self.frequency_penalty[slot] = params.frequency_penalty
        self.presence_penalty[slot] = params.presence_penalty
        if params.logit_bias:
            ids = torch.tensor(list(params.logit_bias), device=self.device)
            bias = torch.tensor(list(params.logit_bias.values()), device=self.device)
            self.logit_bias[slot].zero_()[ids] = bias
        if has_penalties(params):
            tokens = torch.tensor(request.token_ids, dtype=torch.int64, device=self.device)
            prompt, output = tokens[: request.prompt_len], tokens[request.prompt_len :]
            self.in_prompt[slot].zero_()[prompt] = True
            counts = torch.bincount(output, minlength=self.output_counts.shape[1])
            self.output_counts[slot] = counts


def has_penalties(params: SamplingParams) -> bool:
    """Whether the tokens before it change a token's logits."""
    return (
        params.repetition_penalty != 1
        or params.frequency_penalty != 0
        or params.presence_penalty != 0
    )


def stop_token_ids(params: SamplingParams, eos_token_ids: list[int]) -> list[int]:
    """Every token that ends the request. Raises ValueError if a slot cannot hold them all."""
    ids = set(params.stop_token_ids) | (set() if params.ignore_eos else set(eos_token_ids))
    if len(ids) > MAX_STOP_TOKEN_IDS:
        raise ValueError(f"stop_token_ids: {len(ids)} with EOS; at most {MAX_STOP_TOKEN_IDS}")
    return sorted(ids)
