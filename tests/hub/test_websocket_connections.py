"""`GET /ws`: the rules of every connection, whatever its role."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import datetime
from unittest.mock import Mock

import aiohttp
import pytest
from aiohttp.test_utils import make_mocked_request

from rsnotify.format.datetimes import format_datetime, parse_datetime
from rsnotify_hub.live.connections import HandedOver, hand_over
from tests.hub.conftest import RunHub
from tests.hub.helpers import TOPIC, Client, at, chain, fragment, heard, seconds_of, send
from tests.hub.raw_sockets import BINARY, CLOSE, PING, PONG, TEXT, Socket, connect, frame
from tests.waiting import PATIENCE

SUBSCRIBE = frame(TEXT, json.dumps({"type": "subscribe", "topic": TOPIC, "since": None}).encode())
PUBLISH = frame(TEXT, json.dumps({"type": "publish", "topic": TOPIC}).encode())


async def subscribed(socket: Socket) -> None:
    await socket.send(SUBSCRIBE)
    assert json.loads(await socket.text())["type"] == "subscribed"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 426),
        ({"Connection": "Upgrade", "Upgrade": "h2c"}, 426),
        ({"Connection": "Upgrade", "Upgrade": "websocket"}, 400),
        (
            {
                "Connection": "Upgrade",
                "Upgrade": "websocket",
                "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
                "Sec-WebSocket-Version": "7",
            },
            400,
        ),
    ],
)
async def test_a_bad_handshake_is_answered_with_the_reason(
    hub: Client, headers: dict[str, str], status: int
):
    async with hub.session.get(hub.url + "ws", headers=headers) as response:
        assert response.status == status
        assert "WebSocket connection" in await response.text()
    assert (await hub.get("healthz"))[0] == 200


async def test_frames_that_arrive_with_the_handshake_are_not_lost(hub: Client):
    early = PUBLISH + frame(TEXT, fragment(0, 1)) + frame(TEXT, fragment(1, 2))
    async with connect(hub, early=early) as (_, socket):
        assert json.loads((await socket.message())[1])["type"] == "publishing"
        until = None
        while until != format_datetime(at(2)):
            until = json.loads((await socket.message())[1])["until"]


async def test_a_message_may_come_in_parts_with_a_ping_between(hub: Client):
    async with connect(hub) as (_, socket):
        body, first = fragment(0, 1), json.dumps({"type": "publish", "topic": TOPIC}).encode()
        await socket.send(frame(TEXT, first[:9], fin=False), frame(0, first[9:]))
        assert json.loads((await socket.message())[1])["type"] == "publishing"
        await socket.send(
            frame(TEXT, body[:100], fin=False),
            frame(0, body[100:200], fin=False),
            frame(PING, b"still there?"),
            frame(0, body[200:]),
        )
        assert await socket.message() == (PONG, b"still there?")
        assert json.loads((await socket.message())[1])["type"] == "accepted"
    assert await heard(await hub.listen(0), 1) == [1]


async def test_binary_content_is_sent_in_a_binary_frame(hub: Client):
    for body, opcode in [
        (b"plain text", TEXT),
        (b"\xff\xfe no text", BINARY),
        (b'{"type": "gap"}', BINARY),  # nobody shall take it for a control frame
    ]:
        async with connect(hub) as (_, socket):
            await subscribed(socket)
            assert (await hub.publish(body, Content_Type="application/octet-stream"))[0] == 202
            assert await socket.message() == (opcode, body)


#: Frames that a client must not send, and the code with which the hub closes the connection.
REFUSED = {
    "a large frame": ([frame(TEXT, b"x" * 20_000)], 1009),
    "a large frame of a subscriber": ([SUBSCRIBE, frame(TEXT, b"x" * 20_000)], 1009),
    "deep JSON": ([frame(TEXT, b'{"type":' + b"[" * 60_000 + b"]" * 60_000 + b"}")], 1009),
    "a promise of 2^62 bytes": ([b"\x81\xff" + struct.pack(">Q", 1 << 62) + bytes(4)], 1009),
    "a promise of 2^64 bytes": ([b"\x81\xff" + b"\xff" * 8 + bytes(4)], 1009),
    "many pongs": ([SUBSCRIBE, *[frame(PONG, b"")] * 200], 1008),
    "many pings": ([SUBSCRIBE, *[frame(PING, b"")] * 200], 1008),
    "many pings of a Source": ([PUBLISH, *[frame(PING, b"")] * 200], 1008),
    "many parts": ([frame(TEXT, b"", fin=False), *[frame(0, b"", fin=False)] * 200], 1008),
    "binary": ([frame(BINARY, SUBSCRIBE)], 1008),
    "binary of a Source": ([PUBLISH, frame(BINARY, fragment(0, 1))], 1008),
    "not masked": ([frame(TEXT, b"x", masked=False)], 1002),
    "not masked of a subscriber": ([SUBSCRIBE, frame(TEXT, b"x", masked=False)], 1002),
    "reserved bits": ([frame(TEXT, b"x", flags=0x40)], 1002),
    "an unknown opcode": ([frame(5, b"")], 1002),
    "a ping in parts": ([frame(PING, b"", fin=False)], 1002),
    "a long ping": ([frame(PING, b"x" * 126)], 1002),
    "a part of nothing": ([frame(0, b"x")], 1002),
    "garbage": ([random.Random(4).randbytes(4096)], 1002),
    "no UTF-8": ([frame(TEXT, b"\xff\xfe")], 1007),
    "no UTF-8 of a Source": ([PUBLISH, frame(TEXT, b"\xff")], 1007),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_frames_that_no_client_needs_end_the_connection(hub: Client, name: str):
    frames, code = REFUSED[name]
    listener = await hub.listen()
    async with connect(hub) as (_, socket):
        await socket.send(*frames)
        assert await socket.closed() == code
    await hub.accepted(fragment(0, 1))
    assert seconds_of(await listener.receive_str()) == [1]


async def test_a_source_may_send_a_fragment_in_more_parts_than_others(hub: Client):
    async with connect(hub) as (_, socket):
        body = fragment(0, 1)
        parts = [body[begin : begin + 2] for begin in range(0, len(body), 2)]
        assert len(parts) > 150
        await socket.send(
            PUBLISH,
            frame(TEXT, b"", fin=False),
            *[frame(0, part, fin=False) for part in parts],
            frame(0, b""),
        )
        assert json.loads((await socket.message())[1])["type"] == "publishing"
        assert json.loads((await socket.message())[1])["type"] == "accepted"


async def test_a_close_is_answered_with_its_code(hub: Client):
    async with connect(hub) as (_, socket):
        await subscribed(socket)
        await socket.send(frame(CLOSE, struct.pack(">H", 1000)))
        assert await socket.message() == (CLOSE, struct.pack(">H", 1000))
        assert await socket.end() == b""


async def test_the_hub_pings_its_websockets(run_hub: RunHub):
    async with run_hub(websocket_ping_seconds=0.1) as hub, connect(hub) as (_, socket):
        await socket.send(SUBSCRIBE)
        assert b"\x89\x00" in await socket.end()  # it is pinged, and then disconnected


async def test_a_client_that_answers_no_ping_is_dropped_and_one_that_does_stays(
    hub: Client, rounds: Callable[[], None]
):
    async with connect(hub) as (_, living), connect(hub) as (_, dead):
        await subscribed(living)
        await subscribed(dead)
        for _ in range(3):
            rounds()
            assert await living.message() == (PING, b"")
            await living.send(frame(PONG, b""))
            await hub.get("healthz")  # so that the hub has read it
        assert await dead.end() == b"\x89\x00"  # a ping, and then it is hung up on
        await hub.accepted(fragment(0, 1))
        assert seconds_of(await living.text()) == [1]


async def test_a_client_that_reads_nothing_is_dropped_although_it_sends(
    run_hub: RunHub, rounds: Callable[[], None]
):
    async with run_hub(queue_bytes=10**9) as hub, connect(hub) as (_, socket):
        await subscribed(socket)
        await hub.accepted(*chain(10, padding=900_000))
        for _ in range(2):
            assert (await hub.topics())[0]["websockets"] == 1
            rounds()
            await socket.send(frame(PING, b""))
            await hub.get("healthz")
        await hub.topics(lambda rows: rows[0]["websockets"] == 0)


async def test_the_number_of_websockets_is_limited_and_a_closed_one_frees_capacity(run_hub: RunHub):
    async with run_hub(max_websockets=2) as hub, connect(hub) as (_, second):
        await subscribed(second)
        async with connect(hub) as (_, first):
            await subscribed(first)
            async with connect(hub) as (head, _):
                assert head.startswith("HTTP/1.1 429")
                assert "Retry-After" in head
        async with asyncio.timeout(PATIENCE):
            status = "429"
            while status == "429":
                async with connect(hub) as (head, _):
                    status = head.split(" ")[1]
        assert status == "101"
        await hub.accepted(fragment(0, 1))
        assert seconds_of(await second.text()) == [1]


async def test_an_idle_subscriber_costs_no_task(hub: Client):
    async with AsyncExitStack() as stack:
        raw = [(await stack.enter_async_context(connect(hub)))[1] for _ in range(20)]
        for socket in raw:
            await subscribed(socket)
        await hub.accepted(fragment(0, 1))
        for socket in raw:
            assert (await socket.message())[1] == fragment(0, 1)
        names = [repr(task.get_coro()) for task in asyncio.all_tasks()]
        assert len([name for name in names if "WebSockets" in name or "replay" in name]) == 0
        assert len([name for name in names if "RequestHandler.start" in name]) < 20


async def test_a_client_that_reuses_a_file_descriptor_gets_nothing_of_the_old_topic(hub: Client):
    async with AsyncExitStack() as stack:
        for second in range(20):
            async with AsyncExitStack() as leaving:
                for _ in range(3):
                    _, gone = await leaving.enter_async_context(connect(hub))
                    await subscribed(gone)
            # The system reuses the file descriptor of a socket that was closed.
            _, other = await stack.enter_async_context(connect(hub))
            await other.send(SUBSCRIBE.replace(b"/data/", b"/DATA/"))
            assert json.loads(await other.text())["topic"] == TOPIC.replace("/data/", "/DATA/")
            await hub.accepted(fragment(second, second + 1))
            await hub.accepted(
                fragment(second, second + 1), topic=TOPIC.replace("/data/", "/DATA/")
            )
            assert seconds_of(await other.text()) == [second + 1]


async def test_a_slow_reader_gets_everything_in_order_once_it_reads(run_hub: RunHub):
    total = 40
    async with run_hub(queue_bytes=10**9) as hub, connect(hub) as (_, slow):
        await subscribed(slow)
        quick = await hub.listen()
        got: list[float] = []
        for second in range(total):
            await hub.accepted(fragment(second, second + 1, padding=300_000))
            assert seconds_of(await quick.receive_str()) == [second + 1]
            if second % 10 == 9:  # it catches up a little, and falls behind again
                got += seconds_of(await slow.text())
        while got[-1] != total:
            got += seconds_of(await slow.text())
        assert got == list(range(1, total + 1))
        await hub.accepted(fragment(total, total + 1))  # and is quick again
        assert seconds_of(await slow.text()) == [total + 1]


async def acknowledged(source: aiohttp.ClientWebSocketResponse) -> datetime | None:
    """The last instant that was acknowledged before the hub stopped."""
    until = None
    while (message := await source.receive()).type is aiohttp.WSMsgType.TEXT:
        until = parse_datetime(json.loads(message.data)["until"])
    assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1001)
    return until


async def test_a_hub_that_stops_acknowledges_everything_that_it_stored(run_hub: RunHub):
    async with aiohttp.ClientSession() as session:
        async with run_hub() as hub:
            source = await Client(hub.url, session).source()
            await send(source, *chain(500))
            hearing = asyncio.create_task(acknowledged(source))
            await hub.topics(bool)  # some of it is kept
        until = await hearing
        assert until is not None
    async with run_hub() as hub:
        [row] = await hub.topics()
        assert parse_datetime(row["through"]) == until  # and not more than that
        last = (until - at(0)).total_seconds()
        assert await heard(await hub.listen(0), last) == list(range(1, int(last) + 1))


@pytest.mark.parametrize("gone", [True, False])
async def test_a_client_that_leaves_during_its_handshake_is_no_error(*, gone: bool):
    transport = Mock(is_closing=lambda: True)
    request = make_mocked_request("GET", "/ws", transport=transport)
    if gone:
        request.protocol.transport = None
    begin = Mock()
    assert isinstance(hand_over(request, b"", begin), HandedOver)
    assert not begin.called
