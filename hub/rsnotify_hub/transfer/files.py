"""Exports of a hub: the format of the file, and reading and importing one.

An export is lines of JSON, one record in each. The first record is the header, and the last counts
the others, so that a part of a file is no export. Between them are subscriptions, cursors of
brokers, and the fragments of each topic's log in their order. Cursors are positions of these
fragments. A later version may add fields; a hub ignores those that it does not know. What a record
contains is checked as requests of publishers and subscribers are, since a file may have been
changed, or written by another program.

Theory of an import. The store may have other positions, or logs of its own. The log of a topic is
imported if the store has none, or one with the same beginning, as after an interrupted import, or
an older whole content. There each cursor moves to the same fragment. In any other log it moves to
the beginning, so that the subscriber receives all that this log keeps: some of it twice, but
nothing is left out. Logs come first, since nodes that run deliver to a subscription as soon as it
is stored.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
from msgspec import Meta, Struct

from rsnotify import __version__
from rsnotify.errors import ConfigurationError, DocumentError
from rsnotify.format.datetimes import Instant
from rsnotify.format.model import DEFAULT_LIMITS, DocumentLimits
from rsnotify.runtime.state_folders import flush
from rsnotify_hub.filtering import selection_of_key
from rsnotify_hub.fragments import Fragment, stored_fragment
from rsnotify_hub.intake import read_content
from rsnotify_hub.refusals import Refusal
from rsnotify_hub.store.interface import LogEntry, LogMoved, LogState, Store, SubscriptionRecords
from rsnotify_hub.subscriptions import Subscription, is_expired
from rsnotify_hub.urls import check_url
from rsnotify_hub.websub.forms import check_secret

#: The version of the format. A hub reads exports of this version and older ones.
VERSION = 1

_Datetime = Annotated[datetime, Meta(tz=True)]
_Position = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class ExportHeader(Struct, frozen=True, kw_only=True, tag="header"):
    """The first record: the version of the format, and when and by which `hub` it was written."""

    version: int = VERSION
    exported: _Datetime
    hub: str


class ExportedSubscription(Struct, frozen=True, kw_only=True, tag="subscription"):
    """A WebSub subscription; `position` is that of the last fragment that was delivered."""

    topic: str
    callback: str
    secret: str | None
    expires: _Datetime
    position: _Position
    suspended: bool
    client: str


class ExportedBroker(Struct, frozen=True, kw_only=True, tag="broker"):
    """The positions up to which a broker has topics, and parts of them, by their keys."""

    broker: str
    cursors: dict[str, int]


class ExportedFragment(Struct, frozen=True, kw_only=True, tag="fragment", rename={"from_": "from"}):
    """A fragment of a topic's log; those of a topic follow each other in increasing positions."""

    topic: str
    position: _Position
    content_type: str
    from_: _Datetime | None
    until: _Datetime
    begins: _Datetime
    heartbeat: bool
    whole: bool
    body: bytes


class ExportEnd(Struct, frozen=True, kw_only=True, tag="end"):
    """The last record, and the number of those between the header and this one."""

    records: int


Exported = ExportedSubscription | ExportedBroker | ExportedFragment

#: Why a line is refused; OverflowError is that of a datetime of the year 1 or 9999.
_WRONG = (
    msgspec.DecodeError,
    RecursionError,
    OverflowError,
    ValueError,
    Refusal,
    DocumentError,
)

_decoder = msgspec.json.Decoder(
    ExportHeader | ExportedSubscription | ExportedBroker | ExportedFragment | ExportEnd
)
_encoder = msgspec.json.Encoder()


def encode(record: ExportHeader | Exported | ExportEnd) -> bytes:
    """Return a record as a line."""
    return _encoder.encode(record) + b"\n"


def decode(lines: Iterable[bytes], limits: DocumentLimits = DEFAULT_LIMITS) -> Iterator[Exported]:
    """Yield the records of an export; `limits` are those of what is published.

    Raises:
        ConfigurationError: A line is wrong, or the end is missing.
    """
    numbered = enumerate(lines, 1)
    _check_header(next(numbered, (1, b""))[1])
    known = _Known(limits)
    for number, line in numbered:
        try:
            record = _decoder.decode(line)
            if isinstance(record, ExportEnd):
                if record.records != number - 2 or next(numbered, None) is not None:
                    raise ValueError("the end is not where it should be")
                return
            if isinstance(record, ExportHeader):
                raise ValueError("a second header")
            known.check(record)
        except _WRONG as error:
            raise ConfigurationError(f"line {number} is wrong: {error}") from None
        yield record
    raise ConfigurationError("it is incomplete: its last line is missing")


def _check_header(line: bytes) -> None:
    try:
        header = _decoder.decode(line)
    except (msgspec.DecodeError, RecursionError, ValueError):
        header = None
    if not isinstance(header, ExportHeader):
        raise ConfigurationError("it is not an export of a hub")
    if header.version > VERSION:
        raise ConfigurationError(
            f"it has version {header.version}, and this hub reads version {VERSION}: upgrade it"
        )


class _Known:
    """What the records so far contain, each of which may be there once."""

    def __init__(self, limits: DocumentLimits) -> None:
        self._limits = limits
        self._names = set[tuple[str, ...]]()
        self._topic: str | None = None
        self._position = 0

    def check(self, record: Exported) -> None:
        """Check that a record is valid, and may follow those before it.

        Raises:
            ValueError, Refusal or DocumentError: It is not.
        """
        match record:
            case ExportedSubscription():
                check_url(record.topic, "topic")
                check_url(record.callback, "callback")
                if record.secret is not None:
                    check_secret(record.secret)
                subscription_of(record, record.position)
                self._add("subscription", record.topic, record.callback)
            case ExportedBroker():
                self._add("broker", record.broker)
                for key in record.cursors:
                    if key:
                        check_url(selection_of_key(key).topic, "topic")
            case ExportedFragment():
                self._check_fragment(record)
                if record.topic != self._topic:
                    check_url(record.topic, "topic")
                    self._add("log", record.topic)
                    self._topic = record.topic
                elif record.position <= self._position:
                    raise ValueError("the positions of a log must increase")
                self._position = record.position

    def _check_fragment(self, record: ExportedFragment) -> None:
        if not record.content_type:
            raise ValueError("it has no content type")
        if len(record.body) > (most := self._limits.document_bytes):
            raise ValueError(f"its body is larger than {most} bytes: raise max_fragment_bytes")
        stated = fragment_of(record)
        content = read_content(
            record.body,
            content_type=record.content_type,
            received=stated.until,
            limits=self._limits,
        )
        if content != stated:
            raise ValueError("its interval or kind is not that of its body")

    def _add(self, *name: str) -> None:
        if name in self._names:
            raise ValueError(f"a second {name[0]} of the same name")
        self._names.add(name)


def exported_subscription(subscription: Subscription) -> ExportedSubscription:
    return ExportedSubscription(
        topic=subscription.topic,
        callback=subscription.callback,
        secret=subscription.secret,
        expires=subscription.expires,
        position=subscription.position,
        suspended=subscription.suspended,
        client=subscription.client,
    )


def subscription_of(record: ExportedSubscription, position: int) -> Subscription:
    """Return a subscription with the position that its cursor has in another store."""
    return Subscription(
        topic=record.topic,
        callback=record.callback,
        secret=record.secret,
        expires=record.expires.astimezone(UTC),
        position=position,
        suspended=record.suspended,
        client=record.client,
    )


def exported_fragment(topic: str, position: int, fragment: Fragment) -> ExportedFragment:
    return ExportedFragment(
        topic=topic,
        position=position,
        content_type=fragment.content_type,
        from_=fragment.from_,
        until=fragment.until,
        begins=fragment.begins,
        heartbeat=fragment.heartbeat,
        whole=fragment.whole,
        body=fragment.body,
    )


def fragment_of(record: ExportedFragment) -> Fragment:
    return stored_fragment(
        body=record.body,
        content_type=record.content_type,
        from_=None if record.from_ is None else record.from_.astimezone(UTC),
        until=record.until.astimezone(UTC),
        begins=record.begins.astimezone(UTC),
        heartbeat=record.heartbeat,
        whole=record.whole,
    )


class IgnoredNews:
    """A `LogListener` for a process that reads logs, and need not follow them."""

    def writing(self, topic: str, fragments: Sequence[Fragment]) -> None: ...

    def appended(
        self, topic: str, entries: Sequence[LogEntry], state: LogState, replaced: int | None
    ) -> None: ...

    def forgotten(self, topic: str) -> None: ...


async def read_store(store: Store) -> AsyncIterator[Exported]:
    """Yield the records of a store that was just opened.

    Nodes may run meanwhile: cursors are read before the logs, so that no fragment is missed.
    """
    stored = await store.records()
    for subscription in stored.subscriptions:
        yield exported_subscription(subscription)
    for broker, cursors in stored.brokers.items():
        yield ExportedBroker(broker=broker, cursors=dict(cursors))
    for state in await store.start(IgnoredNews()):
        async for entry in read_log(store, state.topic):
            yield exported_fragment(state.topic, entry.position, entry.fragment)


async def read_log(store: Store, topic: str) -> AsyncIterator[LogEntry]:
    """Yield the entries of a log."""
    position = 0
    while entries := await store.read(topic, after=position):
        for entry in entries:
            yield entry
        position = entries[-1].position


_PAGE_BYTES = 1_000_000
_PAGE_ENTRIES = 256


class ImportReport(Struct):
    """The numbers of records that were imported, and of those that were not."""

    subscriptions: int = 0
    expired: int = 0
    newer: int = 0
    logs: int = 0
    fragments: int = 0
    other_logs: int = 0


class _ImportedLog:
    """The positions of the fragments of a log in the file, and in the store.

    Attributes:
        appended: The number of fragments that were appended.
    """

    def __init__(self) -> None:
        self.appended = 0
        self._before: list[int] = []
        self._now: list[int] = []

    def add(self, before: int, now: int | None) -> None:
        """Add a fragment; the log had it already if it has no position now."""
        self._before.append(before)
        self._now.append(self.end if now is None else now)

    @property
    def end(self) -> int:
        return self._now[-1] if self._now else 0

    def moved(self, cursor: int) -> int:
        """Return a cursor of the file as one of the store."""
        number = bisect_right(self._before, cursor)
        return self._now[number - 1] if number else 0


async def import_records(store: Store, records: Iterable[Exported], now: Instant) -> ImportReport:
    """Import checked records into a store that was just opened; return what was imported.

    Raises:
        StorageError: The store failed. A part may be stored; the import may be repeated.
    """
    report = ImportReport()
    subscriptions: list[ExportedSubscription] = []
    brokers: list[ExportedBroker] = []

    def fragments() -> Iterator[ExportedFragment]:
        for record in records:
            match record:
                case ExportedSubscription():
                    subscriptions.append(record)
                case ExportedBroker():
                    brokers.append(record)
                case ExportedFragment():
                    yield record

    logs = await _import_logs(store, fragments(), report)

    def moved(key: str, cursor: int) -> int:
        log = logs.get(selection_of_key(key).topic)
        return 0 if log is None else log.moved(cursor)

    found = [subscription_of(each, moved(each.topic, each.position)) for each in subscriptions]
    valid = [each for each in found if not is_expired(each, now)]
    positions = {
        each.broker: {key: moved(key, cursor) for key, cursor in each.cursors.items()}
        for each in brokers
    }
    report.subscriptions = await store.restore(SubscriptionRecords(valid, positions))
    report.expired = len(found) - len(valid)
    report.newer = len(valid) - report.subscriptions
    return report


async def _import_logs(
    store: Store, fragments: Iterator[ExportedFragment], report: ImportReport
) -> dict[str, _ImportedLog]:
    """Import all logs; return those in which the cursors of the file have a place."""
    logs: dict[str, _ImportedLog] = {}
    await store.start(IgnoredNews())
    for topic, group in groupby(fragments, lambda each: each.topic):
        log = _ImportedLog()
        try:
            await _import_log(store, topic, group, log)
        except LogMoved:
            report.other_logs += 1
        else:
            logs[topic] = log
        report.logs += log.appended > 0
        report.fragments += log.appended
    return logs


async def _import_log(
    store: Store, topic: str, fragments: Iterator[ExportedFragment], log: _ImportedLog
) -> None:
    """Append to the log of a topic what it does not have.

    Raises:
        LogMoved: It has other fragments than the file, or a node appends to it meanwhile.
    """
    async for entry in read_log(store, topic):
        same = next(fragments, None)
        if same is None:
            return
        if same.body == entry.fragment.body:
            log.add(same.position, entry.position)
        elif _is_newer_content(same, entry.fragment):
            await _append(store, topic, [same], log, after=entry.position)
        else:
            raise LogMoved("the log has other fragments")
    for page in _pages(fragments):
        await _append(store, topic, page, log, after=log.end)


def _is_newer_content(record: ExportedFragment, stored: Fragment) -> bool:
    """Return whether a whole content is newer; subscribers must not receive the older one again."""
    return record.whole and stored.whole and record.until > stored.until


async def _append(
    store: Store, topic: str, page: list[ExportedFragment], log: _ImportedLog, *, after: int
) -> None:
    new = [fragment_of(each) for each in page]
    appended = await store.append(topic, new, after=after, replacing=None)
    positions = {entry.fragment.body: entry.position for entry in appended.entries}
    for each in page:
        log.add(each.position, positions.get(each.body))
    log.appended += len(appended.entries)


def _pages(fragments: Iterable[ExportedFragment]) -> Iterator[list[ExportedFragment]]:
    page: list[ExportedFragment] = []
    size = 0
    for each in fragments:
        page.append(each)
        size += len(each.body)
        if size > _PAGE_BYTES or len(page) == _PAGE_ENTRIES:
            yield page
            page, size = [], 0
    if page:
        yield page


class ExportCounts(Struct):
    """The numbers of exported records."""

    subscriptions: int = 0
    fragments: int = 0
    records: int = 0


async def write_export(path: Path, store: Store) -> ExportCounts:
    """Write a new file that only its owner may read; return what it has.

    Raises:
        ConfigurationError: The file exists, or cannot be written.
        StorageError: The store cannot be read.
    """
    counts = ExportCounts()
    with _new_file(path) as file:
        file.write(encode(ExportHeader(exported=datetime.now(UTC), hub=__version__)))
        async for record in read_store(store):
            file.write(encode(record))
            counts.records += 1
            counts.subscriptions += isinstance(record, ExportedSubscription)
            counts.fragments += isinstance(record, ExportedFragment)
        file.write(encode(ExportEnd(records=counts.records)))
    return counts


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """Return a context with a new file, which is deleted if an error ends it."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigurationError(f"{path} exists; name a new file") from None
    except OSError as error:
        raise _unusable("write", path, error) from None
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        flush(path.parent)
    except BaseException as error:
        path.unlink()
        if isinstance(error, OSError):
            raise _unusable("write", path, error) from None
        raise


def check_export(path: Path, limits: DocumentLimits) -> None:
    """Check a whole file; `limits` are those of what is published.

    Raises:
        ConfigurationError: It is not an export, or cannot be read.
    """
    try:
        for _ in decode(_lines_of(path), limits):
            pass
    except OSError as error:
        raise _unusable("read", path, error) from None
    except ConfigurationError as error:
        raise ConfigurationError(f"cannot import {path}: {error}") from None


async def read_export(path: Path, store: Store, limits: DocumentLimits) -> ImportReport:
    """Import a checked file into a store that was just opened; return what was imported."""
    with closing(_lines_of(path)) as lines:
        return await import_records(store, decode(lines, limits), datetime.now(UTC))


def _lines_of(path: Path) -> Generator[bytes, None, None]:
    with path.open("rb") as file:
        yield from file


def _unusable(action: str, path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"cannot {action} {path}: {error.strerror}")
