"""Timeouts of connections, with a real server over real sockets."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from rsnotify_hub import application
from rsnotify_hub.config.loading import load_configuration
from rsnotify_hub.connection_guard import ConnectionGuard, ConnectionLimit, make_timeout_watch
from rsnotify_hub.statistics import Statistics
from tests.hub.helpers import Client, RunHub, fragment
from tests.hub.processes import hub_process
from tests.hub.raw_sockets import Streams, rest_of
from tests.waiting import PATIENCE

#: Timeouts that are short enough for tests.
SHORT = {"header_seconds": 0.3, "request_seconds": 0.3, "idle_seconds": 0.3}
HEAD = b"POST /websub HTTP/1.1\r\nHost: localhost\r\n"
FORM = b"Content-Type: application/x-www-form-urlencoded\r\n"
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"

Connect = Callable[..., Awaitable[Streams]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Open raw connections to a hub."""
    writers = []

    async def to(url: str) -> Any:
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writers.append(writer)
        return reader, writer

    yield to
    for writer in writers:
        writer.close()


async def answers(hub: Client) -> None:
    """Wait until the hub answers; it also disconnects honest clients that are too slow."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(aiohttp.ClientError):
                assert (await hub.get("healthz"))[0] == 200
                return


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (b"", []),
        (b"GET", []),
        (HEAD, []),
        (HEAD + b"X: y\r\n" * 20, []),
        (b"\r\n\r\n", []),
        (b"\x16\x03\x01\x02\x00", []),
        (HEAD + FORM + b"Content-Length: 9\r\n\r\nhub", [b"408"]),
        (GET + GET + HEAD, [b"200", b"200"]),
    ],
    ids=["nothing", "word", "line", "lines", "empty lines", "TLS", "part of a body", "the third"],
)
async def test_an_incomplete_request_times_out(
    run_hub: RunHub, connect: Connect, sent: bytes, statuses: list[bytes]
):
    async with run_hub(**SHORT) as hub:
        reader, writer = await connect(hub.url)
        writer.write(sent)
        assert re.findall(rb"HTTP/1\.1 (\d+)", await rest_of(reader)) == statuses
        await answers(hub)


async def test_a_real_hub_has_the_same_timeouts(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RSNOTIFY_HUB_HEADER_SECONDS", "0.3")
    async with hub_process(tmp_path) as (hub, _):  # which uses uvloop if available
        reader, writer = await connect(hub.url)
        writer.write(HEAD)
        assert await rest_of(reader) == b""
        await answers(hub)


async def test_a_slow_head_times_out(run_hub: RunHub, connect: Connect):
    loop = asyncio.get_running_loop()
    async with run_hub(**SHORT) as hub:
        begin = loop.time()
        reader, writer = await connect(hub.url)
        end = asyncio.ensure_future(rest_of(reader))
        writer.write(b"GET /")
        while not end.done():  # each byte arrives in time, the head does not
            writer.write(b"x")
            await asyncio.wait([end], timeout=0.02)
        assert b" 200 " not in end.result()
        assert loop.time() - begin >= SHORT["header_seconds"], "not because of its first bytes"


async def test_no_client_is_disconnected_because_the_hub_was_slow(
    run_hub: RunHub, connect: Connect, monkeypatch: pytest.MonkeyPatch
):
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)  # frozen except for the changes below
    async with run_hub(header_seconds=0.3) as hub:
        reader, writer = await connect(hub.url)
        writer.write(GET[:9])
        await hub.get("healthz")  # so that the hub has processed this
        now += 10  # past the check that was due
        for _ in range(9):
            await asyncio.sleep(0)
        writer.write(GET[9:])
        assert await reader.readuntil(b"ok\n")


async def test_a_refused_client_that_left_does_not_delay_the_shutdown(
    run_hub: RunHub, connect: Connect, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(application, "_SHUTDOWN_SECONDS", 1000)  # for requests that are answered
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(run_hub())
        reader, writer = await connect(hub.url)
        writer.write(
            HEAD + b"Content-Type: application/xml\r\nLink: <https://a.example/>; rel=self\r\n"
            b"Content-Length: 1000000000\r\n\r\n"
        )
        async with asyncio.timeout(PATIENCE):
            assert b" 413 " in await reader.readline()
            writer.transport.abort()
            await stack.aclose()


async def test_an_idle_connection_is_closed(run_hub: RunHub, connect: Connect):
    async with run_hub(idle_seconds=0.3) as hub:
        reader, writer = await connect(hub.url)
        writer.write(GET)
        async with asyncio.timeout(PATIENCE):
            assert await reader.readuntil(b"ok\n")
        assert await rest_of(reader) == b""


async def test_a_websocket_is_not_idle(run_hub: RunHub, connect: Connect):
    async with run_hub(idle_seconds=0.3, header_seconds=0.9) as hub:
        listener = await hub.listen()
        reader, _ = await connect(hub.url)
        await rest_of(reader)  # which takes longer than any timeout
        await hub.accepted(fragment(0, 1))
        assert await listener.receive_str()


class Flood(asyncio.Protocol):
    """A server whose answer is larger than the buffers of the system."""

    def __init__(self, lost: asyncio.Event) -> None:
        self._lost = lost

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost.set()

    def connection_made(self, transport: Any) -> None:
        transport.write(ANSWER)


ANSWER = b"x" * 20_000_000


@asynccontextmanager
async def flooding() -> AsyncIterator[tuple[str, Statistics, asyncio.Event]]:
    configuration = load_configuration(None, **{**SHORT, "header_seconds": 60})
    statistics = Statistics()
    watch = make_timeout_watch(
        configuration.server,
        request_seconds=configuration.intake.request_seconds,
        statistics=statistics,
    )
    lost = asyncio.Event()
    server = await asyncio.get_running_loop().create_server(
        lambda: ConnectionGuard(lambda: Flood(lost), watch), "127.0.0.1", 0
    )
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}/", statistics, lost
    watch.close()


async def test_an_answer_that_the_client_does_not_read_times_out(connect: Connect):
    async with flooding() as (url, statistics, lost):
        reader, _ = await connect(url)  # never read from, so its buffer is soon full
        idle, writer = await connect(url)  # the same, but read from
        async with asyncio.timeout(PATIENCE):
            assert await idle.readexactly(len(ANSWER))
            await lost.wait()
        assert len(await rest_of(reader)) < len(ANSWER)
        assert statistics.refused["connection"] == 1
        writer.close()  # since Python 3.12 a server waits for its connections to end


async def test_a_new_connection_replaces_a_silent_one(run_hub: RunHub, connect: Connect):
    async with run_hub(max_connections=3) as hub:
        idle = [await connect(hub.url) for _ in range(3)]
        assert (await hub.get("healthz"))[0] == 200
        assert await rest_of(idle[0][0]) == b""


async def test_an_active_connection_is_not_replaced(run_hub: RunHub, connect: Connect):
    async with run_hub(max_connections=3) as hub:
        listeners = [await hub.listen() for _ in range(3)]
        reader, _ = await connect(hub.url)
        assert await rest_of(reader) == b""
        await listeners[0].close()
        async with asyncio.timeout(PATIENCE):
            while True:  # its place is free once the hub has noticed the end
                reader, writer = await connect(hub.url)
                writer.write(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
                if b" 200 " in await rest_of(reader):
                    return


def test_one_client_cannot_open_all_connections():
    limit = ConnectionLimit(10, 2, exempt=lambda address: address == "192.0.2.9")
    for address in ("192.0.2.1", "192.0.2.1", "192.0.2.9", "192.0.2.9", "2001:db8::1"):
        limit.acquire(address)
    assert limit.is_client_full("192.0.2.1")
    assert limit.is_client_full("::ffff:192.0.2.1")
    assert not limit.is_client_full("192.0.2.9")
    limit.acquire("2001:db8::2")
    assert limit.is_client_full("2001:db8::3")
    assert not limit.is_client_full("2001:db8:0:1::1")
    limit.release("192.0.2.1")
    assert not limit.is_client_full("192.0.2.1")


async def test_every_answer_has_the_security_headers(hub: Client):
    for path in ("healthz", "nowhere", "admin/topics", "websub"):
        async with hub.session.get(hub.url + path) as response:
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            assert "default-src 'none'" in response.headers["Content-Security-Policy"]
            assert response.headers["Server"] == "rsnotify"


async def test_a_compressed_body_is_refused(hub: Client):
    status, reason = await hub.publish(fragment(0, 1), Content_Encoding="gzip")
    assert (status, "Content-Encoding" in reason) == (415, True)
