"""Stores cursors that have one writer at a time.

Every write is a compare-and-set that replaces a whole record. A new owner begins with a write, so
that the store refuses all later writes of the previous owner: the previous owner is *fenced*.

The cursors are divided among several records if necessary. The hash of a cursor's key determines
its record, so that only records with moved cursors have to be written. The first record, the
*head*, states the number of records. When a record becomes too large, the owner doubles the number,
repeatedly if necessary: it first writes the new records, with the cursors that now belong to them,
and then the head with the new number. Until the head is written, readers ignore the new records.
Afterwards, they ignore the old copies of the moved cursors. Therefore a crash in between loses
nothing. A new owner writes the head first, which fixes the number of records, and then the other
records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Generic
from zlib import crc32

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import StorageError
from rsnotify.runtime.tasks import cancel, run_together
from rsnotify_hub.store.interface import NotOwner
from rsnotify_jetstream.bucket import Bucket, StaleAnswer
from rsnotify_jetstream.cluster_records import FencedCursors, K, V, decode, encode

logger = logging.getLogger("rsnotify.hub.store")

#: Size of a record in bytes above which the number of records is increased. NATS accepts 1 MB.
RECORD_BYTES = 131_072
#: Maximum average size of the records after an increase, as a fraction of `RECORD_BYTES`.
MAX_FILL = 0.75
#: The epoch of records that were written without an owner. Owners have later epochs.
NO_EPOCH = 0
#: Seconds before a change is written, so that later changes can be written with it.
WRITE_DELAY_SECONDS = 0.5
#: Seconds before a failed write is retried.
RETRY_SECONDS = 1.0
#: Maximum number of consecutive stale answers. After more of them, NATS must have been restored
#: from a backup.
MAX_STALE_ANSWERS = 5

_encoder = msgspec.msgpack.Encoder()


class Unconfirmed(NotOwner):
    """This node may not write the cursors until it has confirmed that it still owns them."""


class OwnerRights(Struct, frozen=True):
    """An owner's right to write, since it acquired the cursors at an epoch.

    `may_write` returns whether it is still the owner. `lost` is called when another owner has
    written.
    """

    epoch: int
    may_write: Callable[[], bool]
    lost: Callable[[], None]


class FencedMap(Generic[K, V]):
    """A map of keys to cursors, stored in one or more records.

    `empty` is a record without cursors. `key` is the key of the head. The keys of the other records
    have a number appended.
    """

    def __init__(
        self, bucket: Bucket, key: str, empty: FencedCursors[K, V], rights: OwnerRights
    ) -> None:
        self._bucket = bucket
        self._key = key
        self._empty = replace(empty, epoch=rights.epoch)
        self._rights = rights
        self._records = [self._record(0)]
        self._growing: asyncio.Task[None] | None = None

    def _record(self, number: int) -> FencedRecord[K, V]:
        key = record_key(self._key, number)
        return FencedRecord(self._bucket, key, self._encode, self._rights)

    def _encode(self, cursors: dict[K, V]) -> bytes:
        return encode(replace(self._empty, parts=len(self._records), cursors=cursors))

    async def load(self) -> None:
        """Acquire the cursors from the previous owner, if any.

        Raises:
            NotOwner: A later owner has already written.
            StorageError: A read or write failed.
        """
        head = self._records[0]
        found = await self._read(head)
        self._records += [self._record(number) for number in range(1, found.parts)]
        self._fill(0, found.cursors)
        await head.claim()
        await run_together(*(self._load(number) for number in range(1, found.parts)))

    async def _load(self, number: int) -> None:
        part = self._records[number]
        self._fill(number, (await self._read(part)).cursors)
        await part.claim()

    async def _read(self, part: FencedRecord[K, V]) -> FencedCursors[K, V]:
        value = await part.read()
        found = self._empty if value is None else decode(value, type(self._empty))
        if found.epoch > self._rights.epoch:
            raise NotOwner("a later owner has written the cursors")
        return found

    def _fill(self, number: int, cursors: dict[K, V]) -> None:
        self._records[number].fill(assigned_cursors(cursors, number, len(self._records)))

    def get(self, key: K) -> V | None:
        return self._record_of(key).cursors.get(key)

    def set(self, key: K, value: V) -> None:
        """Set a cursor, and schedule the write of its record."""
        part = self._record_of(key)
        part.set(key, value)
        if part.size > RECORD_BYTES and self._growing is None:
            self._growing = asyncio.create_task(self._grow())

    def remove(self, key: K) -> None:
        """Remove a cursor, and schedule the write of its record."""
        self._record_of(key).remove(key)

    def keep(self, keys: Collection[K]) -> None:
        """Remove all other cursors, without scheduling the write of their records."""
        for part in self._records:
            part.fill({key: value for key, value in part.cursors.items() if key in keys})

    def all(self) -> dict[K, V]:
        return {key: value for part in self._records for key, value in part.cursors.items()}

    def _record_of(self, key: K) -> FencedRecord[K, V]:
        return self._records[record_number(key, len(self._records))]

    async def _grow(self) -> None:
        """Increase the number of records until none is too large."""
        try:
            while any(part.size > RECORD_BYTES for part in self._records):
                await _retried(self._divide)
        except NotOwner:
            self.close()
        finally:
            self._growing = None

    async def _divide(self) -> None:
        count, total = len(self._records), 2 * len(self._records)
        while sum(part.size for part in self._records) > total * RECORD_BYTES * MAX_FILL:
            total *= 2
        added = [self._record(number) for number in range(count, total)]
        self._copy_to(added)
        await run_together(*map(self._claim, added))
        self._copy_to(added)  # again, because cursors may have moved during the writes
        self._records += added
        self._fill(0, self._records[0].cursors)  # drop the copied cursors
        for part in (self._records[0], *added):
            part.changed()
        await _retried(self._records[0].write)
        for number in range(1, count):
            self._fill(number, self._records[number].cursors)

    async def _claim(self, part: FencedRecord[K, V]) -> None:
        try:
            await self._read(part)  # an earlier attempt may have left a record
        except NotOwner:
            self._rights.lost()
            raise
        await part.claim()

    def _copy_to(self, added: list[FencedRecord[K, V]]) -> None:
        """Copy to each new record the cursors that it will hold."""
        count = len(self._records)
        total = count + len(added)
        parts: list[dict[K, V]] = [{} for _ in range(total)]
        for part in self._records:
            for key, value in part.cursors.items():
                parts[record_number(key, total)][key] = value
        for new, cursors in zip(added, parts[count:], strict=True):
            new.fill(cursors)

    async def write(self) -> None:
        """Write all changed records. See `FencedRecord.write`."""
        if self._growing is not None:
            await asyncio.shield(self._growing)
        # Write the head first, because it may have a new number of records.
        await self._records[0].flush()
        await run_together(*(part.flush() for part in self._records[1:]))

    async def flush(self) -> None:
        """Write all changed records for the last time. See `write`."""
        if self._growing is not None:
            await cancel([self._growing])
            self._growing = None
        await self.write()

    def close(self) -> None:
        """Stop writing permanently."""
        growing = self._growing
        if growing is not None and growing is not asyncio.current_task():
            growing.cancel()
        for part in self._records:
            part.close()


class FencedRecord(Generic[K, V]):
    """A record of a `FencedMap`, which is written shortly after each change.

    `encode` returns the record with the given cursors.
    """

    def __init__(
        self, bucket: Bucket, key: str, encode: Callable[[dict[K, V]], bytes], rights: OwnerRights
    ) -> None:
        self.cursors: dict[K, V] = {}
        self.size = 0
        self._bucket = bucket
        self._key = key
        self._encode = encode
        self._rights = rights
        self._revision = 0
        #: The identifiers of failed writes, which NATS may nevertheless have stored.
        self._unanswered: set[str] = set()
        #: Number of consecutive stale answers.
        self._stale = 0
        self._changes = 0
        self._written = 0
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._is_closed = False

    def fill(self, cursors: dict[K, V]) -> None:
        self.cursors = cursors
        self.size = sum(map(encoded_size, cursors, cursors.values()))

    def set(self, key: K, value: V) -> None:
        self.size += encoded_size(key, value) - self._size_of(key)
        self.cursors[key] = value
        self.changed()

    def remove(self, key: K) -> None:
        self.size -= self._size_of(key)
        if self.cursors.pop(key, None) is not None:
            self.changed()

    def _size_of(self, key: K) -> int:
        value = self.cursors.get(key)
        return 0 if value is None else encoded_size(key, value)

    async def read(self) -> bytes | None:
        """Return the last value of the previous owner, which `claim` will replace."""
        value, self._revision = await self._bucket.latest(self._key)
        return value

    async def claim(self) -> None:
        """Write the record as the new owner.

        Raises:
            StorageError: The write failed, or another owner has written since `read`.
        """
        revision = await self._bucket.replace(self._key, self._encode(self.cursors), self._revision)
        if revision is None:
            raise StorageError("another node has just written the cursors")
        self._revision = revision

    def changed(self) -> None:
        """Schedule a write, because the record has changed."""
        self._changes += 1
        self._write_in(WRITE_DELAY_SECONDS)

    def _write_in(self, seconds: float) -> None:
        if self._timer is None and self._writing is None and not self._is_closed:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, self._write_soon)

    def _write_soon(self) -> None:
        self._timer = None
        self._writing = asyncio.create_task(self._write_pending())
        self._writing.add_done_callback(self._on_pending_written)

    def _on_pending_written(self, task: asyncio.Task[None]) -> None:
        self._writing = None
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or self._is_closed:
            return
        if error is None:
            if self._changes > self._written:
                self._write_in(WRITE_DELAY_SECONDS)
        elif isinstance(error, Unconfirmed):
            self._write_in(RETRY_SECONDS)
        elif isinstance(error, NotOwner):
            self.close()
        else:
            self._bucket.connection.warn(
                logger,
                "cannot save cursors, retrying; after a crash, some fragments would be delivered "
                f"twice: {error}",
            )
            self._write_in(RETRY_SECONDS)

    async def _write_pending(self) -> None:
        if self._changes > self._written:
            await self.write()

    async def write(self) -> None:
        """Write the record now, if it has changed.

        Raises:
            NotOwner: Another node has written the record, or this node is not the owner.
            StorageError: The write failed.
        """
        async with self._lock:
            if self._is_closed:
                raise NotOwner("another node owns these cursors")
            if not self._rights.may_write():
                raise Unconfirmed("this node has not confirmed that it owns these cursors")
            if self._changes == self._written:
                return  # a concurrent call has written it
            changes = self._changes
            try:
                revision = await self._bucket.replace(
                    self._key, self._encode(self.cursors), self._revision, self._unanswered
                )
            except StaleAnswer:
                self._stale += 1
                if self._stale <= MAX_STALE_ANSWERS:
                    raise
                revision = None
            if revision is None:
                self.close()
                self._rights.lost()
                raise NotOwner("another node has written these cursors")
            self._revision = revision
            self._written = changes
            self._stale = 0

    async def flush(self) -> None:
        """Write all changes now. See `write`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._changes > self._written:
            await self.write()

    def close(self) -> None:
        """Stop writing permanently."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is not None and self._writing is not asyncio.current_task():
            self._writing.cancel()


async def read_fenced(bucket: Bucket, key: str, empty: FencedCursors[K, V]) -> dict[K, V]:
    """Return the cursors, regardless of which node owns them."""
    head, _ = await _read_part(bucket, key, empty)
    while head is not None:
        count = head.parts
        cursors = assigned_cursors(head.cursors, 0, count)
        for number in range(1, count):
            part, _ = await _read_part(bucket, record_key(key, number), empty)
            if part is not None:
                cursors |= assigned_cursors(part.cursors, number, count)
        head, _ = await _read_part(bucket, key, empty)
        if head is None or head.parts == count:  # otherwise, some cursors moved to new records
            return cursors
    return {}


async def _read_part(
    bucket: Bucket, key: str, empty: FencedCursors[K, V]
) -> tuple[FencedCursors[K, V] | None, int]:
    value, revision = await bucket.latest(key)
    return None if value is None else decode(value, type(empty)), revision


async def store_fenced(
    bucket: Bucket, key: str, empty: FencedCursors[K, V], cursors: dict[K, V]
) -> None:
    """Store cursors that no node owns, unless there are any, or a node is writing them."""
    if (await _read_part(bucket, key, empty))[0] is not None:
        return
    total = sum(map(encoded_size, cursors, cursors.values()))
    count = 1
    while total > count * RECORD_BYTES * MAX_FILL:
        count *= 2
    for number in reversed(range(count)):  # the head last, because it makes the others valid
        found, revision = await _read_part(bucket, record_key(key, number), empty)
        if found is not None and (number == 0 or found.epoch != NO_EPOCH):
            return
        part = replace(empty, parts=count, cursors=assigned_cursors(cursors, number, count))
        if await bucket.replace(record_key(key, number), encode(part), revision) is None:
            return


def record_key(key: str, number: int) -> str:
    return f"{key}.{number}" if number else key


def encoded_size(key: bytes | str, value: object) -> int:
    return len(_encoder.encode(key)) + len(_encoder.encode(value))


def record_number(key: bytes | str, count: int) -> int:
    return crc32(key.encode() if isinstance(key, str) else key) % count


def assigned_cursors(cursors: dict[K, V], number: int, count: int) -> dict[K, V]:
    """Return the cursors that belong to one of `count` records."""
    return {key: value for key, value in cursors.items() if record_number(key, count) == number}


async def _retried(work: Callable[[], Awaitable[None]]) -> None:
    """Retry `work` until it succeeds. Raise `NotOwner` if this node is no longer the owner."""
    while True:
        try:
            return await work()
        except Unconfirmed:
            pass
        except NotOwner:
            raise
        except StorageError as error:
            logger.warning("cannot save cursors, retrying: %s", error)
        await asyncio.sleep(RETRY_SECONDS)
