"""The scheduler: which requests run in the next step, on which pages. It imports no torch.

One step of the engine's loop: ``schedule()``; run the chunks and the draft blocks; ``chunk_done``
for every chunk; ``append`` for every decode and every last chunk; ``finish`` what ended.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from operator import attrgetter

from engine.config import ConfigError
from engine.messages import Stats
from engine.pages import PagePool
from engine.prefix_cache import PrefixCache
from engine.request import Request, RequestState

_by_order = attrgetter("order")


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Limits of one engine, in tokens except ``max_num_seqs``. Names as in ``engine.config``."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_draft_tokens: int
    page_size: int
    prefix_caching: bool = True

    @property
    def draft_block_len(self) -> int:
        """Tokens in a draft block: the bonus and its drafts."""
        return self.num_draft_tokens + 1

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold ``num_tokens`` tokens and the drafts after them."""
        return -(-(num_tokens + self.num_draft_tokens) // self.page_size)


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Known tokens ``start`` up to ``end`` of a request, to be computed and committed."""

    request: Request
    start: int
    end: int
    is_last: bool
    """Whether it ends with the last known token, so that the next one is sampled from it."""


@dataclass(slots=True)
class Schedule:
    """One step: chunks to compute, draft blocks to verify, and who lost their pages and slot."""

    prefills: list[PrefillChunk] = field(default_factory=list)
    decodes: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)


class Scheduler:
    """Continuous batching with chunked prefill, priorities, and preemption by recomputation.

    ``num_pages`` counts the null page. A step costs O(running requests + pages that change hands).
    """

    def __init__(self, limits: SchedulerLimits, num_pages: int) -> None:
        _check_limits(limits, num_pages - 1)
        self._limits = limits
        self._cache = PrefixCache()
        self._pool = PagePool(num_pages, self._cache)
        self._requests: dict[str, Request] = {}
        self._waiting: list[Request] = []  # both lists in the requests' order, oldest first
        self._running: list[Request] = []
        self._free_slots = list(range(limits.max_num_seqs))  # a heap
        self._arrivals = count()
        self._num_preemptions = 0
        self._prefix_cache_queries = 0
        self._prefix_cache_hits = 0

    @property
    def has_work(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self._requests)

    def add(self, request: Request) -> None:
        """Queue a new request. Its arrival is its place in the sequence of ``add`` calls."""
        if request.request_id in self._requests:
            raise ValueError(f"request {request.request_id} exists already; use a new id")
        if not 1 <= len(request.token_ids) < self._limits.max_model_len:
            raise ValueError(
                f"request {request.request_id} has {len(request.token_ids)} tokens; expected at "
                f"least 1, and fewer than engine.max_model_len = {self._limits.max_model_len}"
            )
        request.arrival = next(self._arrivals)
        self._requests[request.request_id] = request
        insort(self._waiting, request, key=_by_order)

    def abort(self, request_id: str) -> Request | None:
        """Drop a waiting or running request and free what it holds. None if there is none."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        if request.state is RequestState.WAITING:
            _remove(self._waiting, request)
            del self._requests[request_id]
            request.state = RequestState.FINISHED
        else:
            self.finish(request)
        return request

    def finish(self, request: Request) -> None:
        """Free a running request's slot and pages; published pages stay in the prefix cache."""
        self._check_running(request)
        self._stop(request)
        del self._requests[request.request_id]
        request.state = RequestState.FINISHED

    def schedule(self) -> Schedule:
        """Decide the next step. Draft blocks come first, then begun prompts, then waiting ones."""
        schedule = Schedule()
        self._schedule_decodes(schedule)
        budget = self._limits.max_num_batched_tokens
        budget -= len(schedule.decodes) * self._limits.draft_block_len
        for request in self._prefills(admit=not schedule.preempted):
            chunk = _next_chunk(request, budget)
            schedule.prefills.append(chunk)
            budget -= chunk.end - chunk.start
            if budget == 0:
                break
        return schedule

    def chunk_done(self, chunk: PrefillChunk) -> None:
        """Commit a chunk whose K/V, target's and drafter's, are written or enqueued on the device.

        After the last chunk the caller samples the next token and calls ``append``.
        """
        request = chunk.request
        self._check_running(request)
        if request.num_computed != chunk.start:
            raise ValueError(
                f"request {request.request_id} has computed {request.num_computed} tokens, but "
                f"the chunk starts at {chunk.start}: is it from before a preemption?"
            )
        request.num_computed = chunk.end
        self._publish(request)

    def append(self, request: Request, token_ids: list[int]) -> None:
        """Add a step's emitted tokens. The last one is the new bonus; those before are committed.

        The caller has cut them at ``max_tokens``, the stop tokens and ``max_model_len``.
        """
        self._check_running(request)
        self._check_emitted(request, token_ids)
        request.token_ids += token_ids
        request.num_computed = len(request.token_ids) - 1
        request.state = RequestState.DECODING
        self._publish(request)

    def stats(self) -> Stats:
        """Gauges and counters. Free pages are empty, cached ones evictable; the rest is in use."""
        return Stats(
            num_requests_running=len(self._running),
            num_requests_waiting=len(self._waiting),
            num_kv_pages=self._pool.num_pages,
            num_free_kv_pages=self._pool.num_free,
            num_cached_kv_pages=self._pool.num_evictable,
            num_preemptions=self._num_preemptions,
            prefix_cache_queries=self._prefix_cache_queries,
            prefix_cache_hits=self._prefix_cache_hits,
        )

    def _schedule_decodes(self, schedule: Schedule) -> None:
        # A copy, because reserving preempts. Only later requests are ever preempted, so whoever
        # is in schedule.decodes stays there.
        for request in self._running.copy():
            if request.state is RequestState.DECODING and self._reserve(request, schedule):
                schedule.decodes.append(request)

    def _reserve(self, request: Request, schedule: Schedule) -> bool:
        """Give a request the pages of its whole draft block; False if it was preempted instead.

        The oldest request always succeeds: alone, it has the whole pool (see ``_check_limits``).
        """
        missing = self._limits.pages_for(len(request.token_ids)) - len(request.pages)
        while not self._pool.can_allocate(missing):
            newest = self._running[-1]
            self._preempt(newest)
            schedule.preempted.append(newest)
            if newest is request:
                return False
        request.pages += self._pool.allocate(missing)
        return True

    def _preempt(self, request: Request) -> None:
        self._stop(request)
        request.state = RequestState.WAITING
        request.num_computed = 0
        request.num_preemptions += 1
        self._num_preemptions += 1
        insort(self._waiting, request, key=_by_order)

    def _stop(self, request: Request) -> None:
        """Take a request out of the running ones, and its pages and slot from it."""
        assert request.slot is not None
        _remove(self._running, request)
        self._pool.release(reversed(request.pages))  # a chain's tail is evicted before its head
        heappush(self._free_slots, request.slot)
        request.pages, request.slot = [], None

    def _prefills(self, admit: bool) -> Iterator[Request]:
        """Unfinished prefills, then waiting requests as far as each can be admitted in its turn.

        Lazy: a request is admitted only when the consumer has tokens left for it.
        """
        prefilling = [r for r in self._running if r.state is RequestState.PREFILLING]
        yield from prefilling
        while admit and self._waiting and self._free_slots and self._admit(self._waiting[0]):
            yield self._waiting.pop(0)

    def _admit(self, request: Request) -> bool:
        """Give a slot, and pages for all known tokens and the first drafts; False if pages lack."""
        hits = self._lookup(request)
        missing = self._limits.pages_for(len(request.token_ids)) - len(hits)
        if not self._pool.can_allocate(missing, keeping=hits):
            return False
        self._pool.retain(hits)
        request.pages = hits + self._pool.allocate(missing)
        request.num_offered_pages = len(hits)
        request.num_computed = len(hits) * self._limits.page_size
        request.slot = heappop(self._free_slots)
        request.state = RequestState.PREFILLING
        self._count_cached(request)
        insort(self._running, request, key=_by_order)
        return True

    def _lookup(self, request: Request) -> list[int]:
        """Cached pages of the known tokens but the last: one must be computed to sample from."""
        if not self._limits.prefix_caching:
            return []
        num_pages = (len(request.token_ids) - 1) // self._limits.page_size
        return self._cache.lookup(request.hash_pages(num_pages, self._limits.page_size))

    def _count_cached(self, request: Request) -> None:
        """Count prompt tokens at the first admission: later hits are the request's own pages."""
        if not self._limits.prefix_caching or request.num_preemptions:
            return
        request.num_cached_tokens = min(request.num_computed, request.prompt_len)
        self._prefix_cache_queries += request.prompt_len
        self._prefix_cache_hits += request.num_cached_tokens

    def _publish(self, request: Request) -> None:
        """Offer the pages that committed tokens have filled since the last time."""
        num_full = request.num_computed // self._limits.page_size
        if not self._limits.prefix_caching or num_full == request.num_offered_pages:
            return
        hashes = request.hash_pages(num_full, self._limits.page_size)
        for index in range(request.num_offered_pages, num_full):
            self._cache.publish(request.pages[index], hashes[index])
        request.num_offered_pages = num_full

    def _check_running(self, request: Request) -> None:
        if request.slot is None or self._requests.get(request.request_id) is not request:
            raise ValueError(
                f"request {request.request_id} does not run ({request.state.name}): "
                "drop results of requests that were preempted, aborted or finished"
            )

    def _check_emitted(self, request: Request, token_ids: list[int]) -> None:
        known, limits = len(request.token_ids), self._limits
        decoding = request.state is RequestState.DECODING
        if not decoding and request.num_computed < known:
            raise ValueError(f"request {request.request_id} has unfinished chunks: none to append")
        if not 1 <= len(token_ids) <= (limits.draft_block_len if decoding else 1):
            raise ValueError(f"request {request.request_id} cannot emit {len(token_ids)} tokens")
        if known + len(token_ids) > limits.max_model_len:
            raise ValueError(f"request {request.request_id} grows past engine.max_model_len")

    def check_integrity(self) -> None:
        """Raise AssertionError unless every invariant holds. O(all pages): for tests."""
        self._cache.check_integrity()
        self._pool.check_integrity(request.pages for request in self._running)
        assert self._waiting == sorted(self._waiting, key=_by_order), "waiting out of order"
        assert self._running == sorted(self._running, key=_by_order), "running out of order"
        assert {*self._waiting, *self._running} == set(self._requests.values()), "requests leaked"
        assert len(self._waiting) + len(self._running) == len(self._requests), "listed twice"
        slots = self._free_slots + [r.slot for r in self._running if r.slot is not None]
        assert sorted(slots) == list(range(self._limits.max_num_seqs)), "slots leaked or shared"
        for request in self._waiting:
            assert request.state is RequestState.WAITING, f"{request} is not waiting"
            assert not request.pages, f"{request} waits with pages"
            assert request.slot is None, f"{request} waits with a slot"
            assert request.num_computed == 0, f"{request} waits with committed tokens"
        for request in self._running:
            self._check_progress(request)
            self._check_published(request)

    def _check_progress(self, request: Request) -> None:
        known = len(request.token_ids)
        if request.state is RequestState.DECODING:
            assert request.num_computed == known - 1, f"{request}: only the bonus is uncommitted"
        else:
            assert request.state is RequestState.PREFILLING, f"{request} runs in a wrong state"
            assert request.num_computed <= known, f"{request} computed unknown tokens"
            assert len(request.pages) == self._limits.pages_for(known), f"{request} lacks pages"
        assert len(request.pages) <= self._limits.pages_for(known), f"{request}: too many pages"
        assert len(request.pages) * self._limits.page_size >= request.num_computed, f"{request}"

    def _check_published(self, request: Request) -> None:
        """Published pages hold committed tokens only, under the hash of exactly these tokens."""
        num_full = request.num_computed // self._limits.page_size
        expected = request.hash_pages(num_full, self._limits.page_size)
        for index, page in enumerate(request.pages):
            digest = self._cache.hash_of(page)
            assert digest is None or index < num_full, f"{request}: page {page} is not committed"
            assert digest in (None, *expected[index : index + 1]), f"{request}: page {page} differs"


def _next_chunk(request: Request, budget: int) -> PrefillChunk:
    """The next uncomputed tokens of a request, ``budget`` of them at most."""
    start, known = request.num_computed, len(request.token_ids)
    if start == known:
        raise ValueError(
            f"request {request.request_id} has nothing left to compute: "
            "append its next token after its last chunk, before the next schedule"
        )
    end = min(known, start + budget)
    return PrefillChunk(request, start, end, is_last=end == known)


def _remove(ordered: list[Request], request: Request) -> None:
    del ordered[bisect_left(ordered, request.order, key=_by_order)]


def _check_limits(limits: SchedulerLimits, num_pages: int) -> None:
    """Refuse limits under which some request could never be prefilled, or never finish."""
    blocks = limits.max_num_seqs * limits.draft_block_len
    if limits.max_num_batched_tokens <= blocks:
        raise ConfigError(
            f"engine.max_num_batched_tokens = {limits.max_num_batched_tokens} leaves no room for "
            f"a prompt chunk beside {limits.max_num_seqs} draft blocks of {limits.draft_block_len}"
            f" tokens: raise it above {blocks}, or lower engine.max_num_seqs"
        )
    if num_pages < limits.pages_for(limits.max_model_len):
        raise ConfigError(
            f"engine.max_model_len = {limits.max_model_len} does not fit: with "
            f"{limits.num_draft_tokens} drafts it needs "
            f"{limits.max_model_len + limits.num_draft_tokens} tokens of KV cache, which holds "
            f"{num_pages * limits.page_size} tokens: lower engine.max_model_len or raise "
            "engine.kv_cache_gib"
        )
