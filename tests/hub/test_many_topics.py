"""`GET /ws` with the subprotocol `rsnotify.topics`: many topics on one connection."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import aiohttp
import pytest

from rsnotify.format.datetimes import format_datetime, parse_datetime
from rsnotify_hub import filtering as filtered_reader
from rsnotify_hub.websocket import websocket_handler as many_topics
from tests.hub.conftest import RunHub
from tests.hub.helpers import TOPIC, Client, LogWatch, at, fragment, seconds_of, slow_client
from tests.waiting import PATIENCE

A, B = TOPIC + "/a", TOPIC + "/b"
TOKEN = "a-token-of-a-source"


class Topics:
    """A connection for many topics."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._current = ""

    async def send(self, type: str, topic: str, **members: Any) -> None:
        await self._socket.send_json({"type": type, "topic": topic, **members})

    async def subscribe(self, topic: str, **members: Any) -> dict[str, Any]:
        return await self._begin("subscribe", "subscribed", topic, **members)

    async def start_publishing(self, topic: str) -> dict[str, Any]:
        return await self._begin("publish", "publishing", topic)

    async def _begin(self, type: str, answer: str, topic: str, **members: Any) -> dict[str, Any]:
        await self.send(type, topic, **members)
        control = await self.control()
        assert (control["type"], control["topic"]) == (answer, topic)
        return control

    async def send_text(self, text: str) -> None:
        await self._socket.send_str(text)

    async def publish(self, topic: str, *bodies: bytes) -> None:
        await self.send("documents", topic)
        for body in bodies:
            await self._socket.send_str(body.decode())

    async def control(self) -> dict[str, Any]:
        """Return the next control frame that is not `documents`."""
        received = await self.next()
        assert isinstance(received, dict)
        return received

    async def document(self) -> tuple[str, list[float]]:
        """Return the topic and the seconds of the next document."""
        received = await self.next()
        assert isinstance(received, tuple)
        return received

    async def next(self) -> dict[str, Any] | tuple[str, list[float]]:
        while True:
            text = await self._socket.receive_str()
            if not text.startswith("{"):
                return self._current, seconds_of(text)
            control: dict[str, Any] = json.loads(text)
            if control["type"] != "documents":
                return control
            self._current = control["topic"]

    async def accepted(self, topic: str, second: float) -> None:
        """Wait until everything on a topic up to a second is durable."""
        while True:
            control = await self.control()
            assert control["type"] == "accepted"
            if control["topic"] == topic and parse_datetime(control["until"]) == at(second):
                return

    async def close(self) -> None:
        await self._socket.close()

    async def closed(self) -> int:
        """Return the code of the close, after whatever else arrives."""
        while True:
            message = await self._socket.receive()
            if message.type is aiohttp.WSMsgType.CLOSE:
                return int(message.data)


async def connected(hub: Client, **headers: str) -> Topics:
    offered = {"Sec-WebSocket-Protocol": "rsnotify.topics"}
    socket = await hub.websocket(**offered, **headers)
    return Topics(socket)


async def subscribed(hub: Client, *topics: str) -> Topics:
    """Subscribe to topics, live only."""
    connection = await connected(hub)
    for topic in topics:
        await connection.subscribe(topic)
    return connection


async def test_the_hub_selects_the_subprotocol_only_if_it_is_offered(hub: Client):
    for offered, selected in [
        ((), None),
        (("other",), None),
        (("rsnotify.topics",), "rsnotify.topics"),
        (("other", "rsnotify.topics"), "rsnotify.topics"),
    ]:
        async with hub.session.ws_connect(hub.url + "ws", protocols=offered) as socket:
            assert socket.protocol == selected


async def test_the_frames_are_exactly_those_of_the_protocol(hub: Client):
    async with hub.session.ws_connect(hub.url + "ws", protocols=["rsnotify.topics"]) as socket:
        await socket.send_json({"type": "subscribe", "topic": A, "since": None})
        assert await socket.receive_str(timeout=PATIENCE) == (
            f'{{"type":"subscribed","topic":"{A}","through":null,"audience":1}}'
        )
        await hub.accepted(fragment(0, 1), topic=A)
        assert await socket.receive_str(timeout=PATIENCE) == f'{{"type":"documents","topic":"{A}"}}'
        assert (await socket.receive_str(timeout=PATIENCE)).encode() == fragment(0, 1)
        await socket.send_json({"type": "subscribe", "topic": B, "since": "tomorrow"})
        error = await socket.receive_json(timeout=PATIENCE)
        assert (error.pop("message") > "", error) == (
            True,
            {"type": "error", "code": "bad-request", "topic": B},
        )


async def test_each_document_names_its_topic_and_each_topic_is_replayed_from_its_instant(
    hub: Client,
):
    for second in range(3):
        await hub.accepted(fragment(second, second + 1), topic=A)
        await hub.accepted(fragment(second, second + 1), topic=B)
    connection = await connected(hub)
    await connection.subscribe(A, since=format_datetime(at(1)))
    assert [await connection.document() for _ in range(2)] == [(A, [2]), (A, [3])]
    await connection.subscribe(B, since=format_datetime(at(2)))
    assert await connection.document() == (B, [3])
    await hub.accepted(fragment(3, 4), topic=A)
    await hub.accepted(fragment(3, 4), topic=B)
    await hub.accepted(fragment(4, 5), topic=A)
    assert [await connection.document() for _ in range(3)] == [(A, [4]), (B, [4]), (A, [5])]


async def test_each_topic_has_its_own_selection(hub: Client):
    connection = await connected(hub)
    select = {"prefixes": ["https://source.example/data/2"]}
    assert (await connection.subscribe(A, select=select))["select"] == select
    assert "select" not in await connection.subscribe(B)
    await hub.accepted(fragment(0, 1, 2), topic=A)
    assert await connection.document() == (A, [2])
    await hub.accepted(fragment(0, 1, 2), topic=B)
    assert await connection.document() == (B, [1, 2])


async def test_a_refused_topic_does_not_end_the_others(hub: Client):
    connection = await subscribed(hub, A)
    for topic, since in [("no-url", None), (B, "yesterday")]:
        await connection.send("subscribe", topic, since=since)
        error = await connection.control()
        assert (error["type"], error["code"], error["topic"]) == ("error", "bad-request", topic)
    await hub.accepted(fragment(0, 1), topic=A)
    assert await connection.document() == (A, [1])


async def test_nothing_follows_of_a_topic_that_was_ended(hub: Client):
    connection = await subscribed(hub, A, B)
    await connection.send("end", A)
    await connection.send("subscribe", TOPIC)  # frames are handled in order
    assert (await connection.control())["topic"] == TOPIC
    await hub.accepted(fragment(0, 1), topic=A)
    await hub.accepted(fragment(0, 1), topic=B)
    assert await connection.document() == (B, [1])


async def test_subscribing_again_begins_again(hub: Client):
    await hub.accepted(fragment(0, 1), topic=A)
    connection = await subscribed(hub, A)
    assert (await connection.subscribe(A, since=format_datetime(at(0))))["audience"] == 1
    assert await connection.document() == (A, [1])
    await hub.accepted(fragment(1, 2), topic=A)
    await hub.accepted(fragment(2, 3), topic=A)
    assert [await connection.document() for _ in range(2)] == [(A, [2]), (A, [3])]


async def test_the_audience_of_a_topic_counts_each_connection_until_it_ends(hub: Client):
    connection = await subscribed(hub, A, B)
    other = await connected(hub)
    assert (await other.subscribe(A))["audience"] == 2
    await connection.close()
    while True:
        await other.send("subscribe", A)
        if (await other.control())["audience"] == 1:
            break


async def test_each_topic_counts_in_the_limit_on_websockets(run_hub: RunHub):
    async with run_hub(max_websockets=3) as hub:
        connection = await subscribed(hub, A, B)
        await connection.send("subscribe", TOPIC)
        error = await connection.control()
        assert (error["code"], error["topic"]) == ("too-many", TOPIC)
        await connection.send("end", A)
        await connection.subscribe(TOPIC)
        await hub.accepted(fragment(0, 1), topic=B)
        assert await connection.document() == (B, [1])


async def test_a_long_replay_does_not_delay_the_other_topics(hub: Client):
    async with slow_client(hub) as client:
        total = 12
        for second in range(total):
            await hub.accepted(fragment(second, second + 1) + b"\n" * 1_000_000, topic=A)
        await hub.accepted(fragment(0, 1), topic=B)
        connection = await connected(client)
        await connection.send("subscribe", A, since=format_datetime(at(0)))
        await connection.send("subscribe", B, since=format_datetime(at(0)))
        received = []
        while len(received) < total + 1:
            found = await connection.next()
            if isinstance(found, tuple):
                received.append(found)
        assert received.index((B, [1])) < total / 2
        assert [found for found in received if found[0] == A] == [
            (A, [second]) for second in range(1, total + 1)
        ]


async def test_one_queue_for_all_topics_closes_the_connection_when_it_overflows(
    run_hub: RunHub, watch: LogWatch
):
    async with run_hub(queue_bytes=1_000_000) as hub, slow_client(hub) as client:
        topics = [f"{TOPIC}/{number}" for number in range(20)]
        slow = await subscribed(client, *topics)
        quick = await subscribed(hub, *topics)
        for number in range(2):
            for topic in topics:
                body = fragment(number, number + 1) + b"\n" * 500_000
                await hub.accepted(body, topic=topic)
                assert await quick.document() == (topic, [number + 1])
        await watch.line("that is too slow")
        assert await slow.closed() == 1013


async def test_what_waits_of_an_ended_subscription_precedes_the_next(run_hub: RunHub):
    async with run_hub(queue_bytes=10**9) as hub, slow_client(hub) as client:
        slow = await subscribed(client, A)
        quick = await subscribed(hub, A)
        for second in range(30):
            await hub.accepted(fragment(second, second + 1) + b"\n" * 500_000, topic=A)
            assert await quick.document() == (A, [second + 1])
        await slow.send("subscribe", A)
        received = [await slow.next() for _ in range(31)]
        assert [type(each) for each in received] == [tuple] * 30 + [dict]


async def test_a_selection_that_waits_does_not_delay_the_other_topics(
    hub: Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(filtered_reader, "QUIET_SECONDS", 1000.0)  # hold empty fragments back
    select = {"prefixes": ["https://source.example/data/9"]}
    member = await connected(hub)
    await member.subscribe(A, select=select)
    await hub.accepted(fragment(0, 1), topic=A)
    assert await member.document() == (A, [])
    await hub.accepted(fragment(1, 2), topic=A)
    await hub.accepted(fragment(0, 1), topic=B)
    connection = await connected(hub)
    await connection.subscribe(A, select=select, since=format_datetime(at(0)))
    assert await connection.document() == (A, [])
    await connection.subscribe(B, since=format_datetime(at(0)))
    assert await connection.document() == (B, [1])


async def test_who_does_not_read_the_answers_is_cut_off(
    hub: Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(many_topics, "_MAX_UNREAD_BYTES", 100_000)
    async with slow_client(hub) as client:
        connection = await connected(client)
        with suppress(ConnectionError):  # the hub closes it
            for number in range(500):
                await connection.send("subscribe", "x" * 15_000 + str(number))
        assert await connection.closed() == 1013


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"type":"subscribe"}', '{"type":"other","topic":"t"}', "<urlset/>"]
)
async def test_what_is_no_frame_of_a_topic_ends_the_connection(hub: Client, text: str):
    connection = await subscribed(hub, A)
    await connection.send_text(text)
    error = await connection.control()
    assert error["code"] == "bad-request"
    assert "topic" not in error
    assert await connection.closed() == 1008


# Publishing


async def test_a_source_publishes_on_many_topics(hub: Client):
    listener = await subscribed(hub, A, B)
    source = await connected(hub)
    for topic in (A, B):
        await source.send("publish", topic)
        assert await source.control() == {"type": "publishing", "topic": topic, "through": None}
    await source.publish(A, fragment(0, 1), fragment(1, 2))
    await source.accepted(A, 2)
    await source.publish(B, fragment(0, 3))
    await source.accepted(B, 3)
    assert [await listener.document() for _ in range(3)] == [(A, [1]), (A, [2]), (B, [3])]


async def test_a_refused_publication_does_not_end_the_others(run_hub: RunHub):
    grant = {"token": TOKEN, "topics": [A]}
    async with run_hub(publishers=[grant]) as hub:
        source = await connected(hub, Authorization=f"Bearer {TOKEN}")
        await source.send("publish", B)
        error = await source.control()
        assert (error["code"], error["topic"]) == ("forbidden", B)
        await source.start_publishing(A)
        await source.publish(B, fragment(0, 1))
        await source.publish(A, b"<urlset")
        error = await source.control()
        assert (error["code"], error["topic"]) == ("invalid-fragment", A)
        await source.publish(A, fragment(0, 1))  # ignored
        assert (await source.start_publishing(A))["through"] is None
        await source.publish(A, fragment(1, 2))
        await source.accepted(A, 2)


async def test_a_refused_publication_with_much_in_flight_does_not_stop_the_reading(hub: Client):
    source = await connected(hub)
    for topic in (A, B):
        await source.start_publishing(topic)
    large = fragment(0, 1) + b"\n" * 300_000
    await source.publish(A, b"<urlset", *[large] * 10)
    await source.publish(B, fragment(0, 1))
    error = await source.control()
    assert (error["code"], error["topic"]) == ("invalid-fragment", A)
    await source.accepted(B, 1)


async def test_a_hub_that_stops_closes_the_connection(run_hub: RunHub):
    async with aiohttp.ClientSession() as session:
        async with run_hub() as hub:
            client = Client(hub.url, session)
            connection = await subscribed(client, A)
            await connection.start_publishing(B)
            closed = asyncio.create_task(connection.closed())
        assert await closed == 1001
