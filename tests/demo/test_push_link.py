"""The push link of the demo, in front of an echo server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from rsnotify_demo.destination_process import PushLink, open_link

#: Seconds; only what hangs takes them.
PATIENCE = 120


class Pair:
    """A link, and how many connections have reached its far end."""

    def __init__(self) -> None:
        self.link: PushLink
        self.port = 0
        self.arrived = 0

    async def echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.arrived += 1
        try:
            while chunk := await reader.read(1000):
                writer.write(chunk)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    pair = Pair()
    far = await asyncio.start_server(pair.echo, "127.0.0.1", 0)
    hub = f"http://127.0.0.1:{far.sockets[0].getsockname()[1]}/"
    async with far, open_link(hub) as (pair.link, url):
        pair.port = urlsplit(url).port or 0
        async with asyncio.timeout(PATIENCE):
            yield pair


async def test_it_forwards_in_both_directions_and_counts_bytes(pair: Pair) -> None:
    reader, writer = await pair.connect()
    for text in (b"one", b"two" * 100_000):
        writer.write(text)
        assert await reader.readexactly(len(text)) == text
    assert pair.link.carried == 300_003
    writer.close()


async def test_cutting_it_aborts_open_connections(pair: Pair) -> None:
    reader, writer = await pair.connect()
    writer.write(b"x")
    await reader.readexactly(1)
    pair.link.cut()
    assert await reader.read() == b""
    writer.close()


async def test_a_connection_to_a_cut_link_is_forwarded_once_it_is_restored(pair: Pair) -> None:
    pair.link.cut()
    reader, writer = await pair.connect()
    writer.write(b"early")
    assert pair.arrived == 0
    pair.link.restore()
    assert await reader.readexactly(5) == b"early"
    writer.close()


async def test_a_client_that_gave_up_is_never_forwarded(pair: Pair) -> None:
    pair.link.cut()
    for _ in range(3):
        reader, writer = await pair.connect()
        writer.write(b"lost")
        writer.write_eof()
        assert await reader.read() == b""  # the link has closed it
        writer.close()
    pair.link.restore()
    reader, writer = await pair.connect()
    writer.write(b"x")
    await reader.readexactly(1)
    assert pair.arrived == 1
    writer.close()


async def test_the_link_closes_connections_if_there_is_no_hub(pair: Pair) -> None:
    async with open_link("http://127.0.0.1:1/") as (_, url):
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
        assert await reader.read() == b""
        writer.close()
