"""Small content over kept connections, and what the general client repeats."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rsnotify.errors import NotFound, Unavailable
from rsnotify.format.model import Resource
from rsnotify_subscriber import Credentials
from rsnotify_subscriber.fetching import small_requests
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.fetching.sessions import Connections, Sessions
from tests.certificates import Authority
from tests.hub.posting.servers import CLOSE, Server, serving
from tests.subscriber.source import sha256


def response(content: bytes, status: str = "200 OK", *headers: str) -> bytes:
    fields = "".join(f"{each}\r\n" for each in (*headers, f"Content-Length: {len(content)}"))
    return f"HTTP/1.1 {status}\r\n{fields}\r\n".encode() + content


def entry(server: Server, content: bytes, scheme: str = "http") -> Resource:
    uri = server.url("/a?b=%2F", scheme=scheme)
    return Resource(uri, hash=sha256(content), length=len(content))


@asynccontextmanager
async def fetching(server: Server, folder: Path, scheme: str = "http") -> AsyncIterator[Fetcher]:
    tls = ssl.create_default_context(cafile=str(folder / "authority.pem")) if scheme[4:] else None
    url = server.url(scheme=scheme)
    async with Connections(tls=tls) as shared, Sessions(url, shared=shared) as sessions:
        yield Fetcher(sessions, folder)


async def test_one_connection_carries_one_request_after_another(tmp_path: Path) -> None:
    async with serving([response(b"1"), response(b"22")]) as server:
        async with fetching(server, tmp_path) as fetcher:
            contents = [await fetcher.content(entry(server, each)) for each in (b"1", b"22")]
        assert [each.data for each in contents] == [b"1", b"22"]
        assert server.connections == 1
        head = server.requests[0].head.decode()
    assert head.startswith(f"GET /a?b=%2F HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n")
    assert "\r\nAccept-Encoding: identity\r\n" in head


async def test_a_request_is_repeated_after_a_kept_connection_has_ended(tmp_path: Path) -> None:
    async with serving([response(b"1"), CLOSE], [response(b"1")]) as server:
        async with fetching(server, tmp_path) as fetcher:
            for _ in range(2):
                assert (await fetcher.content(entry(server, b"1"))).data == b"1"
        assert server.connections == 2


@pytest.mark.parametrize(
    "unusual",
    [
        response(b"", "302 Found", "Location: /other"),
        response(gzip.compress(b"1"), "200 OK", "Content-Encoding: gzip"),
        response(bytes(8 * small_requests.SMALL_BYTES)),
        b"HTTP/1.1 200 OK\r\nContent-Length: one\r\n\r\n1",
        CLOSE,
    ],
    ids=["redirect", "encoded", "large", "malformed", "none"],
)
async def test_after_an_unusual_response_the_general_client_is_used_for_a_while(
    unusual: bytes | None, tmp_path: Path
) -> None:
    script = [unusual, CLOSE] if unusual else [CLOSE]
    async with serving(script, [response(b"1"), response(b"1")]) as server:
        async with fetching(server, tmp_path) as fetcher:
            for _ in range(2):
                assert (await fetcher.content(entry(server, b"1"))).data == b"1"
        assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("status", "error"), [("404 Not Found", NotFound), ("503 Service Unavailable", Unavailable)]
)
async def test_a_refusal_is_not_repeated(
    status: str, error: type[Exception], tmp_path: Path
) -> None:
    async with serving([response(b"no", status)]) as server:
        async with fetching(server, tmp_path) as fetcher:
            with pytest.raises(error, match=status[:3]):
                await fetcher.content(entry(server, b"1"))
        assert len(server.requests) == 1


async def test_a_host_that_asks_for_no_requests_gets_none(tmp_path: Path) -> None:
    async with serving([response(b"", "503 Busy", "Retry-After: 60")]) as server:
        async with fetching(server, tmp_path) as fetcher:
            for _ in range(2):
                with pytest.raises(Unavailable):
                    await fetcher.content(entry(server, b"1"))
        assert len(server.requests) == 1


async def test_nor_do_requests_reach_it_that_waited_for_a_connection(tmp_path: Path) -> None:
    async with (
        serving([response(b"", "503 Busy", "Retry-After: 60")] * 3) as server,
        Connections(per_host=1) as shared,
        Sessions(server.url(), shared=shared) as sessions,
    ):
        fetcher = Fetcher(sessions, tmp_path)
        requests = [fetcher.content(entry(server, b"1")) for _ in range(3)]
        errors = await asyncio.gather(*requests, return_exceptions=True)
        assert [type(error) for error in errors] == [Unavailable] * 3
        assert len(server.requests) == 1


@pytest.mark.parametrize(("silence", "patience"), [(0, 60), (30, -1)], ids=["silent", "slow"])
async def test_a_response_that_does_not_come_in_time_is_given_up(
    silence: float, patience: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_requests, "_WATCH_INTERVAL", 0.01)
    monkeypatch.setattr(small_requests, "BODY_GRACE", patience)
    begun = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n1"
    async with (
        serving([begun]) as server,
        Connections(silence=silence) as shared,
        Sessions(server.url(), shared=shared) as sessions,
    ):
        with pytest.raises(Unavailable, match="no answer in time"):
            await Fetcher(sessions, tmp_path).content(entry(server, b"11"))


async def test_a_field_that_the_user_gave_replaces_the_usual_one(tmp_path: Path) -> None:
    credentials = Credentials(headers={"user-agent": "a robot", "X-Key": "1"})
    async with (
        serving([response(b"1")]) as server,
        Sessions(server.url(), credentials=credentials) as sessions,
    ):
        await Fetcher(sessions, tmp_path).content(entry(server, b"1"))
        fields = server.requests[0].head.decode().lower().split("\r\n")
    assert [each for each in fields if each.startswith("user-agent:")] == ["user-agent: a robot"]
    assert "x-key: 1" in fields


async def test_the_certificate_of_a_server_is_verified(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    trusted = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trusted.load_cert_chain(*authority.certificate("127.0.0.1"))
    async with serving([response(b"1")], tls=trusted) as server:
        async with fetching(server, tmp_path, "https") as fetcher:
            assert (await fetcher.content(entry(server, b"1", "https"))).data == b"1"
        requests = len(server.requests)
        async with Sessions(server.url(scheme="https")) as sessions:
            with pytest.raises(Unavailable, match="certificate"):
                await Fetcher(sessions, tmp_path).content(entry(server, b"1", "https"))
        assert len(server.requests) == requests
