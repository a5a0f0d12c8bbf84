"""Bodies and headers that are too large, or become too large when decoded."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import pytest

from tests.fork_server import own_interpreter
from tests.hub.attacks.helpers import raw_server, sending
from tests.hub.helpers import TOPIC, Client, RunHub, fragment
from tests.hub.processes import hub_process
from tests.hub.raw_sockets import Streams, opened
from tests.waiting import PATIENCE

FORM = "application/x-www-form-urlencoded"
MEGABYTE = 1 << 20
TOKEN = "a token of this test"


@pytest.fixture
def own_memory() -> Iterator[None]:
    """Start each hub as a real interpreter: a fork would count the memory of its server."""
    with own_interpreter():
        yield


def peak(pid: int) -> int:
    """Return the peak memory of a process, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


@asynccontextmanager
async def posting(
    hub: Client,
    length: int,
    *headers: str,
    content_type: str = "application/xml",
    version: str = "1.1",
) -> AsyncIterator[Streams]:
    """Send the head of a POST without its body."""
    lines = [
        f"POST /websub HTTP/{version}",
        f"Host: {urlsplit(hub.url).netloc}",
        f"Content-Type: {content_type}",
        f'Link: <{TOPIC}>; rel="self"',
        f"Content-Length: {length}",
        *headers,
    ]
    async with opened(hub.url) as (reader, writer), asyncio.timeout(PATIENCE):
        writer.write("\r\n".join([*lines, "", ""]).encode())
        yield reader, writer


async def status_of(reader: asyncio.StreamReader) -> int:
    head = await reader.readuntil(b"\r\n\r\n")
    return int(head.split()[1])


@pytest.mark.parametrize("headers", [(), ("Expect: 100-continue",)], ids=["sends", "asks first"])
@pytest.mark.parametrize("content_type", ["application/xml", FORM])
async def test_a_too_large_content_length_is_refused_before_the_body(
    run_hub: RunHub, headers: tuple[str, ...], content_type: str
):
    async with run_hub(max_fragment_bytes=100_000) as hub:
        for length in (100_001, 10**15):
            async with posting(hub, length, *headers, content_type=content_type) as (reader, _):
                assert await status_of(reader) == 413
        await hub.accepted(fragment(0, 1))


async def test_expect_continue_is_granted_only_to_authorized_publishers(run_hub: RunHub):
    body, grant = fragment(0, 1), {"token": TOKEN, "topics": [TOPIC]}
    expecting = "Expect: 100-continue"
    async with run_hub(publishers=[grant]) as hub:
        async with posting(hub, len(body), expecting) as (reader, _):
            assert await status_of(reader) == 401
        right = f"Authorization: Bearer {TOKEN}"
        async with posting(hub, len(body), expecting, right) as (reader, writer):
            assert await status_of(reader) == 100
            writer.write(body)
            assert await status_of(reader) == 202
        async with posting(hub, len(body), "Expect: a miracle", right) as (reader, _):
            assert await status_of(reader) == 417


async def test_a_client_of_http_1_0_receives_no_interim_response(run_hub: RunHub):
    body, right = fragment(0, 1), f"Authorization: Bearer {TOKEN}"
    async with run_hub(publishers=[{"token": TOKEN, "topics": [TOPIC]}]) as hub:
        for expecting in ("Expect: 100-continue", "Expect: a miracle"):
            async with posting(hub, len(body), expecting, right, version="1.0") as (reader, writer):
                writer.write(body)
                assert await status_of(reader) == 202


@pytest.mark.parametrize("content_type", ["text/plain", FORM])
async def test_an_incomplete_body_is_neither_stored_nor_answered(
    run_hub: RunHub, caplog: pytest.LogCaptureFixture, content_type: str
):
    async with run_hub() as hub:
        expecting = posting(hub, 1000, "Expect: 100-continue", content_type=content_type)
        async with expecting as (reader, writer):
            assert await status_of(reader) == 100
            writer.write(b"x" * 500)
            writer.write_eof()
            assert await reader.read() == b""
        assert await hub.topics() == []
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_fetching_an_endless_topic_ends_at_the_limit(run_hub: RunHub):
    endless = sending(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n", bytes(65536))
    async with raw_server(endless) as source, run_hub(max_channel_bytes=MEGABYTE) as hub:
        status, reason = await hub.form(mode="publish", url=source.url("/channel"))
        assert (status, "too large" in reason) == (502, True)


#: Endless answers of a callback.
FLOODS = {
    "a header": (b"HTTP/1.1 200 OK\r\nX: ", b"x" * 65536),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X-Y: z\r\n" * 8192),
    "informational answers": (b"", b"HTTP/1.1 102 Wait\r\n\r\n" * 3000),
    "answers": (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" * 1600),
    "a status line": (b"HTTP/1.1 200 ", b"O" * 65536),
    "a body": (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536),
    "a failure's body": (b"HTTP/1.1 500 No\r\n\r\n", b"x" * 65536),
    "a chunk's extension": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;",
        b"x" * 65536,
    ),
    "trailers": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
        b"X-Y: z\r\n" * 8192,
    ),
}


@pytest.mark.usefixtures("own_memory")
async def test_neither_a_callback_nor_a_compressed_body_fills_the_memory_of_the_hub(tmp_path: Path):
    async def flood(head: bytes, reader: object, writer: asyncio.StreamWriter) -> None:
        first, then = FLOODS[unquote(head.split(b"?")[0].decode().partition("/")[2])]
        writer.write(first)
        for _ in range(1600):  # 100 MB
            writer.write(then)
            await writer.drain()

    async with raw_server(flood) as callback, hub_process(tmp_path) as (hub, process):
        await hub.accepted(fragment(0, 1))
        for number, name in enumerate(FLOODS):
            before = peak(process.pid)
            url = callback.url(f"/{quote(name)}?")
            assert await hub.form(mode="subscribe", topic=TOPIC, callback=url) == (202, "")
            await callback.until(lambda number=number: callback.ended > number)
            assert peak(process.pid) - before < 30 * MEGABYTE, name
        before = peak(process.pid)
        for kind, compress in (("gzip", gzip.compress), ("deflate", zlib.compress)):
            packed = compress(bytes(60 * MEGABYTE))
            for content in ("application/xml", FORM):
                headers = {"Content_Encoding": kind, "Content_Type": content}
                assert (await hub.publish(packed, **headers))[0] in (400, 413, 415)
        await hub.accepted(fragment(1, 2))
        assert peak(process.pid) - before < 30 * MEGABYTE


async def test_the_size_of_a_form_is_limited(hub: Client):
    right = {"hub.mode": "subscribe", "hub.topic": TOPIC, "hub.callback": "http://127.0.0.1:9/"}
    for field in (*right, "hub.secret", "hub.lease_seconds", "other"):
        form = {**right, field: right.get(field, "") + "x" * 200_000}
        async with hub.session.post(hub.url + "websub", data=form) as response:
            assert response.status in (400, 413), field
    many = [("other", "x")] * 5000
    async with hub.session.post(hub.url + "websub", data=many) as response:
        assert response.status == 400


async def test_the_size_of_a_chunked_form_is_limited_too(hub: Client):
    async def parts() -> AsyncIterator[bytes]:
        yield b"hub.mode=publish&hub.url=http://a.example/&padding="
        for _ in range(10):
            yield b"x" * 10_000

    headers = {"Content-Type": FORM}
    async with hub.session.post(hub.url + "websub", data=parts(), headers=headers) as response:
        assert response.status == 413
