"""The slot's page table follows the request's pages."""

import torch

from engine.messages import SamplingParams, Submit
from engine.request import Request
from engine.slots import SlotTable


def make_request() -> Request:
    message = Submit(
        request_id="x",
        prompt_token_ids=[1, 2],
        params=SamplingParams(max_tokens=9, presence_penalty=1.0),
    )
    request = Request.from_submit(message)
    request.arrival, request.slot, request.pages = 0, 1, [5, 6]
    return request


def pages(table: SlotTable, request: Request) -> list[int]:
    table.update(request, [])
    return table.page_table[1].tolist()


def test_pages_follow_growth_preemption_and_the_next_request() -> None:
    table = SlotTable(2, 4, 8, torch.device("cpu"))
    request = make_request()
    assert pages(table, request) == [5, 6, 0, 0]
    request.pages.append(9)
    assert pages(table, request) == [5, 6, 9, 0]
    # The same slot again after a preemption, and as many pages, but others.
    request.num_preemptions, request.pages = 1, [7, 5, 6]
    assert pages(table, request) == [7, 5, 6, 0]
    request = make_request()
    request.arrival, request.pages = 1, [2]
    assert pages(table, request) == [2, 0, 0, 0]


def test_a_preempted_request_takes_its_counts_along() -> None:
    table = SlotTable(2, 4, 8, torch.device("cpu"))
    request = make_request()
    request.token_ids += [3, 4, 3]
    request.slot = 0
    table.update(request, [])
    assert table.output_counts[0].tolist() == [0, 0, 0, 2, 1, 0, 0, 0]
    assert table.in_prompt[0].nonzero().flatten().tolist() == [1, 2]
    assert table.num_output[0] == 3


def test_any_seed_fits() -> None:
    table = SlotTable(2, 4, 8, torch.device("cpu"))
    for arrival, (seed, held) in enumerate([(-1, -1), (2**64 - 1, -1), (2**63, -(2**63)), (7, 7)]):
        request = make_request()
        request.params = SamplingParams(max_tokens=1, seed=seed)
        request.arrival = arrival
        table.update(request, [])
        assert table.seeds[1] == held
