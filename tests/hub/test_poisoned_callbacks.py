"""Callbacks that misbehave in every way do not delay the deliveries to others."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from rsnotify.runtime import http_client as connection
from rsnotify_hub.subscriptions import DeliveryState
from rsnotify_hub.websub.scheduler import Capacity, DeliveryScheduler
from tests.hub.deliveries import opened_channel
from tests.hub.helpers import Callback, Clock, fragment

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
FOREVER = 1_000_000


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX: ")
    for _ in range(FOREVER):
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.01)


async def trickle_a_reason(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 500 No\r\nContent-Length: 4000\r\n\r\n")
    for _ in range(FOREVER):
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.01)


async def read_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.Event().wait()


async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    own: socket.socket = writer.get_extra_info("socket")
    own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(FOREVER):
        writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        await writer.drain()


async def promise_too_much(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 500 No\r\nContent-Length: 1000\r\n\r\nshort")
    await writer.drain()


async def send_huge_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(FOREVER):
        writer.write(b"X-%d: " % number + b"x" * 60_000 + b"\r\n")
        await writer.drain()


async def promise_for_ever(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for _ in range(FOREVER):
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0)


async def switch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")
    await asyncio.Event().wait()


async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 307 Here\r\nLocation: /callback\r\nContent-Length: 0\r\n\r\n")
    await writer.drain()


async def speak_no_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 mail.example ESMTP\r\n")
    await writer.drain()


async def inflate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(
        b"HTTP/1.1 500 No\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x08"
    )
    await writer.drain()


#: These end only when their time is up, which is when the test says so.
ENDLESS = [hang, trickle, read_nothing]

POISONS = [
    *ENDLESS,
    trickle_a_reason,
    reset,
    hang_up,
    flood,
    promise_too_much,
    send_huge_headers,
    promise_for_ever,
    switch,
    redirect,
    speak_no_http,
    inflate,
]


@asynccontextmanager
async def poisoned(behaviour: Behaviour) -> AsyncIterator[str]:
    """A callback with one of the behaviours."""
    tasks: set[asyncio.Task[None]] = set()

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with suppress(OSError):
                await behaviour(reader, writer)
            writer.close()
            await asyncio.sleep(0)
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(behave, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/callback"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("behaviour", POISONS)
async def test_a_poisoned_callback_fails_and_the_others_get_everything(
    behaviour: Behaviour,
    tmp_path: Path,
    callback: Callback,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(connection, "EXCERPT_SECONDS", 0.05)
    async with (
        poisoned(behaviour) as url,
        opened_channel(tmp_path, clock, retry_seconds=600) as deliveries,
    ):
        bad = await deliveries.subscribed(url)

        def has_failed() -> bool:
            if behaviour in ENDLESS and bad.slot is not None:
                bad.slot.expire()
            return bad.failures > 0

        await deliveries.subscribed(callback)
        for second in (1, 2, 3):
            await deliveries.publish(second)
            assert (await callback.delivery())[1] == fragment(second - 1, second)
        await deliveries.until(has_failed)
        assert bad.state is DeliveryState.RETRYING
        assert bad.last_failure is not None
        assert len(bad.last_failure.excerpt) <= 512
        assert bad.subscription.position == 0


async def test_many_hanging_callbacks_delay_no_others(
    tmp_path: Path, callback: Callback, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("rsnotify_hub.websub.sender.CLOSE_SECONDS", 0)
    # The slow queue has capacity for a sound callback, too, in case the machine delays it.
    quick, slow = Capacity(4, 4), Capacity(3, 2)
    scheduler = DeliveryScheduler(1000, quick=quick, slow=slow, quick_seconds=0.5)
    async with (
        poisoned(hang) as url,
        opened_channel(tmp_path, clock, scheduler, retry_seconds=600) as deliveries,
    ):
        for number in range(12):
            await deliveries.subscribed(f"{url}/{number}")
        good = await deliveries.subscribed(callback)
        for second in (1, 2, 3):
            await deliveries.publish(second)
            assert (await callback.delivery())[1] == fragment(second - 1, second)
        await deliveries.until(lambda: good.behind_since is None)


async def test_a_success_is_one_whatever_its_body(tmp_path: Path, callback: Callback, clock: Clock):
    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\nx")
        await asyncio.Event().wait()

    async with (
        poisoned(lie) as url,
        opened_channel(tmp_path, clock) as deliveries,
    ):
        delivery = await deliveries.subscribed(url)
        await deliveries.publish(1)
        await deliveries.until(lambda: delivery.subscription.position == 1)
        assert (delivery.failures, delivery.last_failure) == (0, None)
