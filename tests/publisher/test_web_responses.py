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

    def answer(asked: WebRequest) -> WebResponse:
        packed = "packed" in asked.parameters()
        if asked.path == "/chunks":
            held = memory_representation("v1", LONG_AGO, chunks)
            return respond(asked, lambda: held, {}, compressible=packed)
        path = tmp_path / asked.path[1:]
        return respond(
            asked,
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


@pytest.mark.parametrize("name", ["digits", "long", "chunks"])
async def test_a_version_is_known_by_a_strong_tag_and_a_date(get: Get, name: str):
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


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_client_with_the_same_version_gets_a_304(get: Get, method: str):
    first = await get("digits")
    tag, date = first.headers["ETag"], first.headers["Last-Modified"]
    for conditions in (
        {"if_none_match": tag},
        {"if_none_match": f'"other", W/{tag}'},
        {"if_none_match": "*"},
        {"if_modified_since": date},
        {"if_none_match": tag, "if_modified_since": "Sun, 09 Sep 2001 01:46:39 GMT"},
    ):
        known = await get("digits", method=method, **conditions)
        assert (known.status, known.body) == (304, b""), conditions
        assert known.headers["ETag"] == tag
        assert known.headers["Cache-Control"] == "no-cache"


@pytest.mark.parametrize(
    "conditions",
    [
        {"if_none_match": '"other"'},
        {"if_none_match": '"other"', "if_modified_since": "Sun, 09 Sep 2001 01:46:40 GMT"},
        {"if_modified_since": "Sun, 09 Sep 2001 01:46:39 GMT"},
        {"if_modified_since": "yesterday"},
        {"if_unmodified_since": "Sun, 09 Sep 2001 01:46:40 GMT"},
    ],
)
async def test_a_client_with_another_version_gets_this_one(get: Get, conditions: dict[str, str]):
    assert (await get("digits", **conditions)).body == DIGITS


@pytest.mark.parametrize(
    "conditions",
    [{"if_match": '"other"'}, {"if_unmodified_since": "Sun, 09 Sep 2001 01:46:39 GMT"}],
)
async def test_a_client_that_requires_another_version_gets_a_412(
    get: Get, conditions: dict[str, str]
):
    assert (await get("digits", **conditions)).status == 412


async def test_a_weak_tag_is_not_enough_where_bytes_must_match(get: Get):
    tag = (await get("digits")).headers["ETag"]
    assert (await get("digits", if_match=tag)).status == 200
    assert (await get("digits", if_match=f"W/{tag}")).status == 412
    part = await get("digits", range="bytes=1-2", if_range=f"W/{tag}")
    assert part.status == 200


async def test_a_date_within_this_second_does_not_hide_a_second_change(get: Get, tmp_path: Path):
    (tmp_path / "new").write_bytes(b"one")
    # So that it is certain that the second has not passed when it is looked at.
    os.utime(tmp_path / "new", (time.time() + 3600,) * 2)
    date = (await get("new")).headers["Last-Modified"]
    status = (tmp_path / "new").stat()
    (tmp_path / "new").write_bytes(b"two")
    os.utime(tmp_path / "new", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert (await get("new", if_modified_since=date)).body == b"two"


@pytest.mark.parametrize(
    ("requested", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=2-4", 2, 5),
        ("bytes=7-", 7, 10),
        ("bytes=-3", 7, 10),
        ("bytes=-30", 0, 10),
        ("bytes=5-99", 5, 10),
        ("Bytes = 1 - 1", 1, 2),
    ],
)
async def test_a_byte_range_is_a_part(get: Get, requested: str, start: int, stop: int):
    part = await get("digits", range=requested)
    assert (part.status, part.body) == (206, DIGITS[start:stop])
    assert part.headers["Content-Range"] == f"bytes {start}-{stop - 1}/10"


@pytest.mark.parametrize("name", ["long", "chunks"])
async def test_long_parts_are_whole(get: Get, name: str):
    part = await get(name, range="bytes=1001-900000")
    assert part.body == LONG[1001:900_001]
    assert int(part.headers["Content-Length"]) == 899_000


@pytest.mark.parametrize(
    ("name", "requested"),
    [
        ("digits", "bytes=10-"),
        ("digits", "bytes=-0"),
        ("empty", "bytes=0-"),
        ("long", "bytes=1000000-1000001"),
    ],
)
async def test_a_range_beyond_the_end_is_refused(get: Get, name: str, requested: str):
    refused = await get(name, range=requested)
    assert (refused.status, refused.body) == (416, b"")
    size = {"digits": 10, "empty": 0, "long": 10**6}[name]
    assert refused.headers["Content-Range"] == f"bytes */{size}"


@pytest.mark.parametrize(
    "requested",
    ["bytes=4-2", "bytes=0-1,3-4", "lines=1-2", "bytes=-", "bytes", f"bytes={'9' * 5000}-"],
)
async def test_a_range_that_makes_no_sense_is_passed_over(get: Get, requested: str):
    assert (await get("digits", range=requested)).body == DIGITS


async def test_a_part_of_another_version_is_not_mixed_in(get: Get):
    first = await get("digits")
    tag, date = first.headers["ETag"], first.headers["Last-Modified"]
    for same in (tag, date):
        assert (await get("digits", range="bytes=1-2", if_range=same)).status == 206
    for other in ('"other"', "Sun, 09 Sep 2001 01:46:41 GMT", "garbage"):
        whole = await get("digits", range="bytes=1-2", if_range=other)
        assert (whole.status, whole.body) == (200, DIGITS)


@pytest.mark.parametrize("name", ["long", "chunks"])
async def test_a_compressed_form_has_a_tag_of_its_own(get: Get, name: str):
    url = f"{name}?packed"
    plain = await get(url)
    packed = await get(url, accept_encoding="br, gzip;q=0.5")
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


async def test_the_same_version_is_compressed_to_the_same_bytes(get: Get):
    url = "long?packed"
    one, two = [await get(url, accept_encoding="gzip") for _ in range(2)]
    assert one.body == two.body


@pytest.mark.parametrize("accepted", ["identity", "gzip;q=0", "*;q=0", "br", "gzip;q=0.0, *"])
async def test_nothing_is_compressed_for_clients_that_do_not_accept_it(get: Get, accepted: str):
    got = await get("long?packed", accept_encoding=accepted)
    assert got.body == LONG


async def test_ranges_are_of_the_plain_form(get: Get):
    url = "long?packed"
    part = await get(url, accept_encoding="gzip", range="bytes=0-9")
    assert (part.status, part.body) == (206, LONG[:10])
    assert "Content-Encoding" not in part.headers


async def test_what_is_kept_compressed_is_read_by_every_client(get: Get):
    url = "long.gz"
    packed = await get(url, accept_encoding="gzip")
    plain = await get(url, accept_encoding="identity")
    assert packed.headers["Content-Encoding"] == "gzip"
    assert int(packed.headers["Content-Length"]) == len(packed.body)
    assert gzip.decompress(packed.body) == plain.body == LONG
    assert packed.headers["ETag"] != plain.headers["ETag"]
    assert "Accept-Ranges" not in plain.headers
    assert (await get(url, accept_encoding="identity", range="bytes=0-9")).body == LONG


async def test_what_is_kept_compressed_can_be_resumed_as_it_is_sent(get: Get):
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


async def test_what_is_not_there_is_not_found(get: Get):
    assert (await get("none")).status == 404


@pytest.mark.parametrize("kind", ["aiohttp", "asgi"])
async def test_a_long_response_is_compressed_as_it_is_read(tmp_path: Path, kind: str):
    # 50 MB of a file without blocks: too many to be compressed at once.
    size = 50_000_000
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", size)
    iterations = 0

    def answer(asked: WebRequest) -> WebResponse:
        load = partial(file_representation, tmp_path / "sparse")
        return respond(asked, load, {}, compressible=True)

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
    # The loop went on all the while: nothing held it up for the length of the answer.
    assert iterations > 100


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_that_hangs_up_is_no_error(
    tmp_path: Path, kind: str, packed: bool, caplog: pytest.LogCaptureFixture
):
    # More than any buffer between the two holds.
    (tmp_path / "long").write_bytes(Random(1).randbytes(30_000_000))
    closed = threading.Event()

    def answer(asked: WebRequest) -> WebResponse:
        load = partial(file_representation, tmp_path / "long")
        response = respond(asked, load, {}, compressible=packed)
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
