"""Counting what speculation brought, for one request or for all."""

from engine.messages import Output
from server.protocol import SpeculativeDecoding


class SpeculationCounts:
    """Steps by the number of drafts they accepted, out of ``num_spec_tokens`` (K).

    ``synthetic``: they were accepted by chance, and every report must say so.
    """

    def __init__(self, num_spec_tokens: int, synthetic: bool = False) -> None:
        self.num_spec_tokens = num_spec_tokens
        self.synthetic = synthetic
        self.histogram = [0] * (num_spec_tokens + 1)
        self.num_draft_tokens = 0

    def add(self, output: Output) -> None:
        """Count a step; one that verified no drafts is no speculative step."""
        if output.num_draft_tokens and output.token_ids:
            self.histogram[len(output.token_ids) - 1] += 1
            self.num_draft_tokens += output.num_draft_tokens

    @property
    def num_steps(self) -> int:
        """Steps that verified drafts."""
        return sum(self.histogram)

    @property
    def num_accepted(self) -> int:
        """Drafts accepted."""
        return sum(accepted * steps for accepted, steps in enumerate(self.histogram))

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per speculative step; 1 means that no draft was ever accepted."""
        return 1 + self.num_accepted / max(self.num_steps, 1)

    def accepted_per_position(self) -> list[int]:
        """For each draft position, the steps that accepted it (and so all before it)."""
        return [sum(self.histogram[position + 1 :]) for position in range(self.num_spec_tokens)]

    def summary(self) -> SpeculativeDecoding | None:
        """The figures for a response; None if nothing was speculated."""
        if not self.num_draft_tokens:
            return None
        return SpeculativeDecoding(
            mean_acceptance_length=self.mean_acceptance_length,
            draft_acceptance_rate=self.num_accepted / self.num_draft_tokens,
            acceptance_histogram=self.histogram,
            num_spec_steps=self.num_steps,
            num_accepted_draft_tokens=self.num_accepted,
            num_draft_tokens=self.num_draft_tokens,
            num_spec_tokens=self.num_spec_tokens,
            synthetic=self.synthetic,
        )
