"""accept and commit on tensors: where an emission ends, and what the slots know afterwards."""

import pytest
import torch

from engine.messages import SamplingParams, Submit
from engine.request import Request
from engine.slots import SlotTable
from engine.step import Accepted, accept, commit, emitted_mask

BONUS = 50
STOP = (7, 8)


def make_table(*emitted: int, max_tokens: int = 100) -> SlotTable:
    """Requests on slots 0, 1, … that have emitted so many tokens (the last is the bonus)."""
    table = SlotTable(len(emitted), 4, 64, torch.device("cpu"))
    for slot, count in enumerate(emitted):
        params = SamplingParams(max_tokens=max_tokens, stop_token_ids=STOP, presence_penalty=1.0)
        message = Submit(
            request_id="x",
            prompt_token_ids=[1] * 10,
            params=params,
            output_token_ids=[BONUS] * count,
        )
        request = Request.from_submit(message)
        request.slot = slot
        table.update(request, [])
        table.seq_len[slot] = 10 + count - 1
        table.bonus[slot] = BONUS
    return table


def run(drafts: list[int], sampled: list[int], room: int = 100) -> tuple[list[int], bool, bool]:
    """Emitted tokens, stopped, exhausted."""
    table = make_table(5, max_tokens=5 + room)
    block, index = torch.tensor([[BONUS, *drafts]]), torch.tensor([0])
    accepted = accept(block, torch.tensor([sampled]), index, table)
    tokens = accepted.tokens[0, : int(accepted.count)].tolist()
    return tokens, bool(accepted.stopped), bool(accepted.exhausted)


@pytest.mark.parametrize(
    ("drafts", "sampled", "room", "expected"),
    [
        ([1, 2, 3], [9, 2, 3, 4], 100, ([9], False, False)),
        ([1, 2, 3], [1, 9, 3, 4], 100, ([1, 9], False, False)),
        ([1, 2, 3], [1, 2, 3, 4], 100, ([1, 2, 3, 4], False, False)),
        ([1, 2, 3], [1, 9, 3, 4], 2, ([1, 9], False, True)),
        ([1, 2, 3], [1, 2, 3, 4], 2, ([1, 2], False, True)),
        ([1, 2, 3], [9, 2, 3, 4], 1, ([9], False, True)),
        # A stop token among accepted drafts, as the target's own token, and after a rejection.
        ([1, 7, 3], [1, 7, 3, 4], 100, ([1, 7], True, False)),
        ([1, 7, 3], [1, 8, 3, 4], 100, ([1, 8], True, False)),
        ([1, 2, 3], [1, 2, 3, 7], 100, ([1, 2, 3, 7], True, False)),
        ([1, 2, 7], [1, 9, 7, 4], 100, ([1, 9], False, False)),
        ([7, 7, 7], [7, 7, 7, 7], 100, ([7], True, False)),
        # Both ends at once, and one before the other.
        ([1, 7, 3], [1, 7, 3, 4], 2, ([1, 7], True, True)),
        ([1, 7, 3], [1, 7, 3, 4], 1, ([1], False, True)),
        ([1, 7, 3], [1, 7, 3, 4], 3, ([1, 7], True, False)),
        # A plain step.
        ([], [3], 100, ([3], False, False)),
        ([], [7], 1, ([7], True, True)),
    ],
)
def test_where_an_emission_ends(
    drafts: list[int], sampled: list[int], room: int, expected: tuple[list[int], bool, bool]
) -> None:
    assert run(drafts, sampled, room) == expected


def test_commit_advances_only_its_slots() -> None:
    table = make_table(1, 2, 3)
    tokens = torch.tensor([[4, 4, 5], [6, 9, 9]])
    false = torch.tensor([False, False])
    accepted = Accepted(tokens, torch.tensor([3, 1]), false, false)
    commit(accepted, torch.tensor([2, 0]), table)
    assert table.seq_len.tolist() == [11, 11, 15]
    assert table.num_output.tolist() == [2, 2, 6]
    assert table.bonus.tolist() == [6, BONUS, 5]
    counts = [{int(t): int(row[t]) for t in row.nonzero()} for row in table.output_counts]
    assert counts == [{BONUS: 1, 6: 1}, {BONUS: 2}, {BONUS: 3, 4: 2, 5: 1}]


def test_emitted_mask() -> None:
    none = torch.tensor([False, False])
    accepted = Accepted(torch.zeros(2, 3, dtype=torch.int64), torch.tensor([1, 3]), none, none)
    assert emitted_mask(accepted).tolist() == [[True, False, False], [True, True, True]]


def test_synthetic_rates_decide_how_many_drafts_are_emitted() -> None:
    """Whatever the target sampled; stop tokens among the drafts still end the emission."""
    block, sampled = torch.tensor([[BONUS, 1, 2, 3]]), torch.tensor([[9, 9, 9, 9]])
    for rates, expected in [([1.0, 1.0, 0.0], [1, 2, 9]), ([0.0] * 3, [9])]:
        accepted = accept(block, sampled, torch.tensor([0]), make_table(5), torch.tensor(rates))
        assert accepted.tokens[0, : int(accepted.count)].tolist() == expected
    block[0, 2] = STOP[0]
    accepted = accept(block, sampled, torch.tensor([0]), make_table(5), torch.ones(3))
    assert accepted.tokens[0, : int(accepted.count)].tolist() == [1, STOP[0]]
    assert bool(accepted.stopped)


def test_synthetic_rates_are_unconditional() -> None:
    count, rates = 4000, torch.tensor([0.8, 0.5, 0.2])
    table = SlotTable(count, 1, 64, torch.device("cpu"))
    table.max_output.fill_(100)
    table.stop_ids.fill_(-1)
    table.seq_len = torch.arange(count)  # one draw for each position
    block, sampled = torch.tensor([[BONUS, 1, 2, 3]]), torch.tensor([[9, 9, 9, 9]])
    slots = torch.arange(count)
    accepted = accept(block.expand(count, -1), sampled.expand(count, -1), slots, table, rates)
    shares = [(accepted.count > k).double().mean().item() for k in (1, 2, 3)]
    assert shares == pytest.approx(rates.tolist(), abs=0.03)
