"""`GET /ws`: subscribing."""

from __future__ import annotations

import asyncio
import json
import random
import socket as sockets

import aiohttp
import pytest

from rsnotify.format.datetimes import format_datetime
from tests.hub.conftest import RunHub
from tests.hub.helpers import (
    TOPIC,
    Client,
    LogWatch,
    at,
    chain,
    fragment,
    heard,
    seconds_of,
    send,
    slow_client,
)


async def test_the_frames_are_exactly_those_of_the_protocol(hub: Client):
    socket, other = await hub.websocket(), await hub.websocket()
    await socket.send_json({"type": "subscribe", "topic": TOPIC, "since": None})
    assert await socket.receive_str() == (
        f'{{"type":"subscribed","topic":"{TOPIC}","through":null,"audience":1}}'
    )
    await hub.accepted(fragment(0, 1))
    assert (await socket.receive_str()).encode() == fragment(0, 1)
    await other.send_json({"type": "subscribe", "topic": TOPIC, "since": None})
    assert await other.receive_str() == (
        f'{{"type":"subscribed","topic":"{TOPIC}","through":"2026-01-01T00:00:01.000000Z",'
        '"audience":2}'
    )


async def test_nothing_is_missed_or_repeated_between_replay_and_live(hub: Client):
    total, chosen = 300, random.Random(7)

    async def publish() -> None:
        source = await hub.source()
        for second in range(total):
            await source.send_str(fragment(second, second + 1).decode())
            if second % 7 == 0:
                await hub.get("healthz")  # lets the subscribers in between

    async def follow(start: int) -> list[float]:
        if start:  # not before there is something to replay
            through = format_datetime(at(start))[:19]
            await hub.topics(lambda rows: bool(rows) and rows[0]["through"][:19] >= through)
        since = chosen.randint(0, start)
        return [since, *(await heard(await hub.listen(since), total))]

    async with asyncio.TaskGroup() as group:
        group.create_task(publish())
        follower = [group.create_task(follow(start)) for start in range(0, total - 50, 10)]
    for task in follower:
        since, *seconds = task.result()
        assert seconds == list(range(int(since) + 1, total + 1))


async def test_a_live_subscriber_receives_every_one_of_many_fragments(hub: Client):
    total = 3_000
    sockets = [await hub.listen() for _ in range(2)]
    source = await hub.source()
    await send(source, *chain(total))
    for socket in sockets:
        assert await heard(socket, total) == list(range(1, total + 1))


async def test_a_log_that_does_not_reach_back_to_since_is_announced_as_a_gap(run_hub: RunHub):
    size = len(fragment(0, 1))
    async with run_hub(log_bytes=3 * size) as hub:
        await hub.accepted(*chain(9))
        late = await hub.listen(2)
        assert await late.receive_str() == (
            f'{{"type":"gap","topic":"{TOPIC}","from":"2026-01-01T00:00:06.000000Z"}}'
        )
        assert await heard(late, 9) == [7, 8, 9]
        early = await hub.listen(6)
        assert await heard(early, 9) == [7, 8, 9]


async def test_a_replay_of_more_than_a_page_is_whole(run_hub: RunHub):
    async with run_hub() as hub:
        source = await hub.source()
        await send(source, *chain(700, padding=3000))
        until = format_datetime(at(700))
        while (await source.receive_json())["until"] != until:
            pass
    async with run_hub() as hub:
        assert await heard(await hub.listen(0), 700) == list(range(1, 701))


@pytest.mark.parametrize("limit", [{"queue_bytes": 1_000_000}, {"queue_frames": 2}])
async def test_a_subscriber_that_does_not_read_is_cut_off_and_the_others_are_not(
    run_hub: RunHub, watch: LogWatch, limit: dict[str, int]
):
    async with run_hub(**{"queue_bytes": 10**9, **limit}) as hub, slow_client(hub) as client:
        slow = await client.listen()
        quick = await hub.listen()
        large = [fragment(n, n + 1) + b"\n" * 500_000 for n in range(20)]
        for number, body in enumerate(large, 1):
            await hub.accepted(body)
            assert seconds_of(await quick.receive_str()) == [number]
        await watch.line("that is too slow")
        got = []
        while (message := await slow.receive()).type is aiohttp.WSMsgType.TEXT:
            got += seconds_of(message.data)
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1013)
        assert got == list(range(1, len(got) + 1))
        assert len(got) < len(large)
        # It sees the gap when it comes back, and gets the rest.
        assert await heard(await hub.listen(got[-1]), 20) == list(range(len(got) + 1, 21))


async def test_what_is_published_while_a_slow_subscriber_replays_reaches_it(hub: Client):
    size, before, total = 500_000, 16, 19  # more than the buffers of the system take
    async with slow_client(hub) as client:
        await hub.accepted(*chain(before, padding=size))
        slow = await client.listen(0)  # whose replay waits at its first page
        await hub.accepted(*chain(before, total, padding=size))
        assert await heard(slow, total) == list(range(1, total + 1))


async def test_a_second_frame_is_refused(hub: Client):
    socket = await hub.listen()
    await socket.send_str("{}")
    assert (await socket.receive_json())["code"] == "bad-request"
    assert (await socket.receive()).data == 1008


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "null",
        "{}",
        '{"type":"dance"}',
        '{"type":"subscribe"}',
        '{"type":"subscribe","topic":7}',
        '{"type":"subscribe","topic":"urn:x"}',
        '{"type":"subscribe","topic":"https://a.example/","since":"yesterday"}',
        "<urlset/>",
        "[" * 10_000,
        '{"type":"subscribe","x":' + "[" * 10_000,
    ],
)
async def test_a_bad_first_frame_is_refused(hub: Client, frame: str):
    socket = await hub.websocket()
    await socket.send_str(frame)
    answer = json.loads(await socket.receive_str())
    assert (answer["type"], answer["code"]) == ("error", "bad-request")
    closed = await socket.receive()
    assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1008)


async def test_a_client_that_sends_nothing_is_disconnected(run_hub: RunHub):
    async with run_hub(request_seconds=0.05) as hub:
        socket = await hub.websocket()
        assert (await socket.receive_json())["code"] == "bad-request"


async def test_a_connection_has_no_delay(hub: Client):
    socket = await hub.listen()
    option = socket.get_extra_info("socket").getsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY)
    assert option
