"""The format of an export: lines of JSON, one record in each.

The first record is the header, and the last counts the others, so that a part of a file is no
export. Between them are subscriptions, cursors of brokers, and the fragments of each topic's log in
their order. Cursors are positions of these fragments. A later version may add fields; a hub ignores
those that it does not know. What a record contains is checked as requests of publishers and
subscribers are, since a file may have been changed, or written by another program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from rsnotify.errors import ConfigurationError, DocumentError
from rsnotify.format.limits import DEFAULT_LIMITS, DocumentLimits
from rsnotify_hub.filtering.topic_selection import selection_of_key
from rsnotify_hub.fragments.content import read_content
from rsnotify_hub.fragments.fragment import Fragment
from rsnotify_hub.refusals import Refusal
from rsnotify_hub.subscriptions import Subscription
from rsnotify_hub.urls import check_url
from rsnotify_hub.websub.forms import check_secret

#: The version of the format. A hub reads exports of this version and older ones.
VERSION = 1

_Datetime = Annotated[datetime, Meta(tz=True)]
_Position = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class ExportHeader(Struct, frozen=True, kw_only=True, tag="header"):
    """The first record; `hub` is the version of the hub that has written it."""

    version: int = VERSION
    exported: _Datetime
    hub: str


class ExportedSubscription(Struct, frozen=True, kw_only=True, tag="subscription"):
    """A subscription; `position` is that of the last fragment that was delivered."""

    topic: str
    callback: str
    secret: str | None
    expires: _Datetime
    position: _Position
    suspended: bool
    client: str


class ExportedBroker(Struct, frozen=True, kw_only=True, tag="broker"):
    """The positions up to which an MQTT broker has topics, and parts of them, by their keys."""

    broker: str
    cursors: dict[str, int]


class ExportedFragment(Struct, frozen=True, kw_only=True, tag="fragment", rename={"from_": "from"}):
    """A fragment of a topic's log; the body is in Base64."""

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
    return Fragment(
        body=record.body,
        content_type=record.content_type,
        from_=None if record.from_ is None else record.from_.astimezone(UTC),
        until=record.until.astimezone(UTC),
        begins=record.begins.astimezone(UTC),
        heartbeat=record.heartbeat,
        whole=record.whole,
    )
