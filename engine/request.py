"""A request inside the engine: token ids, progress, and the pages and slot that it holds.

*Committed*, *bonus*, *drafts* and *draft block* are defined in ``engine.messages``.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from engine.messages import SamplingParams, Submit
from engine.prefix_cache import page_hash, root_hash


class RequestState(Enum):
    """Where a request stands. Preemption leads from the middle two back to WAITING."""

    WAITING = auto()
    """Holds neither pages nor a slot."""
    PREFILLING = auto()
    """Holds both. Some known tokens are not committed, or the next token is not appended yet."""
    DECODING = auto()
    """Holds both. All tokens but the bonus are committed."""
    FINISHED = auto()
    """Left the scheduler: finished or aborted."""


@dataclass(slots=True, eq=False)
class Request:
    """One sequence. Compared by identity; changed by the scheduler only.

    Invariant while decoding: ``num_computed == len(token_ids) - 1`` (the bonus is the last token).
    """

    request_id: str
    params: SamplingParams
    prompt_len: int
    """Tokens of the prompt: the first ones of ``token_ids``."""
    token_ids: list[int]
    """The prompt and every emitted token, the bonus included."""
    priority: int = 0
    """Lower runs earlier."""
    cache_salt: str = ""
    """Pages are shared only between requests of equal salt."""
    arrival: int = -1
    """Sequence number, given by ``Scheduler.add`` and kept through preemption."""
    state: RequestState = RequestState.WAITING
    num_computed: int = 0
    """Committed tokens: positions below it have their keys and values in ``pages``."""
    pages: list[int] = field(default_factory=list)
    """Page ``i`` holds positions ``i * page_size`` up to ``(i + 1) * page_size``."""
    slot: int | None = None
    """Row in the device state, in ``range(max_num_seqs)``; None while waiting."""
    num_cached_tokens: int = 0
    """Prompt tokens that the prefix cache served when the request was first admitted."""
    num_preemptions: int = 0
    """Also tells results of an earlier admission from those of the present one."""
    page_hashes: list[bytes] = field(default_factory=list)
    """Hashes of the leading full pages, as far as they have been needed."""
    num_offered_pages: int = 0
    """Leading pages that came from the prefix cache or have been offered to it."""

    @classmethod
    def from_submit(cls, message: Submit) -> "Request":
        """A waiting request. Tokens that it emitted before (recovery) are known, not computed."""
        return cls(
            request_id=message.request_id,
            params=message.params,
            prompt_len=len(message.prompt_token_ids),
            token_ids=message.prompt_token_ids + message.output_token_ids,
            priority=message.priority,
            cache_salt=message.cache_salt,
        )

    @property
    def order(self) -> tuple[int, int]:
        """Requests run in this order; the last one running is preempted first."""
        return self.priority, self.arrival

    @property
    def num_output_tokens(self) -> int:
        """Tokens emitted so far, those before a recovery included."""
        return len(self.token_ids) - self.prompt_len

    def hash_pages(self, count: int, page_size: int) -> list[bytes]:
        """Hashes of the first ``count`` pages, which known tokens must fill.

        Known tokens never change, so neither do their hashes: each is computed once.
        """
        hashes = self.page_hashes
        for index in range(len(hashes), count):
            parent = hashes[-1] if hashes else root_hash(self.cache_salt)
            tokens = self.token_ids[index * page_size : (index + 1) * page_size]
            hashes.append(page_hash(parent, tokens))
        return hashes[:count]
