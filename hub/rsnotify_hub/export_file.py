"""The export file of a hub: its format, and how to write, check and import it.

An export has one JSON record per line. The first record is the header. The last record states the
number of records between them, so that a truncated file is detected. The other records are
subscriptions, brokers' cursors, and topics with a whole content instead of changes. Later versions
may add fields, and a hub ignores unknown fields. Because a file may have been edited or generated
by another program, its records are checked like requests from publishers and subscribers.

Logs of changes are not exported, and those in exports of earlier versions are ignored. Each
fragment states its interval, so a Destination that missed a change detects a gap at the next
fragment or heartbeat, and reads the Source's lists. A whole content has no interval. A subscriber
would not notice that it missed the last one, so whole contents are exported.

A cursor is a position in a log of the exported store. In another store, the same position may
belong to a later fragment, and the subscriber would never receive the earlier ones. Every cursor is
therefore imported as 0: subscribers receive the whole log again, including duplicates. Contents are
imported first, because running nodes deliver to a subscription as soon as it is stored.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from rsnotify import __version__
from rsnotify.errors import ConfigurationError, DocumentError
from rsnotify.format.datetimes import Instant
from rsnotify.format.reader import DEFAULT_LIMITS, DocumentLimits
from rsnotify.runtime.reasons import reason_of
from rsnotify.runtime.state_folders import flush
from rsnotify_hub.filtering import selection_of_key
from rsnotify_hub.fragments import Fragment, FragmentKind
from rsnotify_hub.intake import read_content, whole_content
from rsnotify_hub.refusals import Refusal
from rsnotify_hub.store.interface import LogEntry, LogMoved, LogState, Store, SubscriptionRecords
from rsnotify_hub.urls import check_url
from rsnotify_hub.websub.forms import check_secret
from rsnotify_hub.websub_subscription import Subscription, is_expired

#: The version of the format. A hub reads exports of this version and older ones.
VERSION = 1

_Datetime = Annotated[datetime, Meta(tz=True)]
_Position = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class ExportHeader(Struct, frozen=True, kw_only=True, tag="header"):
    """The first record: the version of the format, when it was exported, and the hub's version."""

    version: int = VERSION
    exported: _Datetime
    hub: str


class ExportedSubscription(Struct, frozen=True, kw_only=True, tag="subscription"):
    """A WebSub subscription. `position` is the position of the last delivered fragment."""

    topic: str
    callback: str
    secret: str | None
    expires: _Datetime
    position: _Position
    suspended: bool
    client: str


class ExportedBroker(Struct, frozen=True, kw_only=True, tag="broker"):
    """A broker's cursors, by the keys of topics and filtered topics."""

    broker: str
    cursors: dict[str, int]


class ExportedFragment(Struct, frozen=True, kw_only=True, tag="fragment", rename={"from_": "from"}):
    """A topic's last whole content, with its body in Base64. Fragments of changes are ignored."""

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
    """The last record. `records` is the number of records between the header and this one."""

    records: int


Exported = ExportedSubscription | ExportedBroker | ExportedFragment

#: The errors raised for invalid lines. Datetimes in the years 1 and 9999 raise OverflowError.
_INVALID = (msgspec.DecodeError, RecursionError, OverflowError, ValueError, Refusal, DocumentError)

_decoder = msgspec.json.Decoder(
    ExportHeader | ExportedSubscription | ExportedBroker | ExportedFragment | ExportEnd
)


def encode(record: ExportHeader | Exported | ExportEnd) -> bytes:
    return msgspec.json.encode(record) + b"\n"


def decode(lines: Iterable[bytes], limits: DocumentLimits = DEFAULT_LIMITS) -> Iterator[Exported]:
    """Check and yield the records of an export. `limits` are the limits for published documents.

    Raises:
        ConfigurationError: A line is invalid, or the last line is missing.
    """
    numbered = enumerate(lines, 1)
    _check_header(next(numbered, (1, b""))[1])
    checker = _RecordChecker(limits)
    for number, line in numbered:
        try:
            record = _decoder.decode(line)
            if isinstance(record, ExportEnd):
                if record.records != number - 2 or next(numbered, None) is not None:
                    raise ValueError("the end record does not match the number of lines")
                return
            if isinstance(record, ExportHeader):
                raise ValueError("a second header")
            checker.check(record)
        except _INVALID as error:
            raise ConfigurationError(f"line {number} is invalid: {error}") from None
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


class _RecordChecker:
    """Checks records, and that no two records have the same name."""

    def __init__(self, limits: DocumentLimits) -> None:
        self._limits = limits
        self._names = set[tuple[str, ...]]()

    def check(self, record: Exported) -> None:
        """Raise one of `_INVALID` if a record is invalid or its name is not new."""
        match record:
            case ExportedSubscription():
                check_url(record.topic, "topic")
                check_url(record.callback, "callback")
                if record.secret is not None:
                    check_secret(record.secret)
                subscription_of(record)
                self._add("subscription", record.topic, record.callback)
            case ExportedBroker():
                self._add("broker", record.broker)
                for key in record.cursors:
                    if key:
                        check_url(selection_of_key(key).topic, "topic")
            case ExportedFragment(whole=True):
                check_url(record.topic, "topic")
                self._check_content(record)
                self._add("content", record.topic)

    def _check_content(self, record: ExportedFragment) -> None:
        if not record.content_type:
            raise ValueError("it has no content type")
        if len(record.body) > (most := self._limits.document_bytes):
            raise ValueError(f"its body is larger than {most} bytes; raise max_fragment_bytes")
        content = content_of(record)
        if content != read_content(
            record.body,
            content_type=record.content_type,
            received=content.until,
            limits=self._limits,
        ):
            raise ValueError("its body is not the whole content")

    def _add(self, *name: str) -> None:
        if name in self._names:
            raise ValueError(f"a second {name[0]} with the same name")
        self._names.add(name)


def exported_subscription(subscription: Subscription) -> ExportedSubscription:
    return ExportedSubscription(**asdict(subscription))


def subscription_of(record: ExportedSubscription) -> Subscription:
    fields = asdict(record) | {"expires": record.expires.astimezone(UTC), "position": 0}
    return Subscription(**fields)


def exported_content(topic: str, position: int, content: Fragment) -> ExportedFragment:
    fields = asdict(content)
    fields["whole"] = fields.pop("kind") is FragmentKind.WHOLE
    return ExportedFragment(topic=topic, position=position, **fields)


def content_of(record: ExportedFragment) -> Fragment:
    return whole_content(record.body, record.content_type, record.until.astimezone(UTC))


class NullLogListener:
    """A `LogListener` that does nothing, for processes that only read logs."""

    def append_started(self, topic: str, fragments: Sequence[Fragment]) -> None: ...

    def appended(
        self, topic: str, entries: Sequence[LogEntry], state: LogState, replaced: int | None
    ) -> None: ...

    def forgotten(self, topic: str) -> None: ...


async def read_store(store: Store) -> AsyncIterator[Exported]:
    """Yield the records of a newly opened store. Nodes may be running."""
    stored = await store.records()
    for subscription in stored.subscriptions:
        yield exported_subscription(subscription)
    for broker, cursors in stored.brokers.items():
        yield ExportedBroker(broker=broker, cursors=dict(cursors))
    for state in await store.start(NullLogListener()):
        if state.whole:
            for entry in await store.read(state.topic, after=0):
                if entry.fragment.kind is FragmentKind.WHOLE:
                    yield exported_content(state.topic, entry.position, entry.fragment)


class ImportReport(Struct):
    """The numbers of records that were imported or skipped."""

    subscriptions: int = 0
    expired: int = 0
    newer: int = 0
    contents: int = 0
    other_contents: int = 0


async def import_records(store: Store, records: Iterable[Exported], now: Instant) -> ImportReport:
    """Import checked records into a newly opened store, and return the record counts.

    Raises:
        StorageError: The store failed. It may have some of the records. The import can be repeated.
    """
    report = ImportReport()
    subscriptions: list[Subscription] = []
    brokers: dict[str, dict[str, int]] = {}
    logs = {state.topic: state for state in await store.start(NullLogListener())}
    for record in records:
        match record:
            case ExportedSubscription():
                subscriptions.append(subscription_of(record))
            case ExportedBroker():
                brokers[record.broker] = dict.fromkeys(record.cursors, 0)
            case ExportedFragment(whole=True):
                if await _import_content(store, logs.get(record.topic), record):
                    report.contents += 1
                else:
                    report.other_contents += 1
    valid = [each for each in subscriptions if not is_expired(each, now)]
    report.subscriptions = await store.restore(SubscriptionRecords(valid, brokers))
    report.expired = len(subscriptions) - len(valid)
    report.newer = len(valid) - report.subscriptions
    return report


async def _import_content(store: Store, log: LogState | None, record: ExportedFragment) -> bool:
    """Append a whole content unless the log has a newer entry. Return whether it was appended."""
    content = content_of(record)
    if log is not None and not (log.whole and log.through < content.until):
        return False
    try:
        after = log.position if log else 0
        await store.append(record.topic, [content], after=after, replacing=None)
    except LogMoved:  # a running node has appended to the log since its state was read
        return False
    return True


async def write_export(path: Path, store: Store) -> Counter[type[Exported]]:
    """Export a store to a new file that only its owner can read, and return the record counts.

    Raises:
        ConfigurationError: The file exists, or cannot be written.
        StorageError: The store cannot be read.
    """
    counts = Counter[type[Exported]]()
    with _new_file(path) as file:
        file.write(encode(ExportHeader(exported=datetime.now(UTC), hub=__version__)))
        async for record in read_store(store):
            file.write(encode(record))
            counts[type(record)] += 1
        file.write(encode(ExportEnd(records=counts.total())))
    return counts


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """Create a file. If an exception ends the context, delete the file."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigurationError(f"{path} already exists; name a new file") from None
    except OSError as error:
        raise _file_error("write", path, error) from None
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        flush(path.parent)
    except BaseException as error:
        path.unlink()
        if isinstance(error, OSError):
            raise _file_error("write", path, error) from None
        raise


def check_export(path: Path, limits: DocumentLimits) -> None:
    """Check all records of a file. `limits` are the limits for published documents.

    Raises:
        ConfigurationError: The file is not an export, or cannot be read.
    """
    try:
        for _ in decode(_lines_of(path), limits):
            pass
    except OSError as error:
        raise _file_error("read", path, error) from None
    except ConfigurationError as error:
        raise ConfigurationError(f"cannot import {path}: {error}") from None


async def read_export(path: Path, store: Store, limits: DocumentLimits) -> ImportReport:
    """Import a checked file into a newly opened store, and return the record counts."""
    with closing(_lines_of(path)) as lines:
        return await import_records(store, decode(lines, limits), datetime.now(UTC))


def _lines_of(path: Path) -> Generator[bytes, None, None]:
    with path.open("rb") as file:
        yield from file


def _file_error(action: str, path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"cannot {action} {path}: {reason_of(error)}")
