"""The format of a record in the stream: a fragment and its metadata, as a payload and headers.

The payload is the fragment's bytes, unchanged. All metadata is in headers, so that an index can be
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
from rsnotify_hub.fragments import Fragment, FragmentKind, heartbeat_interval, stored_fragment
from rsnotify_jetstream.cluster_records import newer

#: The version of the record format. A hub reads records of this version and older ones.
VERSION = 1
#: A position after all others. All records of a batch except the first name it instead of their
#: predecessor, so that hubs that do not support batches also accept them. NATS has checked the
#: predecessor of the first record.
_LATEST = 2**62

#: Printable ASCII without the percent sign, which escapes all other characters.
_SAFE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
_DIGEST_BYTES = 16
#: The headers of fields that are always present in the record of a fragment.
_NUMBERS = {
    "begins": "Rs-Begins",
    "until": "Rs-Until",
    "through": "Rs-Through",
    "previous": "Rs-Previous",
}


class RecordKind(IntEnum):
    """The kind of a record."""

    CHANGES = 0
    HEARTBEAT = 1
    WHOLE = 2
    #: The log of the topic was deleted.
    RESET = 3
    #: A node has checked that it can write.
    CHECK = 4


class LogRecord(Struct, frozen=True, gc=False):
    """The metadata of a record and its fragment that the index needs.

    Instants are microseconds since 1970. The size is in bytes.

    Args:
        position: The sequence number of the record in the stream.
        topic: The topic, or empty for a check.
        received: When the fragment arrived, by the clock of the node that appended the record.
        through: The latest `until` in the log, including this record.
        digest: A digest that identifies equal fragments in a log.
        after: The position of the predecessor, which was the topic's last record when this record
            was created, or 0 if there was none. The record is accepted only if the predecessor is
            still the last record before the batch.
        previous: The position of the previous entry in the log, or 0 if there is none.
        reset: The position of the last reset of the log before this record, or 0 if there was none.
        number: The number of records in the same batch before this one, at the preceding positions.
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
        """The position of the first record of the batch."""
        return self.position - self.number


class Place(Struct, frozen=True):
    """The place of a new record in a log. See `LogRecord` for the fields.

    `through` is the latest `until` of the log so far, or None if there is no log.
    """

    after: int = 0
    previous: int = 0
    reset: int = 0
    through: int | None = None


def topic_token(topic: str) -> str:
    """Return the last token of a topic's subject."""
    return hashlib.sha256(topic.encode()).hexdigest()


def kind_of(fragment: Fragment) -> RecordKind:
    if fragment.kind is FragmentKind.WHOLE:
        return RecordKind.WHOLE
    return RecordKind.CHANGES if heartbeat_interval(fragment) is None else RecordKind.HEARTBEAT


def digest_of(fragment: Fragment) -> bytes:
    """Return the digest that identifies equal fragments in a log."""
    kind = b"whole " if fragment.kind is FragmentKind.WHOLE else b""
    return hashlib.sha256(kind + fragment.body).digest()[:_DIGEST_BYTES]


def records_of(
    topic: str, fragments: Sequence[Fragment], *, received: Instant, place: Place
) -> list[LogRecord]:
    """Return the records of a batch, without positions. `place` is that of the first record."""
    arrived = to_microseconds(received)
    latest = place.through
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
    """Return the headers of a record, which `read_record` and `read_stored_fragment` parse."""
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
    """Parse a record with a payload of `size` bytes. Return None if no hub wrote the message.

    Raises:
        StorageError: A newer hub wrote the record, or it is damaged.
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
    """Escape everything but printable ASCII, and spaces at the ends, for use in a header."""
    escaped = quote(text, safe=_SAFE)
    return escaped if escaped == escaped.strip() else escaped.replace(" ", "%20")
