"""Sampling against a slow reference that treats one row at a time, in float64."""

import math
from random import Random
from typing import Any

import pytest
import torch

from engine.messages import SamplingParams, Submit
from engine.request import Request
from engine.sampling import SamplingRows, _cut_off, sample
from engine.slots import MAX_STOP_TOKEN_IDS, SlotTable, stop_token_ids
from tests.engine.test_noise import reference as noise

VOCAB = 23
EOS = [5]
CPU = torch.device("cpu")


def reference_token(
    logits: list[float], params: SamplingParams, prompt: list[int], output: list[int]
) -> int:
    """The token after ``prompt + output``. ``logits`` are of one row."""
    scores = [x + params.logit_bias.get(token, 0.0) for token, x in enumerate(logits)]
    if len(output) < params.min_tokens:
        for token in stop_token_ids(params, EOS):
            scores[token] = -math.inf
    for token in set(prompt + output):
        factor = params.repetition_penalty
        scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
    for token in set(output):
        scores[token] -= params.frequency_penalty * output.count(token) + params.presence_penalty
    if params.temperature < 1e-5:
        return scores.index(max(scores))
    scores = [x / params.temperature for x in scores]
    for cut in (cut_min_p, cut_top_k, cut_top_p):
        scores = cut(scores, params)
    position = len(prompt) + len(output)
    noisy = [x + noise(params.seed, position, token) for token, x in enumerate(scores)]
    return noisy.index(max(noisy))


def softmax(scores: list[float]) -> list[float]:
    top = max(scores)
    weights = [math.exp(x - top) for x in scores]
    return [w / math.fsum(weights) for w in weights]


def at_least(scores: list[float], floor: float) -> list[float]:
    return [x if x >= floor else -math.inf for x in scores]


def cut_min_p(scores: list[float], params: SamplingParams) -> list[float]:
    probabilities = softmax(scores)
    floor = params.min_p * max(probabilities) * (1 - 1e-9)
    return [x if p >= floor else -math.inf for x, p in zip(scores, probabilities, strict=True)]


def cut_top_k(scores: list[float], params: SamplingParams) -> list[float]:
    if not 0 < params.top_k < len(scores):
        return scores
    return at_least(scores, sorted(scores, reverse=True)[params.top_k - 1])


def cut_top_p(scores: list[float], params: SamplingParams) -> list[float]:
    if params.top_p >= 1:
        return scores
    total = 0.0
    for score, probability in sorted(zip(scores, softmax(scores), strict=True), reverse=True):
        total += probability
        if total >= params.top_p:
            return at_least(scores, score)
    return scores


class Batch:
    """Requests on slots, in another order than in the batch; ``block`` is tokens ``[B, W]``."""

    def __init__(self, width: int, vocab_size: int = VOCAB) -> None:
        self.width = width
        self.table = SlotTable(9, 4, vocab_size, CPU)
        self.requests: list[Request] = []
        self.drafts: list[list[int]] = []

    def add(
        self, params: SamplingParams, prompt: list[int], output: list[int], drafts: list[int]
    ) -> None:
        message = Submit(
            request_id="x", prompt_token_ids=prompt, params=params, output_token_ids=output
        )
        request = Request.from_submit(message)
        request.slot, request.arrival = 8 - len(self.requests), len(self.requests)
        self.table.update(request, EOS)
        # Committed is everything but the last known token.
        self.table.seq_len[request.slot] = len(request.token_ids) - 1
        self.requests.append(request)
        self.drafts.append(drafts)

    def sample(self, logits: torch.Tensor) -> list[list[int]]:
        rows = SamplingRows([r.slot for r in self.requests if r.slot is not None], self.table)
        blocks = [[r.token_ids[-1], *d] for r, d in zip(self.requests, self.drafts, strict=True)]
        return sample(logits, torch.tensor(blocks), rows).tolist()

    def reference(self, logits: torch.Tensor) -> list[list[int]]:
        return [
            [
                reference_token(
                    row.tolist(),
                    request.params,
                    request.token_ids[: request.prompt_len],
                    request.token_ids[request.prompt_len :] + drafts[:index],
                )
                for index, row in enumerate(rows.double())
            ]
            for request, drafts, rows in zip(self.requests, self.drafts, logits, strict=True)
        ]


def random_params(random: Random) -> SamplingParams:
    def pick(*values: Any) -> Any:
        return random.choice(values)

    return SamplingParams(
        max_tokens=99,
        seed=random.randrange(-(2**63), 2**63),
        temperature=pick(0.0, 0.5, 1.0, 1.0, 2.0),
        top_k=pick(0, 0, 1, 2, 5, VOCAB, 10**9),
        top_p=pick(1.0, 1.0, 0.95, 0.5, 0.01),
        min_p=pick(0.0, 0.0, 0.02, 0.3, 1.0),
        repetition_penalty=pick(1.0, 1.0, 1.7, 0.6),
        frequency_penalty=pick(0.0, 0.0, 1.1, -0.8),
        presence_penalty=pick(0.0, 0.0, 2.0, -1.0),
        logit_bias=pick({}, {random.randrange(VOCAB): random.uniform(-8, 8) for _ in range(4)}),
        min_tokens=pick(0, 0, 3, 8),
        stop_token_ids=pick((), (0,), (1, 2, 3)),
        ignore_eos=pick(True, False),
    )


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("seed", range(40))
def test_equals_the_reference(seed: int, width: int) -> None:
    random = Random(seed)
    batch = Batch(width)

    def tokens(count: int) -> list[int]:
        # Few kinds of tokens, so that drafts repeat each other and what came before.
        return [random.randrange(7) for _ in range(count)]

    for _ in range(random.randint(1, 9)):
        batch.add(
            random_params(random),
            tokens(random.randint(1, 6)),
            tokens(random.randint(0, 9)),
            tokens(width - 1),
        )
    torch.manual_seed(seed)
    logits = torch.randn(len(batch.requests), width, VOCAB) * 2.5
    assert batch.sample(logits) == batch.reference(logits)


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 99, "ignore_eos": True, **fields})


def sample_one(fields: dict[str, Any], logits: list[float], *others: dict[str, Any]) -> list[int]:
    """The distinct tokens that 300 seeds draw from one row of logits."""
    drawn = set()
    for seed in range(300):
        batch = Batch(1, len(logits))
        batch.add(params(seed=seed, **fields), [0], [], [])
        for other in others:
            batch.add(params(**other), [0], [], [])
        rows = torch.tensor(logits).expand(len(batch.requests), 1, -1)
        drawn.add(batch.sample(rows)[0][0])
    return sorted(drawn)


def test_top_k_keeps_what_ties_with_the_last() -> None:
    logits = [1.0, 3.0, 2.0, 2.0, 0.0]
    assert sample_one({"top_k": 1}, logits) == [1]
    assert sample_one({"top_k": 2}, logits) == [1, 2, 3]


def test_top_p_counts_what_top_k_left() -> None:
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    assert sample_one({"top_p": 0.6}, logits) == [0, 1]
    # Of the two that top_k leaves, the first has 0.57.
    assert sample_one({"top_p": 0.5, "top_k": 2}, logits) == [0]
    assert sample_one({"top_p": 0.71}, logits) == [0, 1, 2]


def test_min_p_comes_after_the_temperature() -> None:
    logits = [0.0, -1.0]
    assert sample_one({"min_p": 0.5}, logits) == [0]
    assert sample_one({"min_p": 0.5, "temperature": 2.0}, logits) == [0, 1]


def test_bias_comes_before_the_repetition_penalty() -> None:
    # Token 0 is in the prompt: (1 + 4) / 2 < 3 < 1 / 2 + 4.
    greedy = {"temperature": 0.0, "repetition_penalty": 2.0, "logit_bias": {0: 4.0}}
    assert sample_one(greedy, [1.0, 3.0]) == [1]


def test_greedy_ties_go_to_the_first() -> None:
    assert sample_one({"temperature": 0.0}, [0.0, 2.0, 2.0]) == [1]


@pytest.mark.parametrize("temperature", [1e-2, 1e-4, 1e-6, 1e-30, 1e-40, 1e-320])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    logits = [100.0, 200.0, 199.0, -300.0]
    assert sample_one({"temperature": temperature}, logits) == [1]
    assert sample_one({"temperature": temperature, "top_p": 0.9}, logits) == [1]


def test_a_neighbour_that_cuts_off_changes_nothing() -> None:
    """A float32 sum of probabilities reaches 1 early; top_p = 1 must keep the tail even so."""
    torch.manual_seed(0)
    logits = torch.cat([torch.tensor([12.0]), torch.randn(3999)])
    alone, beside = Batch(1, 4000), Batch(1, 4000)
    for batch in (alone, beside):
        batch.add(params(temperature=8.0, seed=2), [0], [], [])
    beside.add(params(temperature=8.0, top_p=0.5), [0], [], [])
    table = beside.table
    rows = SamplingRows([8, 7], table)
    scaled = (logits * 3).expand(2, 1, -1)
    cut = _cut_off(scaled, rows, torch.tensor([0, 1]))
    assert cut[0].isfinite().all()
    assert not cut[1].isfinite().all()
    assert alone.sample(logits.expand(1, 1, -1))[0] == beside.sample(logits.expand(2, 1, -1))[0]


def test_min_tokens_ends_inside_a_block() -> None:
    batch = Batch(4)
    fields = {"temperature": 0.0, "ignore_eos": False, "min_tokens": 4, "stop_token_ids": (6,)}
    batch.add(params(**fields), [1], [2, 2], [3, 3, 3])
    logits = torch.zeros(1, 4, VOCAB)
    logits[..., 5] = 9  # EOS
    logits[..., 6] = 8
    logits[..., 7] = 7
    assert batch.sample(logits) == [[7, 7, 5, 5]]


def test_penalties_see_the_drafts_before_the_row_and_no_more() -> None:
    batch = Batch(4)
    batch.add(params(temperature=0.0, presence_penalty=2.0), [1], [2], [3, 4, 3])
    logits = torch.zeros(1, 4, VOCAB)
    logits[..., 2] = 1.9  # emitted
    logits[..., 3] = 1.5  # drafted in row 1
    logits[..., 4] = 1.0  # drafted in row 2
    logits[..., 6] = 0.5
    assert batch.sample(logits) == [[3, 4, 6, 6]]


def test_a_slot_forgets_its_last_request() -> None:
    batch = Batch(1)
    everything = SamplingParams(
        max_tokens=9, repetition_penalty=2.0, logit_bias={3: 9.0}, stop_token_ids=(4, 5)
    )
    batch.add(everything, [1, 2, 3], [4, 5, 6], [])
    first = batch.requests[0]
    second = Request.from_submit(
        Submit(
            request_id="x",  # the same id again
            prompt_token_ids=[8],
            params=params(temperature=0.0, frequency_penalty=1.0, logit_bias={9: 1.0}),
        )
    )
    second.slot, second.arrival, second.pages = first.slot, 77, [3]
    batch.table.update(second, EOS)
    slot = second.slot
    assert slot is not None
    assert batch.table.logit_bias[slot].nonzero().tolist() == [[9]]
    assert batch.table.output_counts[slot].sum() == 0
    assert batch.table.in_prompt[slot].nonzero().tolist() == [[8]]
    assert batch.table.stop_ids[slot].unique().tolist() == [-1]
    assert batch.table.repetition_penalty[slot] == 1
    assert batch.table.page_table[slot].tolist() == [3, 0, 0, 0]


def test_too_many_stop_tokens() -> None:
    ids = tuple(range(MAX_STOP_TOKEN_IDS))
    assert len(stop_token_ids(params(stop_token_ids=ids, ignore_eos=False), EOS)) == 64
    with pytest.raises(ValueError, match=r"stop_token_ids: 65 .* at most 64"):
        stop_token_ids(params(stop_token_ids=ids, ignore_eos=False), [100])
