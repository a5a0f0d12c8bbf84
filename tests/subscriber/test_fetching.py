from __future__ import annotations

import asyncio
import gzip
import hashlib
import resource
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from itertools import chain, repeat
from pathlib import Path

import pytest
from aiohttp import web
from msgspec.structs import replace

from rsnotify.errors import ContentMismatch, NotFound, StorageError, Unavailable
from rsnotify.format.model import Document, Resource
from rsnotify.format.reader import read_document
from rsnotify.format.writer import write_document
from rsnotify_subscriber.fetching import responses
from rsnotify_subscriber.fetching.fetcher import Content, Fetcher
from rsnotify_subscriber.fetching.responses import Inflater
from rsnotify_subscriber.fetching.sessions import Sessions
from tests.growth import check_growth
from tests.subscriber.destination import Destination
from tests.subscriber.source import Answer, SmallSource, body, path_of, sha256, status

TEXT = b"some content that compresses, compresses, compresses" * 20
LARGE = bytes(range(256)) * 4096


@pytest.fixture
async def fetcher(source: SmallSource, tmp_path: Path) -> AsyncIterator[Fetcher]:
    async with Sessions(source.url) as sessions:
        yield Fetcher(sessions, tmp_path)


def written(content: Content) -> bytes:
    content.write()
    return content.path.read_bytes()


def hashed(algorithm: str, content: bytes) -> str:
    return f"{algorithm}:{hashlib.new(algorithm.replace('-', ''), content).hexdigest()}"


@pytest.mark.parametrize("data", [b"", TEXT, LARGE], ids=["empty", "small", "large"])
async def test_content_is_brought_whole(data: bytes, source: SmallSource, fetcher: Fetcher) -> None:
    source.put("a", data)
    content = await fetcher.content(Resource(source.base + "a", hash=sha256(data)))
    assert written(content) == data
    assert content.length == len(data)
    content.discard()
    assert not content.path.exists()


@pytest.mark.parametrize("algorithm", ["md5", "sha-1", "sha-256", "sha-512", "SHA256"])
async def test_every_algorithm_is_checked(
    algorithm: str, source: SmallSource, fetcher: Fetcher
) -> None:
    source.put("a", TEXT)
    true, false = hashed(algorithm, TEXT), hashed(algorithm, b"else")
    uri = source.base + "a"
    assert written(await fetcher.content(Resource(uri, hash=f"new:0 {true}"))) == TEXT
    with pytest.raises(ContentMismatch):
        await fetcher.content(Resource(uri, hash=f"new:0 {false}"))
    with pytest.raises(ContentMismatch):
        await fetcher.content(Resource(uri, hash=f"{sha256(TEXT)} {hashed('sha-512', b'')}"))


@pytest.mark.parametrize("length", [0, len(LARGE) - 1, len(LARGE) + 1])
async def test_a_wrong_length_is_refused_and_leaves_no_file(
    length: int, source: SmallSource, fetcher: Fetcher, tmp_path: Path
) -> None:
    source.put("a", LARGE)
    with pytest.raises(ContentMismatch, match="bytes"):
        await fetcher.content(Resource(source.base + "a", length=length))
    assert list(tmp_path.iterdir()) == []


async def test_a_length_of_the_encoded_form_does_no_harm_where_the_hash_agrees(
    source: SmallSource, fetcher: Fetcher
) -> None:
    packed = gzip.compress(TEXT)
    source.answers[path_of("a")] = body(packed, headers={"Content-Encoding": "gzip"})
    uri = source.base + "a"
    content = await fetcher.content(Resource(uri, hash=sha256(TEXT), length=len(packed)))
    assert written(content) == TEXT
    with pytest.raises(ContentMismatch):
        await fetcher.content(Resource(uri, length=len(packed)))


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (status(404), NotFound),
        (status(410), NotFound),
        (status(500), Unavailable),
        (status(204), Unavailable),
        (body(b"x", headers={"Content-Encoding": "br"}), Unavailable),
        (body(b"x", headers={"Content-Encoding": "gzip"}), ContentMismatch),
    ],
)
async def test_what_is_no_content_is_told_apart(
    answer: Answer, error: type[Exception], source: SmallSource, fetcher: Fetcher
) -> None:
    source.answers[path_of("a")] = answer
    with pytest.raises(error):
        await fetcher.content(Resource(source.base + "a"))


@pytest.mark.parametrize(("value", "seconds"), [("120", 120), ("soon", None)])
async def test_an_error_has_the_time_that_the_server_asks_to_wait(
    value: str, seconds: float | None, source: SmallSource, fetcher: Fetcher
) -> None:
    source.answers[path_of("a")] = status(503, headers={"Retry-After": value})
    with pytest.raises(Unavailable) as caught:
        await fetcher.content(Resource(source.base + "a"))
    assert caught.value.retry_after == seconds


async def test_a_body_that_hardly_comes_is_given_up(
    source: SmallSource, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "BODY_GRACE", -0.01)  # as if a minute were over
    source.put("a", b"1")
    source.put("b", LARGE)
    with pytest.raises(Unavailable, match="bytes per second"):
        await fetcher.content(Resource(source.base + "a"))
    await fetcher.content(Resource(source.base + "b"))


async def test_an_entity_tag_that_is_no_text_does_no_harm(
    source: SmallSource, destination: Destination
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(
            b'HTTP/1.1 200 OK\r\nETag: "\xff\xe9"\r\nContent-Length: 1\r\n\r\n1'
        )
        request.transport.close()
        return web.Response()

    source.put("a", b"1")
    source.described["a"] = replace(source.described["a"], hash=None)
    source.answers[path_of("a")] = answer
    await destination.become_equal()


async def test_a_document_that_did_not_change_is_not_sent_again(
    source: SmallSource, fetcher: Fetcher
) -> None:
    answers = []

    async def answer(request: web.Request) -> web.StreamResponse:
        fresh = request.headers.get("If-None-Match") != '"one"'
        answers.append(fresh)
        headers = {"ETag": '"one"'}
        if not fresh:
            return web.Response(status=304, headers=headers)
        return web.Response(body=write_document(source.change_list()), headers=headers)

    source.put("a", b"1")
    source.answers["/data/changelist.xml"] = answer
    uri = source.base + "changelist.xml"
    assert await fetcher.document(uri) == await fetcher.document(uri)
    assert answers == [True, False]


async def test_content_that_does_not_fit_on_the_disk_leaves_no_file(
    source: SmallSource, fetcher: Fetcher, tmp_path: Path
) -> None:
    entry = source.put("a", LARGE)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(StorageError, match="/a: the file would exceed the maximum size"):
            await fetcher.content(entry)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("field", ["Last-Modified", "Date"])
async def test_a_sitemap_gets_its_datetime_from_http(
    field: str, source: SmallSource, fetcher: Fetcher
) -> None:
    sitemap = write_document(Document(None, (Resource(source.base + "a"),)))
    headers = {field: "Thu, 01 Jan 2026 00:00:00 GMT"}
    source.answers["/sitemap.xml"] = body(sitemap, headers=headers)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert (await fetcher.document(source.site + "sitemap.xml")).at == at


async def test_many_members_of_gzip_are_one_document(source: SmallSource, fetcher: Fetcher) -> None:
    source.put("a", b"1")
    xml = write_document(source.change_list())
    source.answers["/data/x.xml.gz"] = body(gzip.compress(xml[:100]) + gzip.compress(xml[100:]))
    assert await fetcher.document(source.base + "x.xml.gz") == read_document(xml)


@pytest.mark.parametrize(
    ("field", "is_taken"),
    [
        ("Transfer-Encoding: chunked", True),
        ("Transfer-Encoding: gzip, chunked", False),
        ("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked", False),
    ],
)
async def test_content_in_a_transfer_encoding_that_was_not_asked_for_is_refused(
    field: str, is_taken: bool, tmp_path: Path
) -> None:
    sent = TEXT if is_taken else gzip.compress(TEXT)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\n{field}\r\nConnection: close\r\n\r\n".encode())
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(sent), sent))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    uri = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/a"
    async with server, Sessions(uri) as sessions:
        fetcher = Fetcher(sessions, tmp_path)
        if is_taken:
            assert written(await fetcher.content(Resource(uri))) == TEXT
        else:
            with pytest.raises(Unavailable, match="Transfer-Encoding gzip"):
                await fetcher.content(Resource(uri))


# Compressed bodies are read in pieces of bounded size, and end.


@pytest.fixture(scope="module")
def bomb() -> bytes:
    return gzip.compress(bytes(20_000_000))


def pieces(chunks: Iterator[bytes] | list[bytes]) -> Iterator[bytes]:
    inflater = Inflater()
    for chunk in chunks:
        yield from inflater.feed(chunk)
    inflater.close()


@pytest.mark.parametrize("size", [1, 1_000, 100_000])
def test_a_bomb_comes_in_small_pieces(size: int, bomb: bytes) -> None:
    assert len(bomb) < 100_000
    tracemalloc.start()
    total = 0
    for piece in pieces([bomb[at : at + size] for at in range(0, len(bomb), size)]):
        total += len(piece)
        assert len(piece) <= 65_536
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total == 20_000_000
    assert peak < 10_000_000


def test_a_bomb_within_a_bomb_comes_in_small_pieces(bomb: bytes) -> None:
    total = 0
    for piece in pieces(pieces([gzip.compress(bomb)])):
        total += len(piece)
        assert len(piece) <= 65_536
    assert total == 20_000_000


@pytest.mark.parametrize(
    ("head", "empty"),
    [(b"", gzip.compress(b"")), (gzip.compress(b"")[:10], b"\x00\x00\x00\xff\xff")],
    ids=["members", "blocks"],
)
def test_compressed_nothing_ends(head: bytes, empty: bytes) -> None:
    with pytest.raises(zlib.error, match="hardly any content"):
        list(pieces(chain([head], repeat(empty * 1_000))))


def test_content_that_does_not_compress_is_no_fault() -> None:
    content = bytes(range(256)) * 20_000
    packed = gzip.compress(content, compresslevel=0)
    assert b"".join(pieces([packed[at : at + 10] for at in range(0, len(packed), 10)])) == content


@pytest.mark.parametrize("content", [b"", b"a", bytes(1_000)], ids=len)
def test_many_members_take_time_in_proportion(content: bytes) -> None:
    member = gzip.compress(content)

    def work(length: int) -> None:
        for _ in pieces([member * (length // len(member))]):
            pass

    check_growth(work, 100_000)
