"""Origins that send events, over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.errors import TooLarge
from rsnotify.format.datetimes import from_microseconds, to_microseconds
from rsnotify_gateway import OriginSettings
from rsnotify_gateway.adapters.event_streams import (
    EventMapping,
    EventParser,
    ServerEvent,
    read_event,
)
from rsnotify_validation.inspection import inspect
from tests.gateway.checking import Checking, Reading, origin
from tests.gateway.event_server import EVENT, MAPPING, EventServer, change
from tests.gateway.origin_server import Site
from tests.gateway.running import RunningGateway
from tests.publisher.helpers import FakeHub
from tests.waiting import until

SITE = "https://site.example/"

A, B = SITE + "a", SITE + "b"

NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)


@pytest.fixture
async def server() -> AsyncIterator[EventServer]:
    async with EventServer() as server:
        yield server


def settings(server: EventServer, **more: object) -> OriginSettings:
    return origin("events", server.url, event=EVENT, **more)


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


async def test_events_are_changes_and_a_new_connection_resumes_after_the_last(
    server: EventServer, tmp_path: Path
):
    await server.send(change(A, after(0)), change(B, after(1)))
    async with Reading(tmp_path, settings(server)) as reading:
        assert await reading.until_there(A, B) == {A: "created", B: "created"}
        await server.send(change(A, after(2), "delete"))
        assert await reading.until_there(B) == {A: "deleted"}
    await server.send(change(A, after(3)), change(SITE + "c", after(4), wiki="two"))
    async with Reading(tmp_path, settings(server)) as again:
        assert await again.until_there(A, B) == {A: "created"}
        assert "delete" in again.limits
        assert "no ids" not in again.limits
        assert again.resources()[A].lastmod == after(3)
    assert server.resumed == [None, "1", "2"]


async def test_a_stream_that_the_server_ends_is_connected_to_again(
    server: EventServer, tmp_path: Path
):
    await server.send(change(A, after(0)))
    async with Reading(tmp_path, settings(server)) as reading:
        await reading.until_there(A)
        await server.stop()
        await server.start()
        await server.send(change(B, after(1)))
        assert await reading.until_there(A, B) == {B: "created"}


async def test_only_the_time_of_the_latest_event_is_claimed_to_be_checked(
    server: EventServer, hub: FakeHub, tmp_path: Path
):
    await server.send(change(A, after(0)))
    running = RunningGateway(tmp_path, [settings(server)], hubs=[hub.url + "websub"])
    (watch,) = running.gateway.watches
    watch._checked.now = 0
    async with running:
        await running.until_ready()
        assert watch.last_check is not None
        assert from_microseconds(watch.last_check) == after(0)
        # One that does not count shows as well that nothing else has happened until then.
        await server.send(change(B, after(9), wiki="two"))
        await hub.until(lambda: any(one.until == after(9) for one in hub.fragments))
        await server.send(change(B, after(5)))
        await hub.has(B)
        assert max(one.until for one in hub.fragments if one.until) < after(10)
        # It was 4 seconds late, so others may be, too.
        await server.send(change(A, after(20)))
        await until(lambda: watch.last_check == to_microseconds(after(16)))
        assert "out of order by up to 4 seconds" in "".join(watch.adapter.terms().limits)


async def test_an_outage_of_the_stream_is_visible_and_stops_heartbeats(
    server: EventServer, tmp_path: Path
):
    await server.send(change(A, after(0)))
    running = RunningGateway(tmp_path, [settings(server)])
    (watch,) = running.gateway.watches
    watch._checked.now = 0
    async with running:
        await running.until_ready()
        await server.stop()
        await until(lambda: watch.problem is not None)
        found = json.loads((await running.get("one/origin.json"))[1])
        assert found["checked"] == "2026-11-02T12:00:00.000000Z"
        assert found["failing_since"] is not None
        await server.start()
        await server.send(change(B, after(1)))
        await until(lambda: watch.problem is None)
        assert watch.last_check == to_microseconds(after(1))


async def test_a_stream_without_ids_reports_that_events_may_be_missed(
    server: EventServer, tmp_path: Path
):
    server.has_ids = False
    await server.send(change(A, after(0)))
    async with Reading(tmp_path, settings(server)) as reading:
        await reading.until_there(A)
        assert "no ids" not in reading.limits
        server.log.clear()
        await server.send(change(B, after(1)))
        await reading.until_there(A, B)
        assert "Events have no ids, so some may have been missed at 20" in reading.limits


async def test_events_that_state_no_change_are_counted(server: EventServer, tmp_path: Path):
    await server.send(
        {"error": "no"}, change(A, after(0)), change("", after(1)), [1], change("a:", after(1))
    )
    async with Reading(tmp_path, settings(server)) as reading:
        await reading.until_there(A, server.url)
        assert "Skipped events that state no change: 3" in reading.limits


async def test_what_is_no_event_stream_is_refused(tmp_path: Path):
    async with Site() as site:
        site.pages["/stream"] = b"<html/>"
        mapping = EventMapping(**{**MAPPING, "deleted": ()})
        given = origin("events", site.url("/stream"), event=mapping)
        async with Checking(tmp_path, given) as checking:
            with pytest.raises(Exception, match="application/xml, not an event stream"):
                await checking.check()
            assert "Deletions are not detected." in checking.limits


async def test_streams_do_not_keep_requests_to_their_host_waiting(tmp_path: Path):
    server = EventServer()
    async with server:
        many = [
            OriginSettings(
                name=f"s{number}",
                type=settings(server).type,
                url=server.url,
                event=settings(server).event,
                delay=0.0,
            )
            for number in range(5)
        ]
        await server.send(change(A, after(0)))
        async with RunningGateway(tmp_path, many) as running:
            for number in range(5):
                await running.until_ready(number)


async def test_what_a_stream_cannot_show_is_inspected(server: EventServer, tmp_path: Path):
    await server.send(change(A, after(0)))
    async with RunningGateway(tmp_path, [settings(server)]) as running:
        await running.until_ready()
        text = str(await inspect(running.url + "one/"))
    assert "by Server-Sent Events" in text
    assert "Events of the type delete are deletions." in text
    assert "a quiet stream cannot be distinguished from a broken one" in text


FIELDS = EventMapping("/uri", "/at", "/kind", ("gone",), {"/wiki": "one"})

STREAM = (
    "\ufeffid: 1\nevent: message\ndata: one\n\n"
    ": a comment\r\n\r\n"
    "retry: 2500\rdata:two\rdata: lines\r\r"
    "id: 7\n\n"
    "data: ünder\n\ndata: not complete\n"
).encode()

EVENTS = [ServerEvent("1", "one"), ServerEvent("1", "two\nlines"), ServerEvent("7", "ünder")]


@given(st.lists(st.integers(0, len(STREAM))))
def test_a_stream_has_the_same_events_however_it_is_divided(cuts: list[int]):
    parser = EventParser("")
    ends = sorted({*cuts, len(STREAM)})
    found = []
    for start, end in zip([0, *ends], ends, strict=False):
        found += parser.feed(STREAM[start:end])
    assert found == EVENTS
    assert (parser.last_id, parser.retry) == ("7", 2.5)


def test_an_event_of_any_size_is_not_kept():
    parser = EventParser("")
    line = b"data: " + b"x" * 1_000_000 + b"\n"
    assert parser.feed(line * 3) == []
    with pytest.raises(TooLarge):
        parser.feed(line)


@pytest.mark.parametrize(
    ("at", "when"),
    [
        ('"2026-11-02T10:00:00Z"', datetime(2026, 11, 2, 10, tzinfo=UTC)),
        ("1793613600", datetime(2026, 11, 2, 10, tzinfo=UTC)),
        ("1793613600000", datetime(2026, 11, 2, 10, tzinfo=UTC)),
    ],
)
def test_a_datetime_may_be_a_text_or_a_number(at: str, when: datetime):
    found = read_event(f'{{"uri": "https://a/", "at": {at}, "wiki": "one"}}', FIELDS)
    assert (found.uri, found.when, found.deleted) == ("https://a/", when, False)


def test_an_event_that_does_not_count_states_its_datetime_only():
    found = read_event('{"uri": "https://a/", "at": 1793613600, "wiki": "two"}', FIELDS)
    assert found.uri is None


@pytest.mark.parametrize(
    "data",
    [
        "no JSON",
        "1",
        "[]",
        '{"uri": "https://a/", "wiki": "one"}',
        '{"at": 1e300, "wiki": "one"}',
        '{"at": 1793613600, "uri": 3, "wiki": "one"}',
        '{"at": "yesterday"}',
        '{"at": true}',
    ],
)
def test_an_event_that_states_no_change_is_none(data: str):
    assert read_event(data, FIELDS) is None


@pytest.mark.parametrize(
    ("pointer", "uri"),
    [
        ("/uri", "https://a/"),
        ("/meta/uris/1", "https://c/"),
        ("/meta/a~1b~0c", "https://d/"),
        ("/meta/uris/2", None),
        ("/meta/uris/01", None),
        ("/meta/uris/-", None),
        ("/uri/0", None),
        ("/", None),
    ],
)
def test_a_pointer_leads_through_objects_and_arrays(pointer: str, uri: str | None):
    meta = {"uris": ["https://b/", "https://c/"], "a/b~c": "https://d/"}
    event = json.dumps({"uri": "https://a/", "at": 1793613600, "meta": meta})
    found = read_event(event, EventMapping(uri=pointer, datetime="/at"))
    assert (found and found.uri) == uri
