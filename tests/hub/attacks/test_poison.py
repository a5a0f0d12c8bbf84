"""Poisoned callbacks affect no other callback."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tests.hub.attacks.helpers import Answer, Names, confirm, raw_server, response
from tests.hub.helpers import PATIENCE, TOPIC, Callback, Client, RunHub, fragment, seconds_of


def confirming(poison: Answer) -> Answer:
    """Confirm subscriptions correctly, and answer deliveries with poison."""

    async def answer(
        head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await (confirm if head.startswith(b"GET") else poison)(head, reader, writer)

    return answer


async def hangs(head: bytes, reader: object, writer: object) -> None:
    await asyncio.Event().wait()


async def trickles(head: bytes, reader: object, writer: asyncio.StreamWriter) -> None:
    for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 10_000:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.2)


async def trickles_a_body(head: bytes, reader: object, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 500 No\r\nContent-Length: 100000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.2)


async def circles(head: bytes, reader: object, writer: asyncio.StreamWriter) -> None:
    writer.write(response(b"", "Location: /again", status=307))
    await writer.drain()


async def promises_more(head: bytes, reader: object, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 500 No\r\nContent-Length: 1000000\r\n\r\nno more")
    await writer.drain()


async def promises_less(head: bytes, reader: object, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 500 No\r\nContent-Length: 1\r\n\r\n" + b"HTTP/1.1 200 OK\r\n\r\n" * 9)
    await writer.drain()


async def contradicts(head: bytes, reader: object, writer: asyncio.StreamWriter) -> None:
    writer.write(
        b"HTTP/1.1 500 No\r\nContent-Length: 5\r\nContent-Length: 6\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"
    )
    await writer.drain()


async def resets(head: bytes, reader: object, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def babbles(head: bytes, reader: object, writer: asyncio.StreamWriter) -> None:
    writer.write(bytes(range(256)) * 100)
    await writer.drain()


async def bombs(head: bytes, reader: object, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 500 No\r\nContent-Encoding: gzip\r\nRetry-After: 9999999999\r\n\r\n")
    for _ in range(100):
        writer.write(bytes(65536))
        await writer.drain()


async def upgrades(head: bytes, reader: object, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n")
    await asyncio.Event().wait()


POISONS: list[Answer] = [
    hangs,
    trickles,
    trickles_a_body,
    circles,
    promises_more,
    promises_less,
    contradicts,
    resets,
    babbles,
    bombs,
    upgrades,
]


@pytest.mark.parametrize("poison", POISONS, ids=lambda poison: poison.__name__)
async def test_a_poisoned_callback_delays_no_other(
    run_hub: RunHub, callback: Callback, poison: Answer
):
    async with run_hub() as hub, raw_server(confirming(poison)) as poisoned:
        for number in range(20):
            url = poisoned.url(f"/{number}")
            assert await hub.form(mode="subscribe", topic=TOPIC, callback=url) == (202, "")
        await hub.subscriptions(lambda rows: len(rows) == 20)
        await hub.subscribe(callback)
        for second in range(1, 6):
            await hub.accepted(fragment(second - 1, second))
            assert seconds_of((await callback.delivery())[1]) == [second]
        await poisoned.until(lambda: any(each.startswith(b"POST") for each in poisoned.requests))
        rows = await hub.subscriptions()
        assert len(rows) == 21  # none of this ends a subscription


def hosts(names: Names, count: int) -> list[str]:
    """Host names that all resolve to this machine, like those of an attacker's domain."""
    found = [f"host-{number}.evil.test" for number in range(count)]
    names.addresses.update((name, ["127.0.0.1"]) for name in found)
    return found


async def subscribe_all(hub: Client, names: list[str], port: int) -> None:
    """Subscribe one callback after another, at these hosts."""
    urls = [f"http://{name}:{port}/{number}" for number, name in enumerate(names)]
    answers = await asyncio.gather(
        *(hub.form(mode="subscribe", topic=TOPIC, callback=url) for url in urls)
    )
    assert set(answers) == {(202, "")}


async def subscribe_patiently(hub: Client, callback: Callback) -> None:
    """Subscribe again if a slow machine has ended the verification as one that takes too long."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE / 6):
                    return await hub.subscribe(callback)


async def test_verifications_that_hang_at_many_hosts_delay_no_other(
    run_hub: RunHub, callback: Callback, names: Names
):
    """No request ends by itself here, so others are served only because of fairness."""
    async with (
        run_hub(callback_seconds=1000) as hub,
        raw_server(hangs) as poisoned,
    ):
        await subscribe_all(hub, hosts(names, 40) * 12, poisoned.port)
        await subscribe_patiently(hub, callback)


async def test_deliveries_that_hang_at_many_hosts_delay_no_other(
    run_hub: RunHub, callback: Callback, names: Names
):
    async with (
        run_hub(callback_seconds=1000) as hub,
        raw_server(confirming(hangs)) as poisoned,
    ):
        await subscribe_all(hub, hosts(names, 45) * 10, poisoned.port)
        await hub.subscriptions(lambda rows: len(rows) > 0, limit="1")
        await poisoned.until(lambda: len(poisoned.requests) >= 450)
        await subscribe_patiently(hub, callback)
        for second in range(1, 4):
            await hub.accepted(fragment(second - 1, second))
            assert seconds_of((await callback.delivery())[1]) == [second]
