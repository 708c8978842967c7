"""The prefix cache: which page holds the keys and values of which token prefix.

A page is known by a chained SHA-256 over the salt and every token up to the page's end, so equal
hashes mean equal contents, positions included. Only full pages of committed tokens are published.
"""

import struct
from collections.abc import Sequence
from hashlib import sha256


def root_hash(salt: str) -> bytes:
    """The parent of a sequence's first page. Requests with different salts share nothing."""
    return sha256(salt.encode()).digest()


def page_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The hash of a full page: its parent's hash, then its tokens as little-endian int32."""
    return sha256(parent + struct.pack(f"<{len(token_ids)}i", *token_ids)).digest()


class PrefixCache:
    """A one-to-one map between page hashes and published pages.

    It knows nothing of reference counts: ``PagePool`` decides when an unused page goes, and calls
    ``evict``.
    """

    def __init__(self) -> None:
        self._pages: dict[bytes, int] = {}
        self._hashes: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._pages)

    def __contains__(self, page: int) -> bool:
        return page in self._hashes

    def hash_of(self, page: int) -> bytes | None:
        """The hash under which a page is published, or None."""
        return self._hashes.get(page)

    def lookup(self, hashes: Sequence[bytes]) -> list[int]:
        """The pages of the longest published prefix of a chain of hashes.

        The caller must reference the pages before it allocates, which could evict them.
        """
        pages: list[int] = []
        for digest in hashes:
            page = self._pages.get(digest)
            if page is None:
                break
            pages.append(page)
        return pages

    def publish(self, page: int, digest: bytes) -> bool:
        """Offer a full page that someone references. False if another page has this hash already.

        The first page wins: moving later readers to a second copy would gain nothing.
        """
        if page in self._hashes:
            raise ValueError(f"page {page} is published already; a page publishes once")
        if digest in self._pages:
            return False
        self._pages[digest] = page
        self._hashes[page] = digest
        return True

    def evict(self, page: int) -> None:
        """Forget a page, because its memory is about to be reused."""
        del self._pages[self._hashes.pop(page)]

    def check_integrity(self) -> None:
        """Raise AssertionError unless the two directions of the map agree."""
        assert len(self._pages) == len(self._hashes), "a hash without a page, or a page without one"
        for page, digest in self._hashes.items():
            assert self._pages.get(digest) == page, f"page {page} is published under another's hash"
