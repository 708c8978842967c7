"""The page pool: reference counts for the pages of KV memory.

Every page but the null page is in exactly one place: *in use* (referenced by at least one request),
*evictable* (unreferenced, but published in the prefix cache) or *free*.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from engine.prefix_cache import PrefixCache

NULL_PAGE = 0
"""Never handed out: padded rows and rejected tokens may read and write it at will."""


class OutOfPagesError(RuntimeError):
    """More pages were asked for than are free or evictable."""


class PagePool:
    """``num_pages`` pages, the null page included; ``num_pages - 1`` of them can be handed out.

    Allocation takes free pages first, then evicts the cached page that was released longest ago.
    No operation costs more than the number of pages it names.
    """

    def __init__(self, num_pages: int, cache: PrefixCache) -> None:
        self._cache = cache
        self._num_references = [0] * num_pages
        self._free = list(range(num_pages - 1, NULL_PAGE, -1))  # a stack: low pages come first
        self._evictable: OrderedDict[int, None] = OrderedDict()  # least recently used first

    @property
    def num_pages(self) -> int:
        """Pages that can be handed out: all but the null page."""
        return len(self._num_references) - 1

    @property
    def num_free(self) -> int:
        """Pages that hold nothing of use."""
        return len(self._free)

    @property
    def num_evictable(self) -> int:
        """Unreferenced pages that the prefix cache can still serve."""
        return len(self._evictable)

    @property
    def num_available(self) -> int:
        """Pages that ``allocate`` can hand out now."""
        return len(self._free) + len(self._evictable)

    def can_allocate(self, count: int, keeping: Sequence[int] = ()) -> bool:
        """Whether ``count`` pages can be handed out without evicting any page of ``keeping``."""
        return count + sum(page in self._evictable for page in keeping) <= self.num_available

    def allocate(self, count: int) -> list[int]:
        """Hand out pages with one reference each, or raise OutOfPagesError and change nothing."""
        if count > self.num_available:
            raise OutOfPagesError(f"{count} pages wanted, {self.num_available} available")
        pages = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for page in pages:
            self._num_references[page] = 1
        return pages

    def retain(self, pages: Iterable[int]) -> None:
        """Add a reference to pages that are in use or evictable, as found in the prefix cache."""
        for page in pages:
            if not self._num_references[page]:
                if page not in self._evictable:
                    raise ValueError(f"page {page} is neither in use nor cached: allocate it")
                del self._evictable[page]
            self._num_references[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Drop a reference to each page. Unused published pages stay until they are evicted.

        Pages released first are evicted first: name the tail of a chain before its head, because
        a chain without its head cannot be found.
        """
        for page in pages:
            if not self._num_references[page]:
                raise ValueError(f"page {page} is released, but nobody holds it")
            self._num_references[page] -= 1
            if not self._num_references[page]:
                self._retire(page)

    def _retire(self, page: int) -> None:
        if page in self._cache:
            self._evictable[page] = None
        else:
            self._free.append(page)

    def _evict(self) -> int:
        page, _ = self._evictable.popitem(last=False)
        self._cache.evict(page)
        return page

    def check_integrity(self, owned: Iterable[list[int]]) -> None:
        """Raise AssertionError unless every invariant holds.

        ``owned`` is the list of pages that each live request holds. O(all pages): for tests.
        """
        owners: Counter[int] = Counter()
        for pages in owned:
            assert len(set(pages)) == len(pages), f"a request holds a page twice: {pages}"
            owners.update(pages)
        for page, count in enumerate(self._num_references):
            assert count == owners[page], f"page {page}: {count} references, {owners[page]} owners"
        self._check_places({page for page in owners if owners[page]})

    def _check_places(self, in_use: set[int]) -> None:
        free, evictable = set(self._free), set(self._evictable)
        assert NULL_PAGE not in in_use | free | evictable, "the null page was handed out"
        assert len(free) == len(self._free), "a page is free twice"
        assert len(in_use) + len(free) + len(evictable) == self.num_pages, "pages leaked or shared"
        assert in_use | free | evictable == set(range(1, self.num_pages + 1)), "unknown pages"
        assert all(page in self._cache for page in evictable), "an evictable page is not cached"
        assert not any(page in self._cache for page in free), "a free page is still cached"
        cached = sum(page in self._cache for page in in_use | evictable)
        assert cached == len(self._cache), "the prefix cache knows a page that the pool does not"
