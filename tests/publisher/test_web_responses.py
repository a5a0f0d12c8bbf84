"""Responses over HTTP: conditions, byte ranges, and compression on the wire."""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
import threading
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from random import Random

import aiohttp
import pytest

from rsnotify.runtime.web_messages import WebRequest, WebResponse
from rsnotify_publisher.web.responses import file_representation, memory_representation, respond
from tests.cases import case
from tests.publisher.helpers import PATIENCE
from tests.web_servers import KINDS, serving_answers

DIGITS = b"0123456789"
# Longer than a piece, and hard to compress, so that it is streamed in any form.
LONG = Random(1).randbytes(1_000_000)
PACKED = gzip.compress(LONG, compresslevel=1)
LONG_AGO = 1_000_000_000


@pytest.fixture(params=KINDS)
async def site(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    for name, content in {"digits": DIGITS, "empty": b"", "long": LONG}.items():
        (tmp_path / name).write_bytes(content)
        os.utime(tmp_path / name, (LONG_AGO, LONG_AGO))
    (tmp_path / "long.gz").write_bytes(PACKED)
    chunks = [LONG[at : at + 999] for at in range(0, 10**6, 999)]

    def answer(request: WebRequest) -> WebResponse:
        packed = "packed" in request.parameters()
        if request.path == "/chunks":
            held = memory_representation("v1", LONG_AGO, chunks)
            return respond(request, lambda: held, {}, compressible=packed)
        path = tmp_path / request.path[1:]
        return respond(
            request,
            lambda: file_representation(path, is_gzip=path.suffix == ".gz"),
            {"Content-Type": "text/plain", "Cache-Control": "no-cache"},
            compressible=packed,
        )

    async with serving_answers(answer, request.param) as url:
        yield url + "/"


class Got:
    def __init__(self, respond: aiohttp.ClientResponse, body: bytes) -> None:
        self.status = respond.status
        self.headers = respond.headers
        self.body = body


Get = Callable[..., Awaitable[Got]]


@pytest.fixture
async def get(site: str) -> AsyncIterator[Get]:
    async def get(name: str, *, method: str = "GET", **headers: str) -> Got:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        async with session.request(method, site + name, headers=names) as answered:
            return Got(answered, await answered.read())

    session = aiohttp.ClientSession(auto_decompress=False, skip_auto_headers=["Accept-Encoding"])
    async with session:
        yield get


async def test_a_version_has_a_strong_tag_and_a_date(get: Get):
    for name in ("digits", "long", "chunks"):
        first = await get(name)
        assert first.status == 200
        assert first.body in (DIGITS, LONG)
        assert first.headers["ETag"].startswith('"')
        assert first.headers["Last-Modified"] == "Sun, 09 Sep 2001 01:46:40 GMT"
        assert int(first.headers["Content-Length"]) == len(first.body)
        head = await get(name, method="HEAD")
        assert (head.status, head.body) == (200, b"")
        for header in ("ETag", "Last-Modified", "Content-Length", "Accept-Ranges"):
            assert head.headers[header] == first.headers[header]


BEFORE, THEN, AFTER = (f"Sun, 09 Sep 2001 01:46:{second} GMT" for second in (39, 40, 41))
#: The conditions of a request, where TAG is the current tag, and the expected status.
CONDITIONS: list[tuple[dict[str, str], int]] = [
    ({"if_none_match": "TAG"}, 304),
    ({"if_none_match": '"other", W/TAG'}, 304),
    ({"if_none_match": "*"}, 304),
    ({"if_modified_since": THEN}, 304),
    ({"if_none_match": "TAG", "if_modified_since": BEFORE}, 304),
    ({"if_none_match": '"other"'}, 200),
    ({"if_none_match": '"other"', "if_modified_since": THEN}, 200),
    ({"if_modified_since": BEFORE}, 200),
    ({"if_modified_since": "yesterday"}, 200),
    ({"if_unmodified_since": THEN}, 200),
    ({"if_match": "TAG"}, 200),
    # A weak tag is not enough if bytes must match.
    ({"if_match": "W/TAG"}, 412),
    ({"if_match": '"other"'}, 412),
    ({"if_unmodified_since": BEFORE}, 412),
    ({"range": "bytes=1-2", "if_range": "TAG"}, 206),
    ({"range": "bytes=1-2", "if_range": THEN}, 206),
    # Parts of different versions are not mixed.
    ({"range": "bytes=1-2", "if_range": "W/TAG"}, 200),
    ({"range": "bytes=1-2", "if_range": '"other"'}, 200),
    ({"range": "bytes=1-2", "if_range": AFTER}, 200),
    ({"range": "bytes=1-2", "if_range": "garbage"}, 200),
    # Invalid ranges are ignored.
    ({"range": "bytes=4-2"}, 200),
    ({"range": "bytes=0-1,3-4"}, 200),
    ({"range": "lines=1-2"}, 200),
    ({"range": "bytes=-"}, 200),
    ({"range": "bytes"}, 200),
    ({"range": f"bytes={'9' * 5000}-"}, 200),
]


async def test_conditions_decide_whether_the_version_is_sent(get: Get):
    tag = (await get("digits")).headers["ETag"]
    for conditions, status in CONDITIONS:
        with case(conditions):
            given = {name: value.replace("TAG", tag) for name, value in conditions.items()}
            got = await get("digits", **given)
            assert got.status == status
            if status == 200:
                assert got.body == DIGITS
            elif status == 304:
                head = await get("digits", method="HEAD", **given)
                assert (head.status, head.body, got.body) == (304, b"", b"")
                assert head.headers["ETag"] == got.headers["ETag"] == tag
                assert head.headers["Cache-Control"] == got.headers["Cache-Control"] == "no-cache"


async def test_a_date_within_this_second_does_not_hide_a_second_change(get: Get, tmp_path: Path):
    (tmp_path / "new").write_bytes(b"one")
    # In the future, so that the second has not passed when the file is read.
    os.utime(tmp_path / "new", (time.time() + 3600,) * 2)
    date = (await get("new")).headers["Last-Modified"]
    status = (tmp_path / "new").stat()
    (tmp_path / "new").write_bytes(b"two")
    os.utime(tmp_path / "new", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert (await get("new", if_modified_since=date)).body == b"two"


async def test_a_byte_range_results_in_a_part(get: Get):
    for requested, start, stop in (
        ("bytes=0-0", 0, 1),
        ("bytes=2-4", 2, 5),
        ("bytes=7-", 7, 10),
        ("bytes=-3", 7, 10),
        ("bytes=-30", 0, 10),
        ("bytes=5-99", 5, 10),
        ("Bytes = 1 - 1", 1, 2),
    ):
        with case(requested):
            part = await get("digits", range=requested)
            assert (part.status, part.body) == (206, DIGITS[start:stop])
            assert part.headers["Content-Range"] == f"bytes {start}-{stop - 1}/10"
    for name in ("long", "chunks"):
        part = await get(name, range="bytes=1001-900000")
        assert part.body == LONG[1001:900_001]
        assert int(part.headers["Content-Length"]) == 899_000


async def test_a_range_beyond_the_end_is_refused(get: Get):
    for name, size, requested in (
        ("digits", 10, "bytes=10-"),
        ("digits", 10, "bytes=-0"),
        ("empty", 0, "bytes=0-"),
        ("long", 10**6, "bytes=1000000-1000001"),
    ):
        with case(name, requested):
            refused = await get(name, range=requested)
            assert (refused.status, refused.body) == (416, b"")
            assert refused.headers["Content-Range"] == f"bytes */{size}"


@pytest.mark.parametrize("name", ["long", "chunks"])
async def test_a_compressed_form_has_its_own_tag(get: Get, name: str):
    url = f"{name}?packed"
    plain = await get(url)
    packed, again = [await get(url, accept_encoding="br, gzip;q=0.5") for _ in range(2)]
    assert packed.body == again.body
    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert plain.body == gzip.decompress(packed.body) == LONG
    assert plain.headers["ETag"] != packed.headers["ETag"]
    assert plain.headers["Vary"] == packed.headers["Vary"] == "Accept-Encoding"
    for form, accepted in ((plain, "identity"), (packed, "gzip")):
        tag = form.headers["ETag"]
        known = await get(url, if_none_match=tag, accept_encoding=accepted)
        assert known.status == 304
        assert known.headers["Vary"] == "Accept-Encoding"
    other = await get(url, if_none_match=packed.headers["ETag"])
    assert other.status == 200


async def test_only_whole_responses_are_compressed_for_clients_that_accept_it(get: Get):
    for accepted in ("identity", "gzip;q=0", "*;q=0", "br", "gzip;q=0.0, *"):
        with case(accepted):
            assert (await get("long?packed", accept_encoding=accepted)).body == LONG
    part = await get("long?packed", accept_encoding="gzip", range="bytes=0-9")
    assert (part.status, part.body) == (206, LONG[:10])
    assert "Content-Encoding" not in part.headers
    assert (await get("none")).status == 404


async def test_compressed_files_are_readable_by_every_client(get: Get):
    url = "long.gz"
    packed = await get(url, accept_encoding="gzip")
    plain = await get(url, accept_encoding="identity")
    assert packed.headers["Content-Encoding"] == "gzip"
    assert int(packed.headers["Content-Length"]) == len(packed.body)
    assert gzip.decompress(packed.body) == plain.body == LONG
    assert packed.headers["ETag"] != plain.headers["ETag"]
    assert "Accept-Ranges" not in plain.headers
    assert (await get(url, accept_encoding="identity", range="bytes=0-9")).body == LONG


async def test_compressed_files_can_be_resumed(get: Get):
    url = "long.gz"
    packed = await get(url, accept_encoding="gzip")
    assert packed.headers["Accept-Ranges"] == "bytes"
    tag, size = packed.headers["ETag"], len(packed.body)
    rest = await get(url, accept_encoding="gzip", range="bytes=10-", if_range=tag)
    assert (rest.status, packed.body[:10] + rest.body) == (206, packed.body)
    assert rest.headers["Content-Range"] == f"bytes 10-{size - 1}/{size}"
    assert (rest.headers["Content-Encoding"], rest.headers["ETag"]) == ("gzip", tag)
    refused = await get(url, accept_encoding="gzip", range=f"bytes={size}-")
    assert refused.status == 416
    assert refused.headers["Content-Range"] == f"bytes */{size}"


async def test_a_head_of_a_compressed_form_sends_no_body(get: Get):
    for name in ("long?packed", "long.gz"):
        head = await get(name, method="HEAD", accept_encoding="gzip")
        assert (head.status, head.body) == (200, b"")
        assert head.headers["Content-Encoding"] == "gzip"


@pytest.mark.parametrize("kind", ["aiohttp", "asgi"])
async def test_a_long_response_is_compressed_as_it_is_read(tmp_path: Path, kind: str):
    # A sparse file of 50 MB, which is too large to be compressed at once.
    size = 50_000_000
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", size)
    iterations = 0

    def answer(request: WebRequest) -> WebResponse:
        load = partial(file_representation, tmp_path / "sparse")
        return respond(request, load, {}, compressible=True)

    async def count() -> None:
        nonlocal iterations
        while True:
            await asyncio.sleep(0)
            iterations += 1

    async with (
        serving_answers(answer, kind) as url,
        aiohttp.ClientSession(auto_decompress=False) as session,
        session.get(url, headers={"Accept-Encoding": "gzip"}) as got,
    ):
        counting = asyncio.create_task(count())
        opener, inflated = zlib.decompressobj(wbits=31), 0
        async for piece in got.content.iter_any():
            inflated += len(opener.decompress(piece))
        counting.cancel()
    assert inflated == size
    # The event loop was never blocked for long.
    assert iterations > 100


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_disconnected_client_is_not_an_error(
    tmp_path: Path, kind: str, packed: bool, caplog: pytest.LogCaptureFixture
):
    # More than fits into any buffer between the two.
    (tmp_path / "long").write_bytes(Random(1).randbytes(30_000_000))
    closed = threading.Event()

    def answer(request: WebRequest) -> WebResponse:
        load = partial(file_representation, tmp_path / "long")
        response = respond(request, load, {}, compressible=packed)
        close = response.close

        def close_and_tell() -> None:
            close()
            closed.set()

        response.close = close_and_tell
        return response

    async with serving_answers(answer, kind) as url, asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"GET / HTTP/1.1\r\nHost: source\r\nAccept-Encoding: gzip\r\n\r\n")
        assert await reader.read(1_000)
        writer.transport.abort()
        assert await asyncio.to_thread(closed.wait, PATIENCE)
        async with aiohttp.ClientSession() as session:
            assert (await session.head(url)).status == 200
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
