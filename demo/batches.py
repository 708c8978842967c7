"""Packs whole chats into rows of equal length, in a new order every epoch."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from demo.corpus import Corpus

ROW = 1024


@dataclass
class Batch:
    """All [rows, ROW]. `chat` numbers a row's chats (0: padding), `position` counts within the
    chat, `answer` numbers the answers (0: outside)."""

    tokens: Tensor
    chat: Tensor
    position: Tensor
    answer: Tensor


def epochs(corpus: Corpus, rows: int, seed: int, device: str) -> Iterator[Batch]:
    """Batches without end."""
    generator = torch.Generator().manual_seed(seed)
    for epoch in itertools.count():
        order = torch.randperm(len(corpus.lengths), generator=generator)
        packed = pack(corpus, order[~corpus.rare[order] | (order % 4 == epoch % 4)], device)
        for start in range(0, len(packed.tokens) - rows + 1, rows):
            part = slice(start, start + rows)
            yield Batch(
                packed.tokens[part], packed.chat[part], packed.position[part], packed.answer[part]
            )


def pack(corpus: Corpus, order: Tensor, device: str) -> Batch:
    """Chats in this order, each in the first row with room after the one before it."""
    order = order[corpus.lengths[order] <= ROW]
    lengths = corpus.lengths[order].long()
    starts, rows = _place(lengths.tolist())
    lengths, sources = lengths.to(device), _starts(corpus.lengths)[order].to(device)
    chat = torch.repeat_interleave(lengths)
    position = torch.arange(len(chat), device=device) - _starts(lengths)[chat]
    source = sources[chat] + position
    place = torch.tensor(starts, device=device)[chat] + position
    answer = corpus.answer.to(device)[source].long()

    def laid(values: Tensor) -> Tensor:
        return torch.zeros(rows * ROW, dtype=torch.long, device=device).scatter_(
            0, place, values.long()
        ).view(rows, ROW)  # fmt: skip

    return Batch(
        tokens=laid(corpus.tokens.to(device)[source]),
        chat=laid(chat + 1),
        position=laid(position),
        # No chat has 100 answers, so this is unique within the row.
        answer=laid(torch.where(answer > 0, chat * 100 + answer, 0)),
    )


def _place(lengths: list[int]) -> tuple[list[int], int]:
    """Where each chat starts in the rows laid end to end, and the number of rows."""
    starts, free = [], 0
    for length in lengths:
        if free % ROW + length > ROW:
            free += ROW - free % ROW
        starts.append(free)
        free += length
    return starts, -(-free // ROW)


def _starts(lengths: Tensor) -> Tensor:
    return lengths.long().cumsum(0) - lengths
