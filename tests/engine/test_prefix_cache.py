"""The prefix cache: hashes, longest prefixes, and the one-to-one map."""

import struct
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.prefix_cache import PrefixCache, page_hash, root_hash


def chain(salt: str, tokens: list[int], page_size: int) -> list[bytes]:
    hashes, parent = [], root_hash(salt)
    for start in range(0, len(tokens) - page_size + 1, page_size):
        parent = page_hash(parent, tokens[start : start + page_size])
        hashes.append(parent)
    return hashes


def test_hashes_are_chained_sha256_over_little_endian_int32() -> None:
    root = sha256(b"tenant").digest()
    first = sha256(root + struct.pack("<2i", 1, 258)).digest()
    assert root_hash("tenant") == root
    assert page_hash(root, [1, 258]) == first == sha256(root + b"\1\0\0\0\2\1\0\0").digest()
    assert chain("tenant", [1, 258, 3, 4, 5], 2) == [first, page_hash(first, [3, 4])]


tokens = st.lists(st.integers(0, 2), max_size=8)


@given(st.sampled_from(["", "a"]), tokens, st.sampled_from(["", "a"]), tokens)
def test_equal_hashes_mean_equal_salts_and_prefixes(
    salt_a: str, tokens_a: list[int], salt_b: str, tokens_b: list[int]
) -> None:
    pairs = zip(chain(salt_a, tokens_a, 2), chain(salt_b, tokens_b, 2), strict=False)
    for page, (hash_a, hash_b) in enumerate(pairs):
        end = 2 * (page + 1)
        assert (hash_a == hash_b) == (salt_a == salt_b and tokens_a[:end] == tokens_b[:end])


def test_lookup_finds_the_longest_prefix() -> None:
    cache, hashes = PrefixCache(), chain("", list(range(8)), 2)
    for page, digest in zip([7, 5, 6], hashes, strict=False):
        assert cache.publish(page, digest)
    assert cache.lookup(hashes) == [7, 5, 6]
    assert cache.lookup(hashes[:2]) == [7, 5]
    assert cache.lookup(chain("other", list(range(8)), 2)) == []
    cache.evict(5)
    assert cache.lookup(hashes) == [7]
    assert 5 not in cache
    assert 6 in cache
    cache.check_integrity()


def test_first_page_wins_and_publishes_once() -> None:
    cache, (digest, other) = PrefixCache(), chain("", [1, 2], 1)
    assert cache.publish(3, digest)
    assert not cache.publish(4, digest)
    assert cache.lookup([digest]) == [3]
    assert cache.hash_of(3) == digest
    assert cache.hash_of(4) is None
    with pytest.raises(ValueError, match="page 3 is published already"):
        cache.publish(3, other)
    assert len(cache) == 1
    cache.check_integrity()


def test_evicting_an_unpublished_page_is_an_error() -> None:
    with pytest.raises(KeyError):
        PrefixCache().evict(1)
