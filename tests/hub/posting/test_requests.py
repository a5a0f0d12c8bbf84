"""Requests to callbacks over connections that are kept."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from rsnotify.runtime.processes import free_port
from rsnotify_hub.websub.delivery.posting.connection import CallbackConnection
from rsnotify_hub.websub.delivery.posting.pool import ConnectionPool
from rsnotify_hub.websub.delivery.posting.poster import Poster
from rsnotify_hub.websub.delivery.posting.replies import HttpReply, NoReply, Unreachable
from tests.certificates import Authority
from tests.hub.helpers import PATIENCE
from tests.hub.posting.servers import CLOSE, OK, serving

HEAD = b"Content-Length: 2\r\n"
HANG = b""


class WatchedPool(ConnectionPool):
    """Tells when it has got a connection."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = asyncio.Event()
        self.then: Callable[[], object] = lambda: None

    def keep(self, connection: CallbackConnection) -> None:
        super().keep(connection)
        self.kept.set()
        self.then()


async def kept(pool: ConnectionPool) -> None:
    assert isinstance(pool, WatchedPool)
    async with asyncio.timeout(PATIENCE):
        await pool.kept.wait()


@pytest.fixture
async def poster() -> AsyncIterator[Poster]:
    made = Poster(allow_private_addresses=True, pool=WatchedPool())
    yield made
    made.close()


async def post(poster: Poster, url: str) -> HttpReply:
    async with asyncio.timeout(PATIENCE):
        return await poster.post(url, HEAD, b"hi")


async def test_one_connection_serves_one_request_after_another(poster: Poster):
    async with serving([OK] * 3) as server:
        for path in ("/a", "/b?", "/c"):
            assert await post(poster, server.url(path)) == HttpReply(204)
        host = f"Host: 127.0.0.1:{server.port}\r\n".encode()
        assert [(each.head, each.body) for each in server.requests] == [
            (b"POST " + path + b" HTTP/1.1\r\n" + host + HEAD + b"\r\n", b"hi")
            for path in (b"/a", b"/b?", b"/c")
        ]
        assert server.connections == 1


async def test_requests_at_the_same_time_have_connections_of_their_own(poster: Poster):
    async with serving([HANG], [OK, OK]) as server:
        waiting = asyncio.create_task(post(poster, server.url("/slow")))
        await server.until(lambda: len(server.requests) == 1)
        for _ in range(2):
            assert await post(poster, server.url()) == HttpReply(204)
        assert server.connections == 2
        server.writers[0].write(OK)
        assert await waiting == HttpReply(204)


async def test_a_kept_connection_that_has_ended_is_replaced_once(poster: Poster):
    async with serving([OK, CLOSE], [OK, CLOSE], [CLOSE]) as server:
        assert await post(poster, server.url("/1")) == HttpReply(204)
        assert await post(poster, server.url("/2")) == HttpReply(204)
        with pytest.raises(NoReply, match="without an answer"):
            await post(poster, server.url("/3"))
        assert [each.connection for each in server.requests] == [0, 0, 1, 1, 2]


async def test_a_new_connection_that_ends_without_an_answer_is_not_replaced(poster: Poster):
    async with serving([CLOSE]) as server:
        with pytest.raises(NoReply, match="without an answer"):
            await post(poster, server.url())
        assert (server.connections, len(server.requests)) == (1, 1)


async def test_a_connection_that_ends_within_an_answer_is_not_replaced(poster: Poster):
    async with serving([OK, b"HTTP/1.1 20"], [OK]) as server:
        await post(poster, server.url())
        asking = asyncio.create_task(post(poster, server.url()))
        await server.until(lambda: len(server.requests) == 2)
        server.writers[0].close()
        with pytest.raises(NoReply):
            await asking
        assert server.connections == 1


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", 200),
        (b"HTTP/1.1 500 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 500),
        (OK + b"HTTP/1.1 200 OK\r\n\r\n", 204),
        (OK + b"garbage", 204),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + bytes(200_000), 200),
    ],
)
async def test_after_these_a_connection_is_not_used_again(
    poster: Poster, answer: bytes, status: int
):
    async with serving([answer], [OK]) as server:
        assert (await post(poster, server.url())).status == status
        await server.until(lambda: server.ended == 1)
        assert await post(poster, server.url()) == HttpReply(204)
        assert [each.connection for each in server.requests] == [0, 1]


async def test_what_nobody_asked_for_ends_a_connection(poster: Poster):
    async with serving([OK, OK], [OK]) as server:
        assert await post(poster, server.url()) == HttpReply(204)
        server.writers[0].write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await server.until(lambda: server.ended == 1)
        assert await post(poster, server.url()) == HttpReply(204)
        assert [each.connection for each in server.requests] == [0, 1]


async def test_the_body_of_a_success_may_come_later_and_the_connection_be_used_again(
    poster: Poster,
):
    async with serving([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", OK]) as server:
        assert await post(poster, server.url()) == HttpReply(200)
        server.writers[0].write(b"ok")
        await kept(poster.pool)
        assert await post(poster, server.url()) == HttpReply(204)
        assert server.connections == 1


async def test_a_failed_answer_that_ends_with_its_connection_is_told_as_far_as_it_came(
    poster: Poster,
):
    async with serving([b"HTTP/1.1 500 No\r\n\r\nbecause"]) as server:
        asking = asyncio.create_task(post(poster, server.url()))
        await server.until(lambda: len(server.requests) == 1)
        server.writers[0].close()
        assert await asking == HttpReply(500, "", b"because")


async def test_what_goes_on_after_a_failure_is_not_waited_for(poster: Poster):
    async with serving([b"HTTP/1.1 500 No\r\nContent-Length: 99\r\n\r\nbecause"]) as server:
        assert await post(poster, server.url()) == HttpReply(500, "", b"because")
        await server.until(lambda: server.ended == 1)


async def test_who_is_cancelled_leaves_no_connection(poster: Poster):
    async with serving([HANG], [OK]) as server:
        asking = asyncio.create_task(post(poster, server.url()))
        await server.until(lambda: len(server.requests) == 1)
        asking.cancel()
        await server.until(lambda: server.ended == 1)
        assert await post(poster, server.url()) == HttpReply(204)
        assert len(poster.pool) == 1


async def test_connections_wait_not_for_long():
    poster = Poster(allow_private_addresses=True, pool=ConnectionPool(seconds=0.01))
    async with serving([OK]) as server:
        assert await post(poster, server.url()) == HttpReply(204)
        assert len(poster.pool) == 1
        await server.until(lambda: server.ended == 1)
        assert len(poster.pool) == 0
    poster.close()


async def test_of_many_connections_few_are_kept():
    poster = Poster(allow_private_addresses=True, pool=ConnectionPool(most=3, per_origin=2))
    async with serving([HANG]) as one, serving([HANG]) as other:
        for server in (one, other):
            asking = [asyncio.create_task(post(poster, server.url())) for _ in range(4)]
            await server.until(lambda server=server: len(server.requests) == 4)
            for writer in server.writers:
                writer.write(OK)
            assert await asyncio.gather(*asking) == [HttpReply(204)] * 4
        await one.until(lambda: one.ended == 3)
        await other.until(lambda: other.ended == 2)
        assert len(poster.pool) == 3
        poster.close()
        await one.until(lambda: one.ended == 4)
        await other.until(lambda: other.ended == 4)


async def test_nobody_there_is_told():
    poster = Poster(allow_private_addresses=True)
    with pytest.raises(Unreachable):
        await post(poster, f"http://127.0.0.1:{free_port()}/")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0", "127.1"])
async def test_no_private_address_is_dialled(host: str):
    poster = Poster(allow_private_addresses=False)
    async with serving([OK]) as server:
        with pytest.raises(Unreachable):
            await post(poster, server.url(host=host))
        assert server.connections == 0


def server_side(files: tuple[str, str]) -> ssl.SSLContext:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*files)
    return tls


async def test_tls_is_spoken_with_who_has_a_certificate_for_the_name(tmp_path: Path):
    authority = Authority(tmp_path)
    tls = server_side(authority.certificate("localhost"))
    names: list[str | None] = []
    tls.sni_callback = lambda _, name, __: names.append(name)
    poster = Poster(
        allow_private_addresses=True, tls=ssl.create_default_context(cafile=authority.file)
    )
    async with serving([OK, OK], tls=tls) as server:
        for _ in range(2):
            url = server.url(scheme="https", host="localhost")
            assert await post(poster, url) == HttpReply(204)
        assert (names, server.connections) == (["localhost"], 1)
        poster.close()
        await server.until(lambda: server.ended == 1)


@pytest.mark.parametrize("trusted", [True, False])
async def test_a_certificate_of_another_name_or_of_nobody_is_refused(tmp_path: Path, trusted: bool):
    authority = Authority(tmp_path)
    name = "other.example" if trusted else "localhost"
    tls = server_side(authority.certificate(name))
    trust = ssl.create_default_context(cafile=authority.file if trusted else None)
    poster = Poster(allow_private_addresses=True, tls=trust)
    async with serving([OK], tls=tls) as server:
        with pytest.raises(Unreachable) as refused:
            await post(poster, server.url(scheme="https", host="localhost"))
        assert isinstance(refused.value.__cause__, ssl.SSLCertVerificationError)
        assert server.requests == []


async def test_who_is_cancelled_once_answered_leaves_the_connection_to_others(poster: Poster):
    async with serving([OK, OK]) as server:
        asking = asyncio.create_task(post(poster, server.url()))
        assert isinstance(poster.pool, WatchedPool)
        poster.pool.then = asking.cancel
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await post(poster, server.url()) == HttpReply(204)
        assert server.connections == 1
