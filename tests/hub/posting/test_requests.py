"""Deliveries to callbacks over kept connections."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rsnotify.runtime.http_client import ConnectionPool, HttpConnection
from rsnotify_hub.websub.callback_requests import (
    Answer,
    CallbackRequests,
    notification_head,
    open_client,
)
from rsnotify_hub.websub_subscription import Subscription
from tests.certificates import Authority
from tests.hub.helpers import TOPIC
from tests.hub.posting.servers import CLOSE, OK, serving
from tests.ports import free_port
from tests.waiting import PATIENCE

HUB = "http://hub.example/websub"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
HANG = b""
DELIVERED = Answer(204, "returned 204")
NO_ANSWER = Answer(None, "ends the connection without an answer")


class WatchedPool(ConnectionPool):
    """A pool that reports when it keeps a connection."""

    def __init__(self, **limits: float) -> None:
        super().__init__(**limits)
        self.kept = asyncio.Event()
        self.on_keep: Callable[[], object] = lambda: None

    def keep(self, connection: HttpConnection) -> None:
        super().keep(connection)
        self.kept.set()
        self.on_keep()

    async def keeps_one(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.kept.wait()


Make = Callable[..., CallbackRequests]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Make requests with any settings; they are closed at the end."""
    made = []
    async with open_client(allow_private_addresses=False) as client:

        def make(**settings: Any) -> CallbackRequests:
            defaults = {"allow_private_addresses": True, "method": "sha256"}
            made.append(
                CallbackRequests(client, HUB, clock=lambda: NOW, **{**defaults, **settings})
            )
            return made[-1]

        yield make
        for each in made:
            each.close()


@pytest.fixture
async def pool() -> WatchedPool:
    return WatchedPool()


@pytest.fixture
async def requests(make: Make, pool: WatchedPool) -> CallbackRequests:
    return make(pool=pool)


async def post(requests: CallbackRequests, url: str, body: bytes = b"hi") -> Answer:
    subscription = Subscription(TOPIC, url, None, NOW + timedelta(days=1), 0)
    async with asyncio.timeout(PATIENCE):
        return await requests.send(subscription, body, "text/plain")


async def test_one_connection_serves_one_request_after_another(requests: CallbackRequests):
    async with serving([OK] * 3) as server:
        for path in ("/a", "/b?", "/c"):
            assert await post(requests, server.url(path)) == DELIVERED
        host = f"Host: 127.0.0.1:{server.port}\r\n".encode()
        head = notification_head(TOPIC, HUB, "text/plain", 2)
        assert [(each.head, each.body) for each in server.requests] == [
            (b"POST " + path + b" HTTP/1.1\r\n" + host + head + b"\r\n", b"hi")
            for path in (b"/a", b"/b?", b"/c")
        ]
        assert server.connections == 1


async def test_bodies_larger_than_the_buffers_of_a_socket_arrive_whole_and_in_order(
    requests: CallbackRequests,
):
    bodies = [b"<a>" + bytes([letter]) * 8_000_000 for letter in b"xy"] + [b"<a/>"]
    async with serving([OK] * len(bodies)) as server:
        for body in bodies:
            assert await post(requests, server.url(), body) == DELIVERED
        assert [each.connection for each in server.requests] == [0, 0, 0]
        assert [each.body for each in server.requests] == bodies


async def test_requests_at_the_same_time_have_connections_of_their_own(requests: CallbackRequests):
    async with serving([HANG], [OK, OK]) as server:
        waiting = asyncio.create_task(post(requests, server.url("/slow")))
        await server.until(lambda: len(server.requests) == 1)
        for _ in range(2):
            assert await post(requests, server.url()) == DELIVERED
        assert server.connections == 2
        server.writers[0].write(OK)
        assert await waiting == DELIVERED


async def test_a_kept_connection_that_has_ended_is_replaced_once(requests: CallbackRequests):
    async with serving([OK, CLOSE], [OK, CLOSE], [CLOSE]) as server:
        assert await post(requests, server.url("/1")) == DELIVERED
        assert await post(requests, server.url("/2")) == DELIVERED
        assert await post(requests, server.url("/3")) == NO_ANSWER
        assert [each.connection for each in server.requests] == [0, 0, 1, 1, 2]


async def test_a_new_connection_that_ends_without_an_answer_is_not_replaced(
    requests: CallbackRequests,
):
    async with serving([CLOSE]) as server:
        assert await post(requests, server.url()) == NO_ANSWER
        assert (server.connections, len(server.requests)) == (1, 1)


async def test_a_connection_that_ends_within_an_answer_is_not_replaced(requests: CallbackRequests):
    async with serving([OK, b"HTTP/1.1 20"], [OK]) as server:
        await post(requests, server.url())
        posting = asyncio.create_task(post(requests, server.url()))
        await server.until(lambda: len(server.requests) == 2)
        server.writers[0].close()
        assert await posting == NO_ANSWER
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
async def test_after_these_answers_a_connection_is_not_used_again(
    requests: CallbackRequests, answer: bytes, status: int
):
    async with serving([answer], [OK]) as server:
        assert (await post(requests, server.url())).status == status
        await server.until(lambda: server.ended == 1)
        assert await post(requests, server.url()) == DELIVERED
        assert [each.connection for each in server.requests] == [0, 1]


async def test_an_answer_without_a_request_ends_a_connection(requests: CallbackRequests):
    async with serving([OK, OK], [OK]) as server:
        assert await post(requests, server.url()) == DELIVERED
        server.writers[0].write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await server.until(lambda: server.ended == 1)
        assert await post(requests, server.url()) == DELIVERED
        assert [each.connection for each in server.requests] == [0, 1]


async def test_the_body_of_a_success_may_come_later_and_the_connection_be_used_again(
    requests: CallbackRequests, pool: WatchedPool
):
    async with serving([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", OK]) as server:
        assert (await post(requests, server.url())).status == 200
        server.writers[0].write(b"ok")
        await pool.keeps_one()
        assert await post(requests, server.url()) == DELIVERED
        assert server.connections == 1


async def test_a_failed_answer_that_ends_with_its_connection_is_reported_as_far_as_it_came(
    requests: CallbackRequests,
):
    async with serving([b"HTTP/1.1 500 No\r\n\r\nbecause"]) as server:
        posting = asyncio.create_task(post(requests, server.url()))
        await server.until(lambda: len(server.requests) == 1)
        server.writers[0].close()
        assert await posting == Answer(500, "returned 500", b"because")


async def test_the_rest_of_a_failed_answer_is_not_awaited(requests: CallbackRequests):
    async with serving([b"HTTP/1.1 500 No\r\nContent-Length: 99\r\n\r\nbecause"]) as server:
        assert await post(requests, server.url()) == Answer(500, "returned 500", b"because")
        await server.until(lambda: server.ended == 1)


async def test_a_request_that_is_cancelled_leaves_no_connection(
    requests: CallbackRequests, pool: WatchedPool
):
    async with serving([HANG], [OK]) as server:
        posting = asyncio.create_task(post(requests, server.url()))
        await server.until(lambda: len(server.requests) == 1)
        posting.cancel()
        await server.until(lambda: server.ended == 1)
        assert await post(requests, server.url()) == DELIVERED
        assert len(pool) == 1


async def test_a_request_that_is_cancelled_once_answered_leaves_its_connection_to_others(
    requests: CallbackRequests, pool: WatchedPool
):
    async with serving([OK, OK]) as server:
        posting = asyncio.create_task(post(requests, server.url()))
        pool.on_keep = posting.cancel
        with pytest.raises(asyncio.CancelledError):
            await posting
        assert await post(requests, server.url()) == DELIVERED
        assert server.connections == 1


async def test_idle_connections_are_closed_after_some_time(make: Make):
    pool = WatchedPool(seconds=0.01)
    requests = make(pool=pool)
    async with serving([OK]) as server:
        assert await post(requests, server.url()) == DELIVERED
        await pool.keeps_one()
        await server.until(lambda: server.ended == 1)
        assert len(pool) == 0


async def test_few_of_many_connections_are_kept(make: Make):
    requests = make(pool=ConnectionPool(most=3, per_origin=2))
    async with serving([HANG]) as one, serving([HANG]) as other:
        for server in (one, other):
            posting = [asyncio.create_task(post(requests, server.url())) for _ in range(4)]
            await server.until(lambda server=server: len(server.requests) == 4)
            for writer in server.writers:
                writer.write(OK)
            assert await asyncio.gather(*posting) == [DELIVERED] * 4
        await one.until(lambda: one.ended == 3)
        await other.until(lambda: other.ended == 2)
        assert len(requests.pool) == 3
        requests.close()
        await one.until(lambda: one.ended == 4)
        await other.until(lambda: other.ended == 4)


async def test_a_refused_connection_is_unreachable(requests: CallbackRequests):
    answer = await post(requests, f"http://127.0.0.1:{free_port()}/")
    assert not answer.reached
    assert answer.reason.startswith("is unreachable: ")


def server_side(files: tuple[str, str]) -> ssl.SSLContext:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*files)
    return tls


async def test_tls_connections_are_made_to_servers_with_a_certificate_for_the_name(
    tmp_path: Path, make: Make
):
    authority = Authority(tmp_path)
    tls = server_side(authority.certificate("localhost"))
    names: list[str | None] = []
    tls.sni_callback = lambda _, name, __: names.append(name)
    requests = make(tls=ssl.create_default_context(cafile=authority.file))
    async with serving([OK, OK], tls=tls) as server:
        for _ in range(2):
            url = server.url(scheme="https", host="localhost")
            assert await post(requests, url) == DELIVERED
        assert (names, server.connections) == (["localhost"], 1)
        requests.close()
        await server.until(lambda: server.ended == 1)


@pytest.mark.parametrize("trusted", [True, False])
async def test_a_certificate_of_another_name_or_an_unknown_authority_is_refused(
    tmp_path: Path, make: Make, trusted: bool
):
    authority = Authority(tmp_path)
    name = "other.example" if trusted else "localhost"
    tls = server_side(authority.certificate(name))
    requests = make(tls=ssl.create_default_context(cafile=authority.file if trusted else None))
    async with serving([OK], tls=tls) as server:
        answer = await post(requests, server.url(scheme="https", host="localhost"))
        assert not answer.reached
        assert ("another host name" if trusted else "untrusted authority") in answer.reason
        assert server.requests == []
