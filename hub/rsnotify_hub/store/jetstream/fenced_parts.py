"""The records in which cursors are divided (`FencedMap`), and reading and storing them unowned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar
from zlib import crc32

import msgspec
from msgspec import Struct

from rsnotify_hub.store.jetstream.bucket import Bucket

#: The bytes of a record beyond which the number of records increases. NATS accepts 1 MB.
PART_BYTES = 131_072
#: The part of these that records have at most when their number has increased.
FILLED = 0.75

#: The epoch of records that no node has written; that of the first owner is later.
NO_EPOCH = 0

K = TypeVar("K", bound=bytes | str)
V = TypeVar("V")


class FencedContent(Struct, Generic[K, V], frozen=True):
    """What one record has.

    Args:
        epoch: The epoch of the owner that has written it.
        parts: The number of records; it counts in the head.
        cursors: The cursors.
    """

    epoch: int
    parts: int
    cursors: dict[K, V]


class FencedFormat(Struct, Generic[K, V], frozen=True):
    """How a record is written and read; reading raises `StorageError`."""

    encode: Callable[[FencedContent[K, V]], bytes]
    decode: Callable[[bytes], FencedContent[K, V]]


async def read_fenced(bucket: Bucket, key: str, format: FencedFormat[K, V]) -> dict[K, V]:
    """Return cursors; this node need not own them."""
    while True:
        count, cursors = await _read_parts(bucket, key, format)
        _, head = await _read_part(bucket, key, format)
        if head is None or head.parts == count:  # otherwise some have moved to new records
            return cursors


async def _read_parts(
    bucket: Bucket, key: str, format: FencedFormat[K, V]
) -> tuple[int, dict[K, V]]:
    _, head = await _read_part(bucket, key, format)
    if head is None:
        return 0, {}
    cursors = assigned(head.cursors, 0, head.parts)
    for number in range(1, head.parts):
        _, part = await _read_part(bucket, part_key(key, number), format)
        if part is not None:
            cursors |= assigned(part.cursors, number, head.parts)
    return head.parts, cursors


async def _read_part(
    bucket: Bucket, key: str, format: FencedFormat[K, V]
) -> tuple[int, FencedContent[K, V] | None]:
    found = await bucket.get(key)
    if found is None or found.value is None:
        return (0 if found is None else found.revision), None
    return found.revision, format.decode(found.value)


async def store_fenced(
    bucket: Bucket, key: str, format: FencedFormat[K, V], cursors: dict[K, V]
) -> None:
    """Store cursors that no node owns; nothing if there are some, or a node is writing them."""
    if (await _read_part(bucket, key, format))[1] is not None:
        return
    total = sum(map(size_of, cursors, cursors.values()))
    count = 1
    while total > count * PART_BYTES * FILLED:
        count *= 2
    for number in reversed(range(count)):  # the head makes the others count
        revision, found = await _read_part(bucket, part_key(key, number), format)
        if found is not None and (number == 0 or found.epoch != NO_EPOCH):
            return
        content = FencedContent(NO_EPOCH, count, assigned(cursors, number, count))
        if await bucket.replace(part_key(key, number), format.encode(content), revision) is None:
            return


_encode = msgspec.msgpack.Encoder().encode


def part_key(key: str, number: int) -> str:
    return f"{key}.{number}" if number else key


def size_of(key: bytes | str, value: object) -> int:
    return len(_encode(key)) + len(_encode(value))


def number_of(key: bytes | str, count: int) -> int:
    return crc32(key.encode() if isinstance(key, str) else key) % count


def assigned(cursors: dict[K, V], number: int, count: int) -> dict[K, V]:
    """Return the cursors that are assigned to one of `count` records."""
    return {key: value for key, value in cursors.items() if number_of(key, count) == number}
