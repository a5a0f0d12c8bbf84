"""A record of the stream: a fragment with what the index needs to know, as headers and payload.

The payload is the fragment's bytes, unchanged. Everything else is in headers, so that an index is
loaded without the payloads. Unknown headers are ignored, so a later version may add some.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from enum import IntEnum
from urllib.parse import quote, unquote

from msgspec import Struct

from rsnotify.errors import StorageError
from rsnotify.format.datetimes import Instant, from_microseconds, to_microseconds
from rsnotify_hub.fragments import Fragment, heartbeat_interval, stored_fragment
from rsnotify_jetstream.records import newer

#: The version of the format of records. A hub reads records of this version and older ones.
VERSION = 1
#: A position after all others, which the later records of a batch name in place of the one before
#: them. So a hub that does not know batches appends them, too: NATS has checked the first one.
_LATEST = 2**62

#: Printable ASCII without the percent sign, which escapes all else.
_SAFE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
_DIGEST_BYTES = 16
#: Fields of a record that are always there, with their headers.
_NUMBERS = {
    "begins": "Rs-Begins",
    "until": "Rs-Until",
    "through": "Rs-Through",
    "previous": "Rs-Previous",
}


class RecordKind(IntEnum):
    """What a record is about."""

    CHANGES = 0
    HEARTBEAT = 1
    WHOLE = 2
    #: The log of the topic was deleted.
    RESET = 3
    #: A node has checked that it can write.
    CHECK = 4


class LogRecord(Struct, frozen=True, gc=False):
    """What the index needs to know of a record. Instants are microseconds since 1970.

    Args:
        position: Its sequence number in the stream.
        kind: What it is about.
        topic: The topic; empty for a check.
        begins: As of the fragment.
        from_: As of the fragment.
        until: As of the fragment.
        received: When it arrived, by the clock of the node that appended it.
        through: The latest `until` of the log up to and including this record.
        size: The bytes of the fragment.
        digest: Identifies equal fragments in a log.
        after: The position of the last record of the topic when this one was planned; 0 if
            there was none. The record counts only if that is still the last one before its batch.
        previous: The position of the entry before it in the log; 0 if there is none.
        reset: The position of the last reset of the log before it; 0 if there was none.
        number: The number of records of its batch before it, which have the positions directly
            before it.
    """

    position: int
    kind: RecordKind
    topic: str = ""
    begins: int = 0
    from_: int | None = None
    until: int = 0
    received: int = 0
    through: int = 0
    size: int = 0
    digest: bytes = b""
    after: int = 0
    previous: int = 0
    reset: int = 0
    number: int = 0

    @property
    def head(self) -> int:
        """The position of the first record of its batch."""
        return self.position - self.number


class Place(Struct, frozen=True):
    """Where a new record belongs in a log, as `LogRecord` has it."""

    after: int = 0
    previous: int = 0
    reset: int = 0


def topic_token(topic: str) -> str:
    """Return the last token of the subject of a topic."""
    return hashlib.sha256(topic.encode()).hexdigest()


def kind_of(fragment: Fragment) -> RecordKind:
    if fragment.whole:
        return RecordKind.WHOLE
    return RecordKind.CHANGES if heartbeat_interval(fragment) is None else RecordKind.HEARTBEAT


def digest_of(fragment: Fragment) -> bytes:
    """Return the digest that identifies equal fragments in a log."""
    kind = b"whole " if fragment.whole else b""
    return hashlib.sha256(kind + fragment.body).digest()[:_DIGEST_BYTES]


def records_of(
    topic: str,
    fragments: Sequence[Fragment],
    *,
    received: Instant,
    through: Instant | None,
    place: Place,
) -> list[LogRecord]:
    """Return the records of a batch of fragments, which have no positions yet.

    Args:
        topic: The topic.
        fragments: The fragments.
        received: When they arrived.
        through: The latest `until` of the log so far; None if there is no log.
        place: The place of the first record.
    """
    arrived = to_microseconds(received)
    latest = None if through is None else to_microseconds(through)
    records = []
    for number, fragment in enumerate(fragments):
        until = to_microseconds(fragment.until)
        latest = until if latest is None else max(until, latest)
        records.append(
            LogRecord(
                position=0,
                kind=kind_of(fragment),
                topic=topic,
                begins=to_microseconds(fragment.begins),
                from_=None if fragment.from_ is None else to_microseconds(fragment.from_),
                until=until,
                received=arrived,
                through=latest,
                size=len(fragment.body),
                digest=digest_of(fragment),
                after=place.after,
                previous=_LATEST if number else place.previous,
                reset=place.reset,
                number=number,
            )
        )
    return records


def headers_of(record: LogRecord, content_type: str | None = None) -> dict[str, str]:
    """Return the headers of a record, as `read_record` and `read_stored_fragment` read them."""
    headers = {"Rs-Version": str(VERSION), "Rs-RecordKind": record.kind.name.lower()}
    if record.kind is RecordKind.CHECK:
        return headers
    headers["Rs-Topic"] = _escape(record.topic)
    headers["Rs-Received"] = str(record.received)
    headers["Rs-After"] = str(record.after)
    if record.kind is RecordKind.RESET:
        return headers
    headers |= {name: str(getattr(record, field)) for field, name in _NUMBERS.items()}
    headers |= {"Rs-Digest": record.digest.hex(), "Content-Type": _escape(content_type or "")}
    if record.from_ is not None:
        headers["Rs-From"] = str(record.from_)
    if record.reset:
        headers["Rs-Reset"] = str(record.reset)
    if record.number:
        headers |= {"Rs-After": str(_LATEST), "Rs-Batched": f"{record.number} {record.after}"}
    return headers


def read_record(position: int, headers: Mapping[str, str], size: int) -> LogRecord | None:
    """Read a record with a payload of `size` bytes; None if no hub has written the message.

    Raises:
        StorageError: It was written by a newer hub, or is damaged.
    """
    version = headers.get("Rs-Version")
    if version is None:
        return None
    try:
        if int(version) > VERSION:
            raise StorageError(newer("a record of the log in NATS", int(version), VERSION))
        kind = RecordKind[headers["Rs-RecordKind"].upper()]
        if kind is RecordKind.CHECK:
            return LogRecord(position, kind)
        topic, received = unquote(headers["Rs-Topic"]), int(headers["Rs-Received"])
        number, after = 0, int(headers["Rs-After"])
        if (batched := headers.get("Rs-Batched")) is not None:
            number, after = map(int, batched.split())
        if kind is RecordKind.RESET:
            return LogRecord(position, kind, topic, received=received, after=after)
        return LogRecord(
            position=position,
            kind=kind,
            topic=topic,
            from_=int(headers["Rs-From"]) if "Rs-From" in headers else None,
            received=received,
            size=size,
            digest=bytes.fromhex(headers["Rs-Digest"]),
            after=after,
            reset=int(headers.get("Rs-Reset", 0)),
            number=number,
            **{field: int(headers[name]) for field, name in _NUMBERS.items()},
        )
    except (KeyError, ValueError) as error:
        raise StorageError(
            f"the record {position} of the log in NATS is damaged ({error!r}): restore the stream "
            "from a backup, or delete the message with `nats stream rmm`"
        ) from None


def read_stored_fragment(record: LogRecord, headers: Mapping[str, str], body: bytes) -> Fragment:
    return stored_fragment(
        body=body,
        content_type=unquote(headers.get("Content-Type", "")),
        from_=None if record.from_ is None else from_microseconds(record.from_),
        until=from_microseconds(record.until),
        begins=from_microseconds(record.begins),
        heartbeat=record.kind is RecordKind.HEARTBEAT,
        whole=record.kind is RecordKind.WHOLE,
    )


def _escape(text: str) -> str:
    """Escape what a header cannot carry: all but printable ASCII, and spaces at the ends."""
    escaped = quote(text, safe=_SAFE)
    return escaped if escaped == escaped.strip() else escaped.replace(" ", "%20")
