"""`GET /events`: Server-Sent Events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.format.datetimes import format_datetime
from rsnotify.format.reader import read_document
from rsnotify_hub import event_streams as encoding
from tests.hub.conftest import RunHub
from tests.hub.event_streams import events, live
from tests.hub.helpers import (
    TOPIC,
    Client,
    LogWatch,
    at,
    chain,
    fragment,
    heard,
    seconds_of,
    slow_client,
)
from tests.hub.storing import writes_waiting
from tests.waiting import PATIENCE


def when(second: float) -> str:
    return format_datetime(at(second))


async def schema_of(hub: Client) -> dict[str, object]:
    status, text = await hub.get("events/schema")
    assert status == 200
    found: dict[str, object] = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(found)
    return found


async def test_each_fragment_is_an_event_with_its_until_as_the_id(hub: Client):
    await hub.accepted(fragment(0, 1))
    async with events(hub) as stream:
        subscribed = await stream.expect("subscribed")
        assert subscribed.id == when(1), "who connects again resumes here"
        assert subscribed.json == {"topic": TOPIC, "through": when(1), "audience": 1}
        await hub.accepted(fragment(1, 2, 3))
        event = await stream.expect()
        assert event.id == when(3)
        assert read_document(event.data.encode()) == read_document(fragment(1, 2, 3))


async def test_a_stream_resumes_after_since(hub: Client):
    await hub.accepted(*chain(5))
    async with events(hub, 2) as stream:
        assert (await stream.expect("subscribed")).id is None, "it would resume too late"
        assert await stream.heard(5) == [3, 4, 5]
        await hub.accepted(fragment(5, 6))
        assert await stream.heard(6) == [6]


async def test_the_last_event_id_has_precedence_over_the_first_since(hub: Client):
    await hub.accepted(*chain(5))
    async with live(hub, 2, headers={"Last-Event-ID": when(4)}) as stream:
        assert await stream.heard(5) == [5]


async def test_a_gap_is_an_event_of_its_own(hub: Client):
    await hub.accepted(fragment(6, 7))
    async with live(hub, 2) as stream:
        gap = await stream.expect("gap")
        assert gap.json == {"topic": TOPIC, "from": when(6)}
        assert gap.id is None, "who loses the connection now must see the gap again"
        assert await stream.heard(7) == [7]


async def test_a_heartbeat_of_a_source_moves_the_id(hub: Client):
    async with live(hub, format="json") as stream:
        await hub.accepted(fragment(0, until=9))
        event = await stream.expect()
        assert event.id == when(9)
        assert (event.json["from"], event.json["until"]) == (when(0), when(9))
        assert event.json["changes"] == []


async def test_the_hub_sends_comments_to_show_that_it_is_alive(run_hub: RunHub):
    async with run_hub(websocket_ping_seconds=0.1) as hub, live(hub) as stream:
        async with asyncio.timeout(PATIENCE):
            while not stream.comments:
                await stream.line()
        await hub.accepted(fragment(0, 1))
        assert await stream.heard(1) == [1]


@given(st.text(alphabet=" :\r\n\ufeffaé", min_size=1))
def test_the_data_of_an_event_is_the_text_with_its_line_ends_as_newlines(text: str):
    framed = encoding.event(text.encode(), id=at(1)).decode()
    *lines, end, rest = framed.split("\n")
    assert (end, rest) == ("", "")
    assert lines.pop(0) == f"id: {when(1)}"
    assert all(line.startswith("data: ") and "\r" not in line for line in lines)
    wanted = text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n")
    assert "\n".join(line.removeprefix("data: ") for line in lines) == wanted


async def test_json_conforms_to_the_published_schema(hub: Client):
    schema = await schema_of(hub)
    assert schema["$id"] == hub.url + "events/schema"
    async with events(hub, -5, format="json") as stream:
        await hub.accepted(fragment(0, 1, 2), fragment(2, until=3))
        subscribed = await stream.expect("subscribed")
        first, heartbeat = await stream.expect(), await stream.expect()
    for event, name in [
        (first, "FragmentEvent"),
        (heartbeat, "FragmentEvent"),
        (subscribed, "SubscribedEvent"),
    ]:
        jsonschema.validate(event.json, {**schema, "$ref": f"#/$defs/{name}"})
    jsonschema.validate(first.json, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"until": when(1)}, schema)
    assert first.json == {
        "from": when(0),
        "until": when(2),
        "changes": [
            {
                "uri": f"https://source.example/data/{second}",
                "change": "updated",
                "datetime": when(second),
            }
            for second in (1, 2)
        ],
        "links": [{"rel": "up", "href": "https://source.example/data/capabilitylist.xml"}],
    }


@pytest.mark.parametrize("format", ["xml", "json"])
async def test_new_content_of_any_other_topic_is_announced(hub: Client, format: str):
    async with live(hub, format=format) as stream:
        assert await hub.publish(b"\x00\xff", Content_Type="image/png") == (202, "")
        event = await stream.expect("content")
        assert event.json == {"until": event.id, "type": "image/png"}


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("", "topic is missing"),
        ("topic=urn:x", "not an absolute http"),
        (f"topic={TOPIC}&format=yaml", "format must be one of xml, json"),
        (f"topic={TOPIC}&since=yesterday", "since"),
    ],
)
async def test_a_wrong_request_is_answered_with_the_reason(hub: Client, query: str, reason: str):
    status, text = await hub.get("events?" + query)
    assert (status, reason in text) == (400, True), text


async def test_head_is_not_allowed(hub: Client):
    async with hub.session.head(f"{hub.url}events?topic={TOPIC}") as response:
        assert response.status == 405


async def test_a_page_may_read_it_if_its_origin_is_configured(run_hub: RunHub):
    async with run_hub(websocket_origins=["https://page.example"]) as hub:
        async with events(hub, headers={"Origin": "https://page.example"}) as stream:
            headers = stream.response.headers
            assert headers["Access-Control-Allow-Origin"] == "https://page.example"
            assert headers["Vary"] == "Origin"
            assert headers["Content-Type"] == "text/event-stream"
        other = {"Origin": "https://other.example"}
        async with hub.session.get(f"{hub.url}events?topic={TOPIC}", headers=other) as response:
            assert response.status == 403
            assert "Access-Control-Allow-Origin" not in response.headers


async def test_websockets_and_event_streams_have_one_limit(run_hub: RunHub):
    async with run_hub(max_websockets=2) as hub:
        async with live(hub):
            socket = await hub.listen()
            assert (await hub.get(f"events?topic={TOPIC}"))[0] == 429
        await socket.close()
        await hub.admin_until("status", lambda status: status["event_streams"] == 0)
        async with live(hub):
            pass


@pytest.mark.parametrize("limit", [{"queue_bytes": 1_000_000}, {"queue_frames": 2}])
async def test_a_stream_that_is_not_read_is_cut_off_and_the_others_are_not(
    run_hub: RunHub, watch: LogWatch, limit: dict[str, int]
):
    async with (
        run_hub(**{"queue_bytes": 10**9, **limit}) as hub,
        slow_client(hub, read_bufsize=2**10) as client,
        live(client) as slow,
        live(hub) as quick,
    ):
        filler = b"<!-- " + b"x" * 50_000 + b" -->\n"
        large = [fragment(n, n + 1) + filler * 10 for n in range(20)]
        for number, body in enumerate(large, 1):
            await hub.accepted(body)
            assert await quick.heard(number) == [number]
        await watch.line("that is too slow")
        got = []
        while (event := await slow.next()) is not None:
            got += seconds_of(event.data)
        assert got == list(range(1, len(got) + 1))
        assert len(got) < len(large)
        status = await hub.admin("GET", "status")
        assert status["deliveries"]["sse"]["cut-off"] == 1


async def test_a_fragment_is_sent_before_it_is_durable(hub: Client, data: Path):
    source = await hub.source()
    async with live(hub) as xml, live(hub, format="json") as in_json:
        with writes_waiting(data):
            await source.send_str(fragment(0, 1).decode())
            assert await xml.heard(1) == [1]
            assert (await in_json.expect()).id == when(1)
            async with live(hub) as late:
                assert await late.heard(1) == [1]
        await source.send_str(fragment(1, 2).decode())
        assert await xml.heard(2) == [2]
        assert (await in_json.expect()).id == when(2)


async def test_a_large_fragment_is_converted_once_it_is_durable(
    hub: Client, data: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(encoding, "_MAX_INLINE_BYTES", len(fragment(0, 1)))
    source = await hub.source()
    async with live(hub) as xml, live(hub, format="json") as in_json:
        with writes_waiting(data):
            await source.send_str(fragment(0, 1, 2, 3).decode())
            assert await xml.heard(3) == [1, 2, 3]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await in_json.next()
        await source.send_str(fragment(3, 4).decode())
        assert [(await in_json.expect()).id for _ in range(2)] == [when(3), when(4)]


async def test_large_fragments_are_converted_in_their_order(
    hub: Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(encoding, "_MAX_INLINE_BYTES", len(fragment(0, 1)))
    source, socket = await hub.source(), await hub.listen()
    async with live(hub, format="json") as one, live(hub, format="json") as other:
        second = 0
        for number in range(60):
            size = 3 if number % 3 else 1
            await source.send_str(fragment(second, *range(second + 1, second + size + 1)).decode())
            second += size
        for stream in (one, other):
            through = when(0)
            while through != when(second):
                event = await stream.expect()
                assert event.json["from"] == through
                through = event.json["until"]
        assert (await heard(socket, second))[-1] == second


async def test_streams_are_counted_as_a_transport(hub: Client):
    async with live(hub) as xml, live(hub, format="json") as in_json:
        await hub.listen()
        await hub.accepted(fragment(0, 1))
        await xml.expect()
        await in_json.expect()
        status = await hub.admin("GET", "status")
        assert (status["event_streams"], status["websockets"]) == (2, 1)
        assert status["deliveries"]["sse"]["delivered"] == 2
        (topic,) = await hub.topics(bool)
        assert (topic["event_streams"], topic["websockets"]) == (2, 1)
        metrics = await hub.metrics()
        assert metrics["event_streams"] == 2
        assert metrics['deliveries_total{outcome="delivered",way="sse"}'] == 2
        async with events(hub) as third:
            assert (await third.expect("subscribed")).json["audience"] == 4


async def test_a_hub_that_stops_ends_its_streams_and_clients_resume(run_hub: RunHub):
    async with run_hub() as hub:
        opened = live(hub)
        stream = await opened.__aenter__()
        await hub.accepted(fragment(0, 1))
        event = await stream.expect()
    assert await stream.next() is None
    assert stream.retry is not None
    await opened.__aexit__(None, None, None)
    async with run_hub() as hub:
        await hub.accepted(fragment(1, 2))
        async with live(hub, headers={"Last-Event-ID": event.id or ""}) as again:
            assert await again.heard(2) == [2]


async def test_a_client_that_reads_nothing_is_dropped(hub: Client, rounds: Callable[[], None]):
    async with (
        slow_client(hub, read_bufsize=2**10) as client,
        live(client),
        live(hub) as quick,
    ):
        for number in range(4):
            await hub.accepted(fragment(number, number + 1) + b"<!-- " + b"x" * 1_000_000 + b"-->")
        rounds()
        assert (await hub.admin("GET", "status"))["event_streams"] == 2
        rounds()
        await hub.admin_until("status", lambda status: status["event_streams"] == 1)
        quick.response.close()
