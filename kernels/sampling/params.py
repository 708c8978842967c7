"""What sampling reads of the slots' state."""

from typing import NamedTuple

from torch import Tensor


class SlotParams(NamedTuple):
    """Tensors of ``engine.slots.SlotTable``, one row per slot, by the same names.

    ``[S]`` int64: ``seq_len``, ``num_output``, ``seeds``, ``top_k``, ``min_output``; float32:
    ``temperature``, ``top_p``, ``min_p`` and the penalties; bool ``has_logit_bias`` (the rows of
    ``logit_bias`` of other requests are stale). ``[S, vocab]``: ``output_counts`` int32,
    ``in_prompt`` bool, ``logit_bias`` float32. ``stop_ids [S, N]`` int64, padded with -1.

    Four groups may be None, each as a whole, and then cost nothing: cutoffs, penalties, bias,
    min_tokens. ``softcap``: logits become ``softcap * tanh(logits / softcap)`` first.
    """

    seq_len: Tensor
    num_output: Tensor
    temperature: Tensor
    seeds: Tensor
    top_k: Tensor | None = None
    top_p: Tensor | None = None
    min_p: Tensor | None = None
    repetition_penalty: Tensor | None = None
    frequency_penalty: Tensor | None = None
    presence_penalty: Tensor | None = None
    output_counts: Tensor | None = None
    in_prompt: Tensor | None = None
    logit_bias: Tensor | None = None
    has_logit_bias: Tensor | None = None
    min_output: Tensor | None = None
    stop_ids: Tensor | None = None
    softcap: float | None = None

    def check(self) -> None:
        """Raise ValueError unless each group is there as a whole or not at all."""
        for group in (
            ("top_k", "top_p", "min_p"),
            ("repetition_penalty", "frequency_penalty", "presence_penalty",
             "output_counts", "in_prompt"),
            ("logit_bias", "has_logit_bias"),
            ("min_output", "stop_ids"),
        ):  # fmt: skip
            if len({getattr(self, name) is None for name in group}) != 1:
                raise ValueError(f"SlotParams: pass all of {', '.join(group)}, or none of them")

    @property
    def changes_logits(self) -> bool:
        """Whether logits may differ from what the model computed before the temperature."""
        groups = self.repetition_penalty, self.logit_bias, self.softcap
        return any(group is not None for group in groups)
