"""The part of the slots' state that acceptance reads and advances."""

from typing import NamedTuple

from torch import Tensor

STOPPED = 1
EXHAUSTED = 2


class SlotState(NamedTuple):
    """Tensors of ``engine.slots.SlotTable``, one row per slot, by the same names.

    int64 ``[S]``: ``seq_len``, ``num_output``, ``max_output``, ``bonus``; ``stop_ids [S, N]``
    padded with -1; ``done [S]`` bool: a frozen slot emits nothing until the host clears the flag;
    ``output_counts [S, vocab]`` int32, or None where no request has penalties; ``seeds [S]``
    int64, which only synthetic acceptance needs.
    """

    seq_len: Tensor
    num_output: Tensor
    max_output: Tensor
    bonus: Tensor
    stop_ids: Tensor
    done: Tensor
    output_counts: Tensor | None = None
    seeds: Tensor | None = None
