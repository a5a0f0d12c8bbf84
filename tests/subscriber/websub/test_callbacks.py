"""The handler that an aggregator mounts: what it answers to whom."""

from __future__ import annotations

import asyncio
import logging
import socket
import zlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
from msgspec.structs import replace
from yarl import URL

from rsnotify.errors import ConfigurationError, Unavailable
from rsnotify.format.signatures import signature
from rsnotify.runtime import serving as runtime_serving
from rsnotify.runtime.web_messages import WebRequest
from rsnotify_subscriber import (
    Callbacks,
    FolderMirror,
    FollowOptions,
    Subscriber,
    Via,
    WebSubTerms,
    listening,
)
from rsnotify_subscriber.push import websub_callbacks as callbacks
from rsnotify_subscriber.push.websub_callbacks import DeliveryInbox, HubSilence, SubscriptionMode
from tests.subscriber.websub.blog import Blog
from tests.subscriber.websub.desk import PATIENCE, TERMS, Desk, open_desk
from tests.web_servers import KINDS, serving_wsgi

#: Servers that pass a request on before its body has arrived.
STREAMING = pytest.mark.parametrize("desk", ["aiohttp", "asgi"], indirect=True)


@pytest.fixture(params=KINDS)
async def desk(request: pytest.FixtureRequest) -> AsyncIterator[Desk]:
    async with open_desk(kind=request.param) as opened:
        yield opened


def opened_elsewhere(topic: str) -> tuple[Callbacks, str]:
    """Open a callback in another event loop, which ends; return its token too."""

    async def follow() -> None:
        made.open(topic, DeliveryInbox(HubSilence(0, 1)))

    made = Callbacks("http://127.0.0.1/cb/")
    asyncio.run(follow())
    (token,) = made._open
    return made, token


async def test_each_subscription_has_a_callback_that_nobody_can_guess(
    blog: Blog, desk: Desk
) -> None:
    async with desk.receiving(blog.topic), desk.receiving(blog.topic):
        one, other = blog.confirmed
        assert one != other
        for url in (one, other):
            assert url.startswith(desk.callbacks.url)
            assert len(url.removeprefix(desk.callbacks.url)) == 43  # 256 bits
        assert len({form["hub.secret"] for form in blog.confirmed.values()}) == 2


@STREAMING
async def test_a_stale_callback_is_gone_and_confirms_nothing(blog: Blog, desk: Desk) -> None:
    stale = desk.callbacks.url + "A" * 43
    assert await desk.send(stale, b"x") == 410
    assert (await desk.ask(stale, mode="subscribe", topic="t", challenge="c"))[0] == 404
    async with desk.receiving(blog.topic):
        (callback,) = blog.confirmed
    assert await desk.send(callback, b"x") == 410
    assert len(desk.callbacks) == 0


@pytest.mark.parametrize("path", ["", "short", "A" * 42, "A" * 44, "A" * 42 + "."])
async def test_any_other_path_is_answered_with_404(desk: Desk, path: str) -> None:
    assert await desk.send(desk.callbacks.url + path, b"x") == 404


async def test_a_hub_that_returns_gets_no_confirmation_of_an_ended_request(blog: Blog) -> None:
    async with open_desk(WebSubTerms(patience=1)) as desk, desk.receiving(blog.topic):
        (callback,) = blog.confirmed
        intent = {"mode": "subscribe", "topic": blog.topic, "lease_seconds": "9"}
        async with asyncio.timeout(PATIENCE):
            while (await desk.ask(callback, challenge="c", **intent))[0] == 200:
                pass
        assert await desk.ask(callback, challenge="c", **intent) == (404, "404: Not Found")
        unwanted = {"mode": "unsubscribe", "topic": blog.topic}
        assert (await desk.ask(callback, challenge="c", **unwanted))[0] == 404


async def test_a_challenge_is_answered_as_plain_text(blog: Blog, desk: Desk) -> None:
    async with desk.receiving(blog.topic):
        (callback,) = blog.confirmed
        query = {
            "hub.mode": "subscribe",
            "hub.topic": blog.topic,
            "hub.challenge": "<script>",
            "hub.lease_seconds": "9",
        }
        async with desk.session.get(callback, params=query) as response:
            assert await response.text() == "<script>"
            assert response.content_type == "text/plain"
            assert response.headers["X-Content-Type-Options"] == "nosniff"
        async with desk.session.head(callback, params=query) as response:
            assert response.status == 405


@pytest.mark.parametrize(
    "challenge", ["%ff%fe", "%ED%A0%80", "%00", "%0d%0aX%3A+y", "a+b%20c", "%C3%A9"]
)
async def test_any_challenge_is_answered(blog: Blog, desk: Desk, challenge: str) -> None:
    async with desk.receiving(blog.topic):
        (callback,) = blog.confirmed
        query = f"hub.mode=subscribe&hub.topic={blog.topic}&hub.lease_seconds=9"
        url = f"{callback}?{query}&hub.challenge={challenge}"
        async with desk.session.get(URL(url, encoded=True)) as response:
            assert response.status == 200
            assert await response.read()
            assert "X" not in response.headers


async def test_many_subscriptions_share_the_callbacks_and_leave_nothing(
    blog: Blog, desk: Desk
) -> None:
    async with AsyncExitStack() as stack:
        recorders = [await stack.enter_async_context(desk.receiving(blog.topic)) for _ in range(10)]
        assert len(desk.callbacks) == len(blog.confirmed) == 10
        assert await blog.publish(b"a post") == [204] * 10
        for recorder in recorders:
            await recorder.until(lambda recorder=recorder: recorder.documents == [b"a post"])
    assert len(desk.callbacks) == len(blog.confirmed) == 0


async def test_the_callback_determines_the_topic_of_content_and_not_its_links(
    desk: Desk, blog: Blog
) -> None:
    async with desk.receiving(blog.topic) as one, desk.receiving(blog.topic) as other:
        callback, form = list(blog.confirmed.items())[1]
        link = '<https://other.example/>; rel="self", <https://other.example/hub>; rel="hub"'
        signed = signature(form["hub.secret"], b"x")
        assert await desk.send(callback, b"x", X_Hub_Signature=signed, Link=link) == 204
        await other.until(lambda: other.documents == [b"x"])
        assert one.documents == []


async def test_the_secret_of_one_callback_opens_no_other(desk: Desk, blog: Blog) -> None:
    async with desk.receiving(blog.topic), desk.receiving(blog.topic):
        (callback, _), (_, other) = blog.confirmed.items()
        signed = signature(other["hub.secret"], b"x")
        assert await desk.send(callback, b"x", X_Hub_Signature=signed) == 403


async def test_a_denial_ends_the_subscription_with_its_reason(desk: Desk, blog: Blog) -> None:
    async with desk.receiving(blog.topic) as recorder:
        (callback,) = blog.confirmed
        denial = {"mode": "denied", "topic": blog.topic, "reason": "not here"}
        assert await desk.ask(callback, **denial) == (200, "")
        with pytest.raises(Unavailable, match="denied the subscription: 'not here'") as caught:
            await recorder.ended()
    assert caught.value.retry_after == 300
    assert len(desk.callbacks) == 0


async def test_a_hub_with_a_method_that_is_not_accepted_is_left_with_a_reason(
    desk: Desk, blog: Blog
) -> None:
    async with desk.receiving(blog.topic) as recorder:
        assert await blog.publish(b"x", signed="sha1") == [403]
        with pytest.raises(Unavailable, match="signs with sha1, which is not accepted"):
            await recorder.ended()
    async with open_desk(WebSubTerms(signatures=("sha1",))) as lax, lax.receiving(blog.topic) as ok:
        assert await blog.publish(b"x", signed="sha1") == [204]
        await ok.until(lambda: ok.documents == [b"x"])


async def test_without_a_secret_anybody_with_the_callback_can_send_content(blog: Blog) -> None:
    async with open_desk(WebSubTerms(secret=False)) as desk, desk.receiving(blog.topic) as recorder:
        ((callback, form),) = blog.confirmed.items()
        assert "hub.secret" not in form
        assert await desk.send(callback, b"x") == 204
        await recorder.until(lambda: recorder.documents == [b"x"])


async def test_forged_content_is_reported_once(
    blog: Blog, desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    async with desk.receiving(blog.topic):
        for _ in range(3):
            assert await blog.publish(b"x", signed="not at all") == [403]
    warnings = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert [each.getMessage() for each in warnings] == [
        f"ignoring content without a signature for {blog.topic}"
    ]


async def test_content_with_an_encoding_is_refused(blog: Blog, desk: Desk) -> None:
    async with desk.receiving(blog.topic):
        (callback,) = blog.confirmed
        assert await desk.send(callback, zlib.compress(b"x"), Content_Encoding="deflate") == 415


async def test_content_that_is_too_large_is_refused(
    blog: Blog, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks, "MAX_BYTES", 1_000_000)
    async with desk.receiving(blog.topic) as recorder:
        assert await blog.publish(b"x" * 1_000_001) == [413]
        assert await blog.publish(b"x" * 1_000_000) == [204]
        await recorder.until(lambda: recorder.documents)


@STREAMING
async def test_content_that_comes_too_slowly_is_not_waited_for(blog: Blog, desk: Desk) -> None:
    async def slowly() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.Event().wait()

    async with desk.receiving(blog.topic):
        (callback,) = blog.confirmed
        desk.callbacks.terms = replace(TERMS, patience=0.1)
        async with desk.session.post(callback, data=slowly()) as response:
            assert response.status == 408


@STREAMING
async def test_a_callback_limits_concurrent_deliveries(blog: Blog, desk: Desk) -> None:
    async def waiting(go_on: asyncio.Event) -> AsyncIterator[bytes]:
        yield b"x"
        await go_on.wait()

    async with desk.receiving(blog.topic):
        (callback,) = blog.confirmed
        go_on = asyncio.Event()
        posts = [desk.session.post(callback, data=waiting(go_on)) for _ in range(5)]
        tasks = [asyncio.ensure_future(_status(post)) for post in posts]
        first, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result() for task in first] == [503]
        go_on.set()
        assert sorted(await asyncio.gather(*tasks)) == [403, 403, 403, 403, 503]


async def _status(post: object) -> int:
    async with post as response:  # type: ignore[attr-defined]
        return int(response.status)


async def test_an_inbox_is_bounded_in_bytes_but_accepts_a_single_large_delivery() -> None:
    inbox = DeliveryInbox(HubSilence(0, 1), most=10)
    assert inbox.put(b"x" * 11)
    assert not inbox.put(b"")  # the first is over the bound as it is
    assert await inbox.get() == b"x" * 11
    assert inbox.put(b"x" * 5)
    assert inbox.put(b"y" * 5)
    assert not inbox.put(b"z")
    assert [await inbox.get(), await inbox.get()] == [b"x" * 5, b"y" * 5]


async def test_a_hub_gets_503_while_the_inbox_is_full(desk: Desk) -> None:
    inbox = DeliveryInbox(HubSilence(0, 1), most=1)
    callback = desk.callbacks.open("https://a.example/", inbox)
    url = desk.callbacks.url + next(iter(desk.callbacks._open))
    form = callback.subscription.request(SubscriptionMode.SUBSCRIBE, until=2**40)
    assert form["hub.callback"] == url
    asked = {"mode": "subscribe", "topic": "https://a.example/", "challenge": "c"}
    assert await desk.ask(url, **asked) == (200, "c")
    signed = signature(form["hub.secret"], b"x")
    assert await desk.send(url, b"x", X_Hub_Signature=signed) == 204
    assert await desk.send(url, b"x", X_Hub_Signature=signed) == 503
    assert await inbox.get() == b"x"
    assert await desk.send(url, b"x", X_Hub_Signature=signed) == 204


async def test_wsgi_answers_503_where_no_subscriber_runs(blog: Blog) -> None:
    async with open_desk(kind="wsgi") as desk:
        stale = desk.callbacks.url + "A" * 43
        assert await desk.send(stale, b"x") == 503
        assert (await desk.ask(stale, mode="subscribe", topic="t", challenge="c"))[0] == 503
        async with desk.receiving(blog.topic):
            (callback,) = blog.confirmed
            assert await desk.send(stale, b"x") == 410
        assert await desk.send(callback, b"x") == 410


async def test_wsgi_answers_503_once_the_loop_of_the_subscriber_has_ended(blog: Blog) -> None:
    made, token = await asyncio.to_thread(opened_elsewhere, blog.topic)
    async with (
        serving_wsgi(made.wsgi_application()) as url,
        aiohttp.ClientSession() as session,
        session.post(f"{url}/cb/{token}", data=b"x") as response,
    ):
        assert (response.status, response.headers["Retry-After"]) == (503, "1")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Content-Length: 5", b"400"),
        (b"Content-Length: -5", b"400"),
        (b"Transfer-Encoding: chunked", b"400"),
    ],
    ids=["incomplete", "a length that is no number", "without a length"],
)
async def test_content_that_wsgi_cannot_read_to_its_end_is_not_used(
    blog: Blog, head: bytes, status: bytes
) -> None:
    async with (
        open_desk(replace(TERMS, secret=False), "wsgi") as desk,
        desk.receiving(blog.topic) as recorder,
    ):
        (callback,) = map(URL, blog.confirmed)
        reader, writer = await asyncio.open_connection("127.0.0.1", callback.port)
        # At once, since a server that closes a connection with unread bytes resets it.
        writer.write(b"POST %s HTTP/1.1\r\n%s\r\n\r\nxyz" % (callback.path.encode(), head))
        writer.write_eof()
        assert (await reader.readline()).split()[1] == status
        writer.close()
        assert await desk.send(str(callback), b"whole") == 204
        await recorder.until(lambda: recorder.documents)
        assert recorder.documents == [b"whole"]


async def test_content_whose_connection_is_lost_is_no_fault(blog: Blog) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"xyz"
        raise ConnectionResetError("Connection lost")

    async with open_desk(TERMS) as desk, desk.receiving(blog.topic):
        (token,) = desk.callbacks._open
        response = await desk.callbacks._respond(token, WebRequest("POST", "/", "", {}), body())
    assert response.status == 400


async def test_asgi_refuses_to_pass_content_into_another_event_loop(blog: Blog) -> None:
    made, token = await asyncio.to_thread(opened_elsewhere, blog.topic)
    scope = {"type": "http", "method": "POST", "path": "/cb/" + token}
    scope |= {"headers": [], "query_string": b""}

    async def exchange(message: object = None) -> dict[str, object]:
        raise AssertionError

    with pytest.raises(ConfigurationError, match="in the event loop of the application"):
        await made.asgi_application()(scope, exchange, exchange)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ftp://a.example/", "not a callback URL"),
        ("a.example/cb", "not a callback URL"),
        ("https://", "not a callback URL"),
        ("https://a.example:x/", "not a callback URL"),
        ("https://me:secret@a.example/", "not a callback URL"),
        ("https://a.example/a b", "not a callback URL"),
        ("https://a.example/?x=1", "query"),
        ("https://a.example/#x", "fragment"),
    ],
)
def test_a_url_that_cannot_be_a_callback_is_refused(url: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        Callbacks(url)


@pytest.mark.parametrize("signatures", [(), ("md5",), ("sha256", "none")])
def test_a_method_of_signatures_that_is_not_known_is_refused(signatures: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError, match="sha1, sha256, sha384, sha512"):
        Callbacks("https://a.example/", WebSubTerms(signatures=signatures))


def test_websub_without_callbacks_is_refused(tmp_path: Path) -> None:
    options = FollowOptions(via=Via.WEBSUB)
    with pytest.raises(ConfigurationError, match="callback URL"):
        Subscriber("https://a.example/", FolderMirror(tmp_path), state=tmp_path, options=options)


async def test_the_listener_serves_hubs_and_closes_idle_connections(
    blog: Blog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runtime_serving, "_MAX_CONNECTIONS", 2)
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    made = Callbacks(f"http://127.0.0.1:{port}/cb/", TERMS)
    async with listening(made, sock), aiohttp.ClientSession() as session:
        desk = Desk(made, session)
        async with desk.receiving(blog.topic) as recorder:
            # From here on only: the hub has its connection, whose first request has come.
            monkeypatch.setattr(runtime_serving, "_FIRST_REQUEST_TIMEOUT", 0.2)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST /cb/ HTTP/1.1\r\n")  # and nothing more
            assert await blog.publish(b"a post") == [204]
            await recorder.until(lambda: recorder.documents == [b"a post"])
            async with asyncio.timeout(PATIENCE):
                assert await reader.read() == b""
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST /cb/ canary\r\n\r\n")
            async with asyncio.timeout(PATIENCE):
                assert b" 400 " in await reader.readline()
            writer.close()
            await writer.wait_closed()
    assert "canary" not in caplog.text
    with pytest.raises(OSError, match=r"refused|Connect"):
        await asyncio.open_connection("127.0.0.1", port)
