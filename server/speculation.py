"""Counting what speculation brought, for one request or for all."""

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

    def add(self, num_tokens: int, num_draft_tokens: int) -> None:
        """Count a step; one that verified no drafts is no speculative step.

        ``num_tokens`` are those that the usage counts too: accepted drafts behind a stop string,
        a stop token or max_tokens brought nobody anything.
        """
        if num_draft_tokens and num_tokens:
            self.histogram[num_tokens - 1] += 1
            self.num_draft_tokens += num_draft_tokens

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
