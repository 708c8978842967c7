"""The page pool: reference counts, eviction order, and misuse that must not go unnoticed."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.pages import NULL_PAGE, OutOfPagesError, PagePool
from engine.prefix_cache import PrefixCache


@pytest.fixture
def cache() -> PrefixCache:
    return PrefixCache()


@pytest.fixture
def pool(cache: PrefixCache) -> PagePool:
    return PagePool(5, cache)


def test_null_page_is_never_handed_out(pool: PagePool) -> None:
    assert pool.num_pages == 4
    assert sorted(pool.allocate(4)) == [1, 2, 3, 4]
    for misuse in (pool.retain, pool.release):
        with pytest.raises(ValueError, match="page 0"):
            misuse([NULL_PAGE])


def test_exhaustion_changes_nothing(pool: PagePool) -> None:
    held = pool.allocate(3)
    with pytest.raises(OutOfPagesError, match="2 pages wanted, 1 available"):
        pool.allocate(2)
    pool.check_integrity([held])


def test_double_release_raises(pool: PagePool) -> None:
    pages = pool.allocate(1)
    pool.release(pages)
    with pytest.raises(ValueError, match="nobody holds it"):
        pool.release(pages)


def test_retaining_a_free_page_raises(pool: PagePool) -> None:
    with pytest.raises(ValueError, match="neither in use nor cached"):
        pool.retain([1])


def test_shared_page_lives_until_its_last_reader_goes(pool: PagePool) -> None:
    pages = pool.allocate(1)
    pool.retain(pages)
    pool.release(pages)
    pool.check_integrity([pages])
    pool.release(pages)
    assert pool.num_free == 4


def test_free_pages_go_before_cached_ones_and_cached_ones_oldest_first(
    pool: PagePool, cache: PrefixCache
) -> None:
    a, b, c, d = pool.allocate(4)
    for page in (a, b, c):
        cache.publish(page, bytes([page]))
    pool.release([b, d, a, c])
    assert (pool.num_free, pool.num_evictable) == (1, 3)
    pool.retain([b])  # used again: now the last to go
    pool.release([b])
    assert pool.allocate(1) == [d]
    assert pool.allocate(2) == [a, c]
    assert b in cache
    assert a not in cache
    pool.check_integrity([[d], [a, c]])


def test_can_allocate_spares_the_pages_to_keep(pool: PagePool, cache: PrefixCache) -> None:
    first, second, *held = pool.allocate(4)
    cache.publish(first, b"first")
    pool.release([first, second])
    assert pool.can_allocate(2)
    assert not pool.can_allocate(2, keeping=[first])
    assert pool.can_allocate(2, keeping=held)


@pytest.mark.parametrize("owned", [[], [[1, 2]], [[1, 1]], [[1], [1]], [[0]]])
def test_integrity_check_finds_wrong_owners(pool: PagePool, owned: list[list[int]]) -> None:
    assert pool.allocate(1) == [1]
    pool.check_integrity([[1]])
    with pytest.raises(AssertionError):
        pool.check_integrity(owned)


def test_integrity_check_finds_a_free_page_that_is_cached(
    pool: PagePool, cache: PrefixCache
) -> None:
    cache.publish(1, b"nobody holds it")
    with pytest.raises(AssertionError, match="still cached"):
        pool.check_integrity([])


class Holders(RuleBasedStateMachine):
    """Holders allocate, share, publish and release; the pool must account for every page."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache()
        self.pool = PagePool(9, self.cache)
        self.held: list[list[int]] = []
        self.num_published = 0

    @rule(count=st.integers(0, 5))
    def allocate(self, count: int) -> None:
        available, in_use = self.pool.num_available, {page for held in self.held for page in held}
        if count > available:
            with pytest.raises(OutOfPagesError):
                self.pool.allocate(count)
            return
        self.held.append(self.pool.allocate(count))
        assert not in_use.intersection(self.held[-1])
        assert self.pool.num_available == available - count

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        for page in data.draw(st.sampled_from(self.held)):
            if page not in self.cache:
                self.num_published += 1
                self.cache.publish(page, self.num_published.to_bytes(4, "little"))

    @rule(count=st.integers(1, 3))
    def retain_cached(self, count: int) -> None:
        pages = [page for page in range(1, 9) if page in self.cache][:count]
        self.pool.retain(pages)
        self.held.append(pages)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.held) - 1))
        self.pool.release(reversed(self.held.pop(index)))

    @invariant()
    def pages_are_accounted_for(self) -> None:
        self.cache.check_integrity()
        self.pool.check_integrity(self.held)

    def teardown(self) -> None:
        while self.held:
            self.pool.release(self.held.pop())
        assert self.pool.num_available == self.pool.num_pages
        self.pool.check_integrity([])


TestHolders = Holders.TestCase
TestHolders.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
