"""The scheduler, run by a fake engine whose device remembers what was written on every page."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.config import ConfigError
from engine.messages import SamplingParams, Submit
from engine.pages import NULL_PAGE
from engine.request import Request, RequestState
from engine.scheduler import PrefillChunk, Schedule, Scheduler, SchedulerLimits

LIMITS = SchedulerLimits(
    max_num_seqs=2,
    max_num_batched_tokens=16,
    max_model_len=20,
    num_draft_tokens=3,
    page_size=4,
)


def make_request(
    request_id: str,
    prompt: Iterable[int],
    *,
    num_tokens: int = 4,
    priority: int = 0,
    salt: str = "",
) -> Request:
    return Request.from_submit(
        Submit(
            request_id=request_id,
            prompt_token_ids=list(prompt),
            params=SamplingParams(max_tokens=num_tokens),
            priority=priority,
            cache_salt=salt,
        )
    )


def next_token(token_ids: list[int]) -> int:
    """A greedy target: equal prefixes continue equally, so generated tokens can be shared too."""
    return (3 * sum(token_ids) + len(token_ids)) % 5


def continuation(token_ids: list[int], count: int) -> list[int]:
    known = token_ids.copy()
    for _ in range(count):
        known.append(next_token(known))
    return known[len(token_ids) :]


class FakeDevice:
    """Holds, for each written place, the salt and all tokens up to there: what K/V depend on."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.written: dict[tuple[int, int], object] = {}

    def place(self, request: Request, position: int) -> tuple[int, int]:
        page = request.pages[position // self.page_size]
        assert page != NULL_PAGE
        return page, position % self.page_size

    def write(self, request: Request, token_ids: list[int], start: int, end: int) -> None:
        for position in range(start, end):
            content = (request.cache_salt, tuple(token_ids[: position + 1]))
            self.written[self.place(request, position)] = content

    def check_committed(self, request: Request) -> None:
        """What the request would read is its own: no other request wrote there."""
        for position in range(request.num_computed):
            expected = (request.cache_salt, tuple(request.token_ids[: position + 1]))
            assert self.written[self.place(request, position)] == expected, (request, position)


class FakeEngine:
    """Steps a scheduler and checks every schedule against the scheduler's contract."""

    def __init__(self, limits: SchedulerLimits, num_pages: int) -> None:
        self.limits = limits
        self.scheduler = Scheduler(limits, num_pages)
        self.device = FakeDevice(limits.page_size)
        self.live: dict[str, Request] = {}
        self.computed: dict[str, int] = {}  # where the present admission's next chunk starts
        self.finished: list[str] = []

    def add(self, request: Request) -> Request:
        self.scheduler.add(request)
        self.live[request.request_id] = request
        return request

    def abort(self, request_id: str) -> None:
        assert self.scheduler.abort(request_id) is self.live.pop(request_id)
        self.computed.pop(request_id, None)
        assert self.scheduler.abort(request_id) is None

    def step(self, num_emitted: Callable[[], int] = lambda: 1) -> Schedule:
        before = {request: request.state for request in self.live.values()}
        schedule = self.scheduler.schedule()
        self.scheduler.check_integrity()
        self.check_schedule(schedule, before)
        self.check_chunks(schedule)
        for request in self.running():
            self.device.check_committed(request)
        for chunk in schedule.prefills:
            self.prefill(chunk)
        for request in schedule.decodes:
            self.decode(request, num_emitted())
        self.scheduler.check_integrity()
        return schedule

    def prefill(self, chunk: PrefillChunk) -> None:
        request = chunk.request
        self.device.write(request, request.token_ids, chunk.start, chunk.end)
        self.scheduler.chunk_done(chunk)
        if chunk.is_last:
            self.append(request, continuation(request.token_ids, 1))

    def decode(self, request: Request, num_emitted: int) -> None:
        """Verify a draft block whose first ``num_emitted - 1`` drafts are right."""
        bonus, drafts = len(request.token_ids) - 1, self.limits.num_draft_tokens
        emitted = continuation(request.token_ids, num_emitted)
        block = request.token_ids + emitted[:-1] + [-1] * (drafts - num_emitted + 1)
        self.device.write(request, block, bonus, bonus + drafts + 1)
        self.append(request, emitted)

    def append(self, request: Request, emitted: list[int]) -> None:
        left = request.params.max_tokens - request.num_output_tokens
        self.scheduler.append(request, emitted[:left])
        if left <= len(emitted):
            self.scheduler.finish(request)
            self.finished.append(request.request_id)
            del self.live[request.request_id], self.computed[request.request_id]

    def running(self) -> list[Request]:
        return sorted((r for r in self.live.values() if r.slot is not None), key=lambda r: r.order)

    def check_schedule(self, schedule: Schedule, before: dict[Request, RequestState]) -> None:
        assert schedule.decodes or schedule.prefills, "a step without progress"
        limits, decodes = self.limits, schedule.decodes
        num_tokens = len(decodes) * limits.draft_block_len
        num_tokens += sum(chunk.end - chunk.start for chunk in schedule.prefills)
        assert num_tokens <= limits.max_num_batched_tokens
        assert len(self.running()) <= limits.max_num_seqs
        for request in decodes:
            reserved = len(request.pages) * limits.page_size
            assert reserved >= len(request.token_ids) + limits.num_draft_tokens
        was_decoding = {r for r, state in before.items() if state is RequestState.DECODING}
        assert was_decoding - set(decodes) == was_decoding.intersection(schedule.preempted)
        assert decodes == sorted(decodes, key=lambda r: r.order)
        self.check_order(schedule, before)

    def check_order(self, schedule: Schedule, before: dict[Request, RequestState]) -> None:
        """Preemption takes the newest running requests, and admission the oldest waiting ones."""
        stayed = [r for r in self.running() if before[r] is not RequestState.WAITING]
        admitted = [r for r in self.running() if before[r] is RequestState.WAITING]
        waiting = [r for r in self.live.values() if r.slot is None]
        assert not (admitted and schedule.preempted)
        assert all(old.order < new.order for old in stayed for new in schedule.preempted)
        assert all(old.order < new.order for old in admitted for new in waiting)
        assert stayed or not schedule.preempted, "the oldest running request was preempted"

    def check_chunks(self, schedule: Schedule) -> None:
        """Each admission's chunks cover the request's tokens once, cached pages left out."""
        for request in schedule.preempted:
            assert self.computed.pop(request.request_id, None) is not None
        seen = set()
        for chunk in schedule.prefills:
            request = chunk.request
            assert request not in seen
            seen.add(request)
            cached = chunk.start if self.limits.prefix_caching else 0
            assert chunk.start == self.computed.setdefault(request.request_id, cached)
            assert chunk.start < chunk.end <= len(request.token_ids)
            assert chunk.is_last == (chunk.end == len(request.token_ids))
            self.computed[request.request_id] = chunk.end

    def drain(self, num_emitted: Callable[[], int] = lambda: 1) -> None:
        """Run until nothing is left, within a bound; then no page may be lost."""
        lengths = [r.prompt_len + r.params.max_tokens for r in self.live.values()]
        for _ in range((len(lengths) + 1) * sum(lengths)):
            if not self.scheduler.has_work:
                break
            self.step(num_emitted)
        assert not self.live, "starved"
        stats = self.scheduler.stats()
        assert stats.num_requests_running == stats.num_requests_waiting == 0
        assert stats.num_free_kv_pages + stats.num_cached_kv_pages == stats.num_kv_pages
        self.scheduler.check_integrity()


def ids(requests: Iterable[Request]) -> list[str]:
    return [request.request_id for request in requests]


def chunks(schedule: Schedule) -> list[tuple[str, int, int]]:
    return [(chunk.request.request_id, chunk.start, chunk.end) for chunk in schedule.prefills]


def test_one_request_from_prompt_to_finish() -> None:
    engine = FakeEngine(LIMITS, num_pages=8)
    request = engine.add(make_request("a", range(6), num_tokens=5))
    assert chunks(engine.step()) == [("a", 0, 6)]
    assert (request.state, request.num_computed, request.slot) == (RequestState.DECODING, 6, 0)
    assert len(request.token_ids) == 7
    assert ids(engine.step(lambda: 3).decodes) == ["a"]
    assert (len(request.token_ids), request.num_computed) == (10, 9)
    engine.step()
    assert engine.finished == ["a"]
    assert (request.state, request.slot, request.pages) == (RequestState.FINISHED, None, [])
    assert not engine.scheduler.has_work


def test_long_prompt_runs_in_chunks_beside_draft_blocks() -> None:
    engine = FakeEngine(replace(LIMITS, max_num_batched_tokens=10), num_pages=12)
    engine.add(make_request("a", range(4), num_tokens=9))
    engine.add(make_request("b", range(10, 25)))
    assert chunks(engine.step()) == [("a", 0, 4), ("b", 0, 6)]
    schedule = engine.step()
    assert (ids(schedule.decodes), chunks(schedule)) == (["a"], [("b", 6, 12)])
    assert chunks(engine.step()) == [("b", 12, 15)]
    assert ids(engine.step().decodes) == ["a", "b"]


def test_a_prefill_with_one_token_left_is_no_decode() -> None:
    engine = FakeEngine(replace(LIMITS, max_num_batched_tokens=9), num_pages=8)
    request = engine.add(make_request("a", range(10)))
    engine.step()
    assert request.num_computed == len(request.token_ids) - 1
    schedule = engine.step()
    assert (chunks(schedule), schedule.decodes) == ([("a", 9, 10)], [])


def test_admission_follows_priority_then_arrival() -> None:
    engine = FakeEngine(replace(LIMITS, max_num_seqs=1), num_pages=8)
    for request_id, priority in (("a", 1), ("b", 0), ("c", 1), ("d", -1)):
        engine.add(make_request(request_id, [1, 2], num_tokens=1, priority=priority))
    engine.drain()
    assert engine.finished == ["d", "b", "a", "c"]


def test_nobody_overtakes_a_request_that_does_not_fit() -> None:
    engine = FakeEngine(replace(LIMITS, max_num_seqs=3, max_num_batched_tokens=64), num_pages=8)
    engine.add(make_request("a", range(9), num_tokens=8))  # 3 of 7 pages
    engine.add(make_request("large", range(20, 37), num_tokens=1))  # 5 pages
    engine.add(make_request("small", [50], num_tokens=1))  # 1 page
    assert chunks(engine.step()) == [("a", 0, 9)]
    engine.drain()
    assert engine.finished == ["a", "large", "small"]


def test_lowest_free_slot_is_taken() -> None:
    engine = FakeEngine(replace(LIMITS, max_num_seqs=3), num_pages=20)
    a, b, c = (engine.add(make_request(name, [ord(name)], num_tokens=9)) for name in "abc")
    engine.step()
    assert (a.slot, b.slot, c.slot) == (0, 1, 2)
    engine.abort("b")
    engine.abort("a")
    d = engine.add(make_request("d", [1]))
    engine.step()
    assert (c.slot, d.slot) == (2, 0)


def test_preemption_takes_the_newest_and_keeps_its_tokens() -> None:
    engine = FakeEngine(LIMITS, num_pages=7)
    a = engine.add(make_request("a", range(5), num_tokens=12))
    b = engine.add(make_request("b", range(10, 15), num_tokens=12))
    waiting = engine.add(make_request("c", [9], num_tokens=1))
    while not (schedule := engine.step()).preempted:
        pass
    assert schedule.preempted == [b]
    assert schedule.decodes == [a]
    assert not schedule.prefills, "nobody is admitted in a step that preempted"
    assert (b.state, b.slot, b.pages, b.num_computed) == (RequestState.WAITING, None, [], 0)
    emitted = b.token_ids.copy()
    assert b.order < waiting.order
    engine.drain()
    assert b.token_ids[: len(emitted)] == emitted
    assert b.token_ids[5:] == continuation(list(range(10, 15)), 12)
    assert engine.finished[0] == "a"
    assert engine.scheduler.stats().num_preemptions == b.num_preemptions == 1


def test_newest_request_without_pages_preempts_itself() -> None:
    engine = FakeEngine(replace(LIMITS, max_num_batched_tokens=64), num_pages=7)
    engine.add(make_request("a", range(9), num_tokens=2, priority=1))
    b = engine.add(make_request("b", range(20, 29), num_tokens=2, priority=2))
    engine.step()
    schedule = engine.step()
    assert (ids(schedule.decodes), schedule.preempted) == (["a"], [b])


def test_prefilling_request_is_preempted_for_an_older_one() -> None:
    engine = FakeEngine(replace(LIMITS, max_num_batched_tokens=9), num_pages=7)
    a = engine.add(make_request("a", range(5), num_tokens=15))
    b = engine.add(make_request("b", range(20, 33), num_tokens=2))
    engine.step()
    schedule = engine.step()
    assert (schedule.decodes, schedule.preempted, schedule.prefills) == ([a], [b], [])


def test_prefix_hit_leaves_a_token_to_compute() -> None:
    engine = FakeEngine(LIMITS, num_pages=20)
    engine.add(make_request("a", range(8), num_tokens=9))
    engine.step()
    same = engine.add(make_request("same", range(8), num_tokens=1))
    assert chunks(engine.step()) == [("same", 4, 8)]
    assert same.num_cached_tokens == 4
    longer = engine.add(make_request("longer", [*range(8), 70], num_tokens=1))
    assert chunks(engine.step()) == [("longer", 8, 9)]
    assert longer.num_cached_tokens == 8
    stats = engine.scheduler.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (8 + 8 + 9, 12)


@pytest.mark.parametrize(
    ("salt", "prompt", "prefix_caching"),
    [("b", range(9), True), ("a", [5, *range(1, 9)], True), ("a", range(9), False)],
)
def test_no_prefix_hit(salt: str, prompt: Iterable[int], prefix_caching: bool) -> None:
    engine = FakeEngine(replace(LIMITS, prefix_caching=prefix_caching), num_pages=20)
    engine.add(make_request("first", range(9), salt="a"))
    engine.drain()
    engine.add(make_request("second", prompt, salt=salt))
    assert chunks(engine.step()) == [("second", 0, 9)]
    assert engine.scheduler.stats().prefix_cache_hits == 0


def test_pages_of_committed_output_are_published_and_others_are_not() -> None:
    engine = FakeEngine(LIMITS, num_pages=20)
    request = engine.add(make_request("a", range(6), num_tokens=3))
    engine.step()
    engine.step()
    assert (len(request.token_ids), request.num_computed) == (8, 7)
    follow_up = [*request.token_ids, 1]
    assert engine.scheduler._cache.hash_of(request.pages[1]) is None, "the bonus is not committed"
    engine.add(make_request("b", follow_up, num_tokens=1))
    assert chunks(engine.step()) == [("b", 4, 9)]
    engine.add(make_request("c", follow_up, num_tokens=1))
    assert chunks(engine.step()) == [("c", 8, 9)]


def test_readmission_does_not_count_cached_tokens() -> None:
    engine = FakeEngine(LIMITS, num_pages=7)
    engine.add(make_request("a", range(5), num_tokens=12))
    b = engine.add(make_request("b", range(10, 15), num_tokens=12))
    while not engine.step().preempted:
        pass
    engine.abort("a")
    assert engine.step().prefills[0].start > 0, "its own pages are still cached"
    assert b.num_cached_tokens == 0
    assert engine.scheduler.stats().prefix_cache_queries == 10


def test_tail_of_a_prefix_is_evicted_before_its_head() -> None:
    engine = FakeEngine(LIMITS, num_pages=7)
    engine.add(make_request("a", range(13), num_tokens=1))
    engine.drain()
    assert engine.scheduler.stats().num_cached_kv_pages == 3
    engine.add(make_request("b", range(20, 29), num_tokens=3))  # takes 3 free pages and 1 cached
    engine.drain()
    engine.add(make_request("c", range(13), num_tokens=1))
    assert chunks(engine.step()) == [("c", 8, 13)]


def test_prefix_hit_is_not_evicted_by_its_own_admission() -> None:
    engine = FakeEngine(replace(LIMITS, max_num_batched_tokens=64), num_pages=7)
    engine.add(make_request("a", range(9), num_tokens=1))
    engine.drain()
    engine.add(make_request("b", range(30, 38), num_tokens=9))
    engine.step()
    engine.add(make_request("c", [*range(8), *range(40, 47)], num_tokens=1))  # 5 pages, 2 cached
    assert engine.scheduler.stats().num_free_kv_pages == 1
    assert not engine.step().prefills, "its other 3 pages could only come from its own prefix"
    engine.drain()
    assert engine.finished == ["a", "b", "c"]


def test_recovered_request_continues_after_its_output() -> None:
    submit = Submit(
        request_id="a",
        prompt_token_ids=[1, 2, 3],
        params=SamplingParams(max_tokens=6),
        output_token_ids=continuation([1, 2, 3], 3),
    )
    engine = FakeEngine(LIMITS, num_pages=8)
    request = engine.add(Request.from_submit(submit))
    assert chunks(engine.step()) == [("a", 0, 6)]
    engine.drain()
    assert request.token_ids[3:] == continuation([1, 2, 3], 6)
    again = engine.add(Request.from_submit(submit))
    assert chunks(engine.step()) == [("a", 4, 6)]
    assert again.num_cached_tokens == 3, "of the 4 cached tokens, 3 are the prompt's"


def test_misuse_raises() -> None:
    scheduler = Scheduler(LIMITS, num_pages=8)
    request = make_request("a", range(6), num_tokens=9)
    scheduler.add(request)
    with pytest.raises(ValueError, match="exists already"):
        scheduler.add(make_request("a", [1]))
    for length in (0, 20):
        with pytest.raises(ValueError, match=r"fewer than engine\.max_model_len = 20"):
            scheduler.add(make_request("b", range(length)))
    with pytest.raises(ValueError, match=r"does not run \(WAITING\)"):
        scheduler.append(request, [1])
    (chunk,) = scheduler.schedule().prefills
    with pytest.raises(ValueError, match="unfinished chunks"):
        scheduler.append(request, [1])
    scheduler.chunk_done(chunk)
    with pytest.raises(ValueError, match="the chunk starts at 0"):
        scheduler.chunk_done(chunk)
    with pytest.raises(ValueError, match="nothing left to compute"):
        scheduler.schedule()
    with pytest.raises(ValueError, match="cannot emit 2 tokens"):
        scheduler.append(request, [1, 2])
    scheduler.append(request, [1])
    for token_ids in ([], [1] * 5):
        with pytest.raises(ValueError, match="cannot emit"):
            scheduler.append(request, token_ids)
    scheduler.finish(request)
    with pytest.raises(ValueError, match=r"does not run \(FINISHED\)"):
        scheduler.finish(request)


def test_growing_past_max_model_len_raises() -> None:
    engine = FakeEngine(LIMITS, num_pages=8)
    request = engine.add(make_request("a", range(19), num_tokens=9))
    engine.step()
    engine.step()
    with pytest.raises(ValueError, match=r"past engine\.max_model_len"):
        engine.step()
    assert len(request.token_ids) == 20


def test_token_budget_without_room_for_prompts_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens = 8 .* above 8, or lower"):
        Scheduler(replace(LIMITS, max_num_batched_tokens=8), num_pages=8)
    Scheduler(replace(LIMITS, max_num_batched_tokens=9), num_pages=8)


def test_pool_too_small_for_one_request_is_refused() -> None:
    expected = r"max_model_len = 20 .* needs 23 tokens .* holds 20 tokens: lower"
    with pytest.raises(ConfigError, match=expected):
        Scheduler(LIMITS, num_pages=6)
    Scheduler(LIMITS, num_pages=7)


@st.composite
def limits_and_pages(draw: st.DrawFn) -> tuple[SchedulerLimits, int]:
    max_num_seqs, num_drafts = draw(st.integers(1, 4)), draw(st.integers(0, 4))
    limits = SchedulerLimits(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs * (num_drafts + 1) + draw(st.integers(1, 12)),
        max_model_len=24,
        num_draft_tokens=num_drafts,
        page_size=draw(st.integers(1, 5)),
        prefix_caching=draw(st.sampled_from([True, True, False])),
    )
    return limits, limits.pages_for(limits.max_model_len) + 1 + draw(st.integers(0, 12))


PROMPT = [2, 0, 1, 1, 0, 2, 2, 1, 0, 1, 2, 0]
prompts = st.one_of(
    st.integers(1, len(PROMPT)).map(lambda length: PROMPT[:length]),
    st.lists(st.integers(0, 1), min_size=1, max_size=12),
)
request_args = st.tuples(prompts, st.integers(1, 12), st.integers(-1, 1), st.sampled_from("xxy"))


class RandomTraffic(RuleBasedStateMachine):
    """Requests come, abort, speculate with varying luck and finish, over a pool that is short."""

    @initialize(limits_and_pages=limits_and_pages())
    def start(self, limits_and_pages: tuple[SchedulerLimits, int]) -> None:
        self.engine = FakeEngine(*limits_and_pages)
        self.num_added = 0

    @rule(args=request_args)
    def add(self, args: tuple[list[int], int, int, str]) -> None:
        prompt, num_tokens, priority, salt = args
        name = str(self.num_added)
        self.num_added += 1
        self.engine.add(
            make_request(name, prompt, num_tokens=num_tokens, priority=priority, salt=salt)
        )

    @precondition(lambda self: self.engine.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.engine.abort(data.draw(st.sampled_from(list(self.engine.live))))

    @precondition(lambda self: self.engine.live)
    @rule(data=st.data(), count=st.integers(1, 4))
    def steps(self, data: st.DataObject, count: int) -> None:
        lengths = st.integers(1, self.engine.limits.draft_block_len)
        for _ in range(count):
            if self.engine.live:
                self.engine.step(lambda: data.draw(lengths))

    @invariant()
    def everything_is_accounted_for(self) -> None:
        if hasattr(self, "engine"):
            self.engine.scheduler.check_integrity()

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.drain()


TestRandomTraffic = RandomTraffic.TestCase
TestRandomTraffic.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


@settings(max_examples=200, deadline=None)
@given(limits_and_pages(), st.lists(request_args, min_size=1, max_size=8), st.randoms())
def test_every_request_finishes_with_the_same_tokens_as_alone(
    limits_and_pages: tuple[SchedulerLimits, int],
    many: list[tuple[list[int], int, int, str]],
    random: Random,
) -> None:
    engine = FakeEngine(*limits_and_pages)
    requests = [
        engine.add(make_request(str(i), prompt, num_tokens=count, priority=priority, salt=salt))
        for i, (prompt, count, priority, salt) in enumerate(many)
    ]
    engine.drain(lambda: random.randint(1, engine.limits.draft_block_len))
    for request, (prompt, num_tokens, _, _) in zip(requests, many, strict=True):
        assert request.token_ids == prompt + continuation(prompt, num_tokens)
    stats = engine.scheduler.stats()
    assert stats.prefix_cache_hits == sum(request.num_cached_tokens for request in requests)
