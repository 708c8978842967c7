"""Acceptance and commit: kernel against reference, reference against ``engine.step``."""

from random import Random

import pytest
import torch
from torch import Tensor

from engine import step
from engine.slots import SlotTable
from kernels.accept import reference, triton
from kernels.accept.state import EXHAUSTED, STOPPED, SlotState

VOCAB = 11
NULL = 6


def state_of(table: SlotTable, done: Tensor) -> SlotState:
    return SlotState(
        table.seq_len, table.num_output, table.max_output, table.bonus, table.stop_ids, done,
        table.output_counts, table.seeds,
    )  # fmt: skip


def random_table(random: Random, device: torch.device) -> SlotTable:
    table = SlotTable(NULL + 1, max_pages=1, vocab_size=VOCAB, device=device)
    table.stop_ids.fill_(-1)
    for slot in range(NULL):
        table.seq_len[slot] = random.randrange(1000)
        table.seeds[slot] = random.randrange(-(2**63), 2**63)
        table.num_output[slot] = random.randrange(5)
        table.max_output[slot] = table.num_output[slot] + random.choice([1, 2, 5, 100])
        stops = random.sample(range(VOCAB), random.choice([0, 0, 1, 2]))
        table.stop_ids[slot, : len(stops)] = torch.tensor(stops, dtype=torch.int64)
        table.output_counts[slot] = random.randrange(3)
    return table


def random_block(random: Random, count: int, width: int, device: torch.device) -> list[Tensor]:
    """Drafts of which a random number agrees with the samples."""
    block = [[random.randrange(VOCAB) for _ in range(width)] for _ in range(count)]
    sampled = [[random.randrange(VOCAB) for _ in range(width)] for _ in range(count)]
    for drafts, tokens in zip(block, sampled, strict=True):
        agree = random.randint(0, width - 1)
        drafts[1 : agree + 1] = tokens[:agree]
    return [torch.tensor(rows, device=device) for rows in (block, sampled)]


def clone(state: SlotState) -> SlotState:
    return SlotState(*(tensor.clone() for tensor in state if tensor is not None))


def rates(width: int, device: torch.device) -> Tensor:
    return 0.8 ** torch.arange(1, width, dtype=torch.float32, device=device)


@pytest.mark.parametrize("synthetic", [False, True])
@pytest.mark.parametrize("width", [1, 2, 5, 16])
@pytest.mark.parametrize("seed", range(3))
def test_matches_reference(seed: int, width: int, synthetic: bool, device: torch.device) -> None:
    random = Random(seed)
    forced = rates(width, device) if synthetic else None
    table = random_table(random, device)
    done = torch.tensor([random.random() < 0.2 for _ in range(NULL + 1)], device=device)
    ours = state_of(table, done)
    theirs = clone(ours)
    # Padding: the null slot, more than once.
    slots = torch.tensor([4, 0, 2, 5, NULL, 1, NULL], device=device)
    for _ in range(3):
        block, sampled = random_block(random, len(slots), width, device)
        out = torch.full((len(slots), width + 2), -7, device=device)
        result = triton.accept(block, sampled, slots, ours, synthetic_rates=forced, out=out)
        assert result is out
        expected = reference.accept(block, sampled, slots, theirs, synthetic_rates=forced)
        assert torch.equal(out, expected)
        for mine, other in zip(ours, theirs, strict=True):
            assert mine is not None
            assert other is not None
            assert torch.equal(mine, other)


@pytest.mark.parametrize("synthetic", [False, True])
@pytest.mark.parametrize("width", [1, 4, 16])
def test_is_the_engines_step(width: int, synthetic: bool, device: torch.device) -> None:
    """Where nothing is frozen or padded, results and state are those of ``engine.step``."""
    random = Random(width)
    table, theirs = (random_table(Random(5), device) for _ in range(2))
    done = torch.zeros(NULL + 1, dtype=torch.bool, device=device)
    slots = torch.tensor([3, 1, 0, 5, 2], device=device)
    block, sampled = random_block(random, len(slots), width, device)
    forced = rates(width, device) if synthetic else None
    out = triton.accept(block, sampled, slots, state_of(table, done), synthetic_rates=forced)
    accepted = step.accept(block, sampled, slots, theirs, forced)
    step.commit(accepted, slots, theirs)
    assert torch.equal(out[:, :width], accepted.tokens)
    assert torch.equal(out[:, width], accepted.count)
    flags = STOPPED * accepted.stopped.long() + EXHAUSTED * accepted.exhausted.long()
    assert torch.equal(out[:, width + 1], flags)
    assert torch.equal(done[slots], flags > 0)
    for name in ("seq_len", "num_output", "bonus", "output_counts"):
        assert torch.equal(getattr(table, name), getattr(theirs, name)), name


def test_frozen_slots_stay(device: torch.device) -> None:
    table = random_table(Random(1), device)
    done = torch.ones(NULL + 1, dtype=torch.bool, device=device)
    state = state_of(table, done)
    before = clone(state)
    slots = torch.tensor([0, 1, NULL, NULL], device=device)
    block, sampled = random_block(Random(2), 4, 8, device)
    out = triton.accept(block, sampled, slots, state)
    assert out[:, 8:].count_nonzero() == 0
    for now, then in zip(state, before, strict=True):
        assert now is not None
        assert then is not None
        assert torch.equal(now, then)


def test_stops_once(device: torch.device) -> None:
    """The step after a stop token emits nothing; a narrower output type will do."""
    table = random_table(Random(1), device)
    table.stop_ids[0, 0] = 3
    table.max_output[0] = 100
    done = torch.zeros(NULL + 1, dtype=torch.bool, device=device)
    state = state_of(table, done)._replace(output_counts=None)
    block = torch.tensor([[1, 2, 3, 4]], device=device)
    sampled = torch.tensor([[2, 3, 4, 5]], device=device)
    slots = torch.tensor([0], device=device)
    out = torch.empty(1, 6, dtype=torch.int32, device=device)
    assert triton.accept(block, sampled, slots, state, out=out)[0, 4:].tolist() == [2, STOPPED]
    assert table.bonus[0] == 3
    assert triton.accept(block, sampled, slots, state)[0, 4:].tolist() == [0, 0]
