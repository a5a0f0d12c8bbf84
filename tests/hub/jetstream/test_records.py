"""Records of the stream, without NATS."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from nats.aio.client import Client

from rsnotify.errors import StorageError
from rsnotify.format.datetimes import to_microseconds
from rsnotify_hub.fragments import Fragment, FragmentKind
from rsnotify_jetstream.log_records import (
    LogRecord,
    Place,
    RecordKind,
    headers_of,
    read_record,
    read_stored_fragment,
    records_of,
)
from rsnotify_jetstream.nats_connection import NatsConnection, parse_headers
from rsnotify_jetstream.nats_settings import parse_nats_url
from tests.hub.helpers import TOPIC, at
from tests.hub.storing import made

instants = st.datetimes(timezones=st.just(UTC))
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
positions = st.integers(1, 2**63 - 1)
printable = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E))


@st.composite
def fragments(draw: st.DrawFn) -> Fragment:
    kind = draw(st.sampled_from(RecordKind))
    return Fragment(
        body=draw(st.binary()),
        content_type=draw(printable),
        from_=draw(instants if kind is RecordKind.HEARTBEAT else st.none() | instants),
        until=draw(instants),
        begins=draw(instants),
        heartbeat=kind is RecordKind.HEARTBEAT,
        kind=FragmentKind.WHOLE if kind is RecordKind.WHOLE else FragmentKind.CHANGES,
    )


def sent(headers: dict[str, str]) -> dict[str, str]:
    """Return headers as they arrive: without spaces at their ends."""
    assert all(value.isascii() and value.isprintable() for value in headers.values())
    return {name: value.strip() for name, value in headers.items()}


@given(
    texts,
    fragments(),
    instants,
    st.none() | instants,
    st.builds(Place, positions, positions, positions),
    positions,
)
def test_a_record_is_read_as_it_was_written(
    topic: str,
    fragment: Fragment,
    received: datetime,
    through: datetime | None,
    place: Place,
    position: int,
):
    batch = [fragment] * 2
    if through is not None:
        place = replace(place, through=to_microseconds(through))
    first, record = records_of(topic, batch, received=received, place=place)
    headers = sent(headers_of(first, fragment.content_type))
    assert read_record(position, headers, len(fragment.body)) == replace(first, position=position)
    headers = sent(headers_of(record, fragment.content_type))
    found = read_record(position, headers | {"X-Unknown": "1"}, len(fragment.body))
    assert found is not None
    assert (found.position, found.topic, found.reset) == (position, topic, place.reset)
    assert found == replace(record, position=position)
    assert found.through == to_microseconds(max(fragment.until, through or fragment.until))
    assert read_stored_fragment(found, headers, fragment.body) == fragment


@given(texts, positions)
def test_a_reset_is_read_as_it_was_written(topic: str, position: int):
    record = LogRecord(position, RecordKind.RESET, topic, received=5, after=position - 1)
    assert read_record(position, sent(headers_of(record)), 0) == record
    check = LogRecord(position, RecordKind.CHECK)
    assert read_record(position, headers_of(check), 0) == check


def some_headers() -> dict[str, str]:
    (record,) = records_of(TOPIC, [made(0, 1)], received=at(1), place=Place())
    return headers_of(record, "application/xml")


class Sent:
    """What a client of NATS sends."""

    def __init__(self, client: Client) -> None:
        self.commands: list[bytes] = []
        self._client = client
        client._send_command = self._keep  # type: ignore[method-assign]

    async def _keep(self, command: bytes, priority: bool = False) -> None:
        self.commands.append(command)

    async def publish(self, headers: dict[str, str] | None) -> bytes:
        await self._client._send_publish("a.b", "inbox", b"body", 4, headers)
        return self.commands[-1]


@pytest.mark.parametrize(
    "headers", [None, {}, some_headers(), {"A": "é"}, {"A": "line\r\nB: other"}, {"A": ""}]
)
async def test_headers_are_sent_and_read_as_by_the_library(headers: dict[str, str] | None):
    ours = NatsConnection(parse_nats_url("nats://localhost")).client
    sent = await Sent(ours).publish(headers)
    assert sent == await Sent(Client()).publish(headers)
    lines = sent.partition(b"NATS/1.0\r\n")[2]
    assert parse_headers(lines) == Client._parse_header_lines(lines)


@pytest.mark.parametrize("header", ["Rs-RecordKind", "Rs-Received", "Rs-Until", "Rs-Digest"])
def test_a_damaged_record_is_refused_with_its_position(header: str):
    with pytest.raises(StorageError, match=r"record 7 .* damaged"):
        read_record(7, {**some_headers(), header: "no"}, 5)


def test_a_message_that_no_hub_has_written_is_no_record():
    assert read_record(7, {"Other": "1"}, 5) is None
