"""Compressed bodies are read in pieces of bounded size, and end."""

from __future__ import annotations

import gzip
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from itertools import chain, repeat

import pytest

from rsnotify_subscriber.fetching.responses import Inflater
from tests.growth import check_growth


@pytest.fixture(scope="module")
def bomb() -> bytes:
    return gzip.compress(bytes(20_000_000))


def pieces(chunks: Iterator[bytes] | list[bytes]) -> Iterator[bytes]:
    inflater = Inflater()
    for chunk in chunks:
        yield from inflater.feed(chunk)
    inflater.close()


@pytest.mark.parametrize("size", [1, 1_000, 100_000])
def test_a_bomb_comes_in_small_pieces(size: int, bomb: bytes) -> None:
    assert len(bomb) < 100_000
    tracemalloc.start()
    total = 0
    for piece in pieces([bomb[at : at + size] for at in range(0, len(bomb), size)]):
        total += len(piece)
        assert len(piece) <= 65_536
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total == 20_000_000
    assert peak < 10_000_000


def test_a_bomb_within_a_bomb_comes_in_small_pieces(bomb: bytes) -> None:
    total = 0
    for piece in pieces(pieces([gzip.compress(bomb)])):
        total += len(piece)
        assert len(piece) <= 65_536
    assert total == 20_000_000


@pytest.mark.parametrize(
    ("head", "empty"),
    [(b"", gzip.compress(b"")), (gzip.compress(b"")[:10], b"\x00\x00\x00\xff\xff")],
    ids=["members", "blocks"],
)
def test_compressed_nothing_ends(head: bytes, empty: bytes) -> None:
    with pytest.raises(zlib.error, match="hardly any content"):
        list(pieces(chain([head], repeat(empty * 1_000))))


def test_content_that_does_not_compress_is_no_fault() -> None:
    content = bytes(range(256)) * 20_000
    packed = gzip.compress(content, compresslevel=0)
    assert b"".join(pieces([packed[at : at + 10] for at in range(0, len(packed), 10)])) == content


@pytest.mark.parametrize("content", [b"", b"a", bytes(1_000)], ids=len)
def test_many_members_take_time_in_proportion(content: bytes) -> None:
    member = gzip.compress(content)

    def work(length: int) -> None:
        for _ in pieces([member * (length // len(member))]):
            pass

    check_growth(work, 100_000)


def test_nothing_waits_for_much_of_a_bomb(bomb: bytes) -> None:
    begun = time.thread_time()
    longest = 0.0
    for _ in pieces([bomb]):
        now = time.thread_time()
        longest, begun = max(longest, now - begun), now
    assert longest < 0.1
