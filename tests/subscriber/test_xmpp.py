"""Receiving changes from a node of a real PubSub service, which may go away, forget, or drop."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, FetchError
from rsnotify_subscriber import FollowOptions, PushState, Subscriber, Via
from rsnotify_xmpp.xmpp_connection import connect
from rsnotify_xmpp.xmpp_service import XmppLogin, parse_service
from rsnotify_xmpp.xmpp_transport import XmppReader
from tests.prosody import DOMAIN, PATIENCE, SERVICE, Prosody
from tests.subscriber.destination import Destination
from tests.subscriber.recording import RecordingListener, receiving
from tests.subscriber.source import SmallSource, status

PLACE = parse_service(f"xmpp:{SERVICE}")
TOPIC = "https://a.example/c"
FIRST = (
    b'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"><url><loc>1</loc></url></urlset>'
)
SECOND = FIRST.replace(b"1</loc>", b"2</loc>")


@pytest.fixture
def offered(source: SmallSource, prosody: Prosody, some_content: None) -> SmallSource:
    source.hubs = [PLACE.url_for(source.base + "channel.xml")]
    return source


async def publish(server: Prosody, source: SmallSource) -> None:
    await say(server, source.latest()[0], source.base + "channel.xml")


async def say(server: Prosody, body: bytes, channel: str = TOPIC) -> None:
    async with asyncio.timeout(PATIENCE), connect(server.login("hub")) as connection:
        await (await connection.publish(PLACE, channel, body))


def following(
    destination: Destination, server: Prosody, **options: Any
) -> AbstractAsyncContextManager[Subscriber]:
    logins = {"xmpp": server.login("reader")}
    return destination.following(**{"via": Via.XMPP, "logins": logins} | options)


@pytest.mark.parametrize("via", [Via.XMPP, Via.AUTO])
async def test_a_change_is_applied_without_a_poll(
    offered: SmallSource, prosody: Prosody, destination: Destination, via: Via
) -> None:
    await publish(prosody, offered)
    async with following(destination, prosody, via=via) as subscriber:
        offered.answers["/data/changelist.xml"] = status(503)
        offered.put_inline("new", b"it travels inside")
        await publish(prosody, offered)
        await destination.until(lambda: subscriber.status.applied == 6)
        assert destination.equals_source()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_what_a_service_missed_is_pulled_when_it_is_back(
    offered: SmallSource, prosody: Prosody, destination: Destination, how: signal.Signals
) -> None:
    await publish(prosody, offered)
    async with following(destination, prosody) as subscriber:
        await prosody.stop(how)
        await destination.until(lambda: subscriber.status.push is PushState.DOWN)
        offered.put("while-away", b"nobody pushed this")
        await prosody.start()
        await destination.until(lambda: subscriber.status.push is PushState.UP)
        offered.put("then", b"this was")
        await publish(prosody, offered)
        await destination.until_equal()


async def test_an_item_that_the_server_drops_is_a_gap_that_is_filled(
    offered: SmallSource, prosody: Prosody, destination: Destination
) -> None:
    await publish(prosody, offered)
    async with following(destination, prosody):
        offered.put("drop-this", b"a broken link between servers")
        await publish(prosody, offered)
        offered.put("then", b"this arrives")
        await publish(prosody, offered)
        await destination.until_equal()


def reader_of(server: Prosody, topic: str = TOPIC) -> XmppReader:
    return XmppReader(PLACE, topic, server.login("reader"))


async def test_the_newest_fragment_shows_at_once_where_the_stream_stands(prosody: Prosody) -> None:
    await say(prosody, SECOND)
    async with receiving(reader_of(prosody)) as recorder:
        await recorder.until_recorded("up")
        assert [b"2</" in one for one in recorder.events if isinstance(one, bytes)] == [True]
    assert "gap" not in recorder.events


async def test_what_is_about_something_else_is_ignored_and_counted(prosody: Prosody) -> None:
    await say(prosody, FIRST)
    transport = reader_of(prosody)
    async with (
        connect(prosody.login("hub")) as hub,
        connect(prosody.login("reader")) as reader,
        receiving(transport) as recorder,
    ):
        await recorder.until_recorded("up")
        await (await hub.publish(PLACE, "https://a.example/other", FIRST))
        await reader.subscribe(PLACE, "https://a.example/other")
        before = list(recorder.events)
        forged = '<item><x xmlns="urn:forged"/></item>'
        for text in (
            "<body>hello</body>",
            f'<event xmlns="http://jabber.org/protocol/pubsub#event">'
            f'<items node="{PLACE.node(TOPIC)}">{forged}</items></event>',
        ):
            hub._client.send_raw(f'<message to="reader@{DOMAIN}" type="headline">{text}</message>')
        await (await hub.publish(PLACE, "https://a.example/other", SECOND))
        await (await hub.publish(PLACE, TOPIC, SECOND))
        await recorder.more_than(len(before))
        assert transport.ignored == 3, "a chat, an item of somebody else, one of another node"
        (item,) = recorder.events[len(before) :]
        assert b"2</" in bytes(item)  # type: ignore[arg-type]


async def test_only_who_was_asked_answers(prosody: Prosody) -> None:
    told = asyncio.Event()
    async with (
        connect(prosody.login("hub")) as asked,
        connect(prosody.login("hub")) as forger,
        connect(prosody.login("reader"), on_foreign=told.set) as reader,
    ):
        request = asyncio.create_task(
            reader.request("get", asked._client.boundjid.full, "<ping xmlns='x'/>")
        )
        await asyncio.sleep(0)
        to = f"to='{reader._client.boundjid.full}'"
        for client in (forger, asked):
            told.clear()
            assert not request.done()
            client._client.send_raw(f"<iq type='result' id='rsnotify-0' {to}/><message {to}/>")
            async with asyncio.timeout(PATIENCE):
                await told.wait()
        await request


async def test_an_error_in_the_receiver_of_items_ends_the_connection(prosody: Prosody) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("cannot be received")

    await say(prosody, FIRST)
    async with asyncio.timeout(PATIENCE), connect(prosody.login("reader"), fail) as connection:
        await connection.subscribe(PLACE, TOPIC)
        await say(prosody, SECOND)
        with pytest.raises(RuntimeError, match="cannot be received"):
            await connection.lost()


async def test_a_topic_without_a_node_is_no_endpoint_yet(prosody: Prosody) -> None:
    with pytest.raises(FetchError, match="item-not-found"):
        await reader_of(prosody).receive(None, RecordingListener())


async def test_a_login_that_is_refused_is_a_warning(
    offered: SmallSource,
    prosody: Prosody,
    destination: Destination,
    caplog: pytest.LogCaptureFixture,
) -> None:
    login = prosody.login("reader", "wrong")
    async with destination.subscriber(via=Via.XMPP, logins={"xmpp": login}) as subscriber:
        await destination.until(lambda: "refused the login" in str(subscriber.status.error))
        assert subscriber.status.push is PushState.DOWN
    warnings = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert warnings[0].startswith("push is refused; polling the lists: ")
    assert f"'reader@{DOMAIN}'" in warnings[0]


async def test_an_authority_that_is_not_trusted_is_named(prosody: Prosody) -> None:
    transport = XmppReader(PLACE, TOPIC, replace(prosody.login("reader"), ca=None))
    with pytest.raises(FetchError, match="its certificate is not trusted"):
        await transport.receive(None, RecordingListener())


@pytest.mark.parametrize(
    ("login", "reason"),
    [
        (XmppLogin(jid="me", password="canary"), "not an XMPP account"),
        (XmppLogin(jid="me@a.example"), "needs a password"),
        (XmppLogin(password="canary"), "needs the JID"),
        (XmppLogin(jid="me@a.example", password="canary", server="a"), "host:port"),
        (XmppLogin(jid="me@a.example", password="canary", ca="not-there.pem"), "not-there.pem"),
    ],
)
def test_what_cannot_work_is_refused_at_once(login: XmppLogin, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as error:
        FollowOptions(logins={"xmpp": login})
    assert "canary" not in str(error.value) + repr(login)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "slixmpp", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'rsnotify\[xmpp\]'"):
        FollowOptions(logins={"xmpp": XmppLogin(jid="me@a.example", password="secret")})
