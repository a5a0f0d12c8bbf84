"""Several ways to one Source: hubs that go, come back, hang, or are others now."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import web
from msgspec.structs import replace

from rsnotify.datetimes import MICROSECOND
from rsnotify.digest import SetDigest
from rsnotify.errors import ConfigurationError, Unavailable
from rsnotify.reading import read_document
from rsnotify.writing import write_document
from rsnotify_hub.serving.application import serve
from rsnotify_hub.settings.loading import load_configuration
from rsnotify_subscriber import PushState, Subscriber, Via, following, reception
from rsnotify_subscriber.events import (
    Behind,
    Event,
    GapSeen,
    Level,
    OfferChanged,
    Pulling,
    PushDown,
    PushUp,
)
from rsnotify_subscriber.push import mqtt, preference, websocket
from rsnotify_subscriber.push import push as push_module
from rsnotify_subscriber.push.websub import transport
from tests.mosquitto import Mosquitto
from tests.subscriber.conftest import PACE, Destination
from tests.subscriber.hub import SmallHub
from tests.subscriber.source import SmallSource, status
from tests.subscriber.test_mqtt import publish
from tests.subscriber.websub.blog import open_blog
from tests.subscriber.websub.desk import TERMS, Desk, open_desk

#: So rare that what is in step is so by push, or by what follows from it.
RARE = replace(PACE, poll=600, poll_with_push=600)
LIST = "/data/changelist.xml"


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preference, "HOLD", 0.1)
    monkeypatch.setattr(preference, "PATIENCE", 10.0)  # the machine may have much to do
    monkeypatch.setattr(mqtt, "PROOF", 0.1)
    monkeypatch.setattr(transport, "_GOODBYE", 0.2)


@pytest.fixture(autouse=True)
def some_content(source: SmallSource) -> None:
    for n in range(5):
        source.put(f"r{n}", b"%d" % n)


@pytest.fixture
async def other() -> AsyncIterator[SmallHub]:
    hub = SmallHub()
    await hub.server.start()
    yield hub
    await hub.stop()


@pytest.fixture
def two(source: SmallSource, hub: SmallHub, other: SmallHub) -> list[SmallHub]:
    """Two hubs, the better one first."""
    source.hubs = [hub.url, other.url]
    return [hub, other]


@pytest.fixture
def silent() -> Iterator[str]:
    """A hub that is connected to, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"ws://127.0.0.1:{listener.getsockname()[1]}/ws"


@asynccontextmanager
async def followed(destination: Destination, **options: object) -> AsyncIterator[Subscriber]:
    """Follow, from the moment that the baseline is there and a way is up."""
    async with destination.subscriber(**{"pace": RARE} | options) as subscriber:
        await destination.until(lambda: subscriber.status.level)
        await destination.until(lambda: subscriber.status.push is PushState.UP)
        yield subscriber


async def until_by(destination: Destination, *hubs: str) -> None:
    await destination.until(lambda: destination.current.status.way == hubs)


async def push(source: SmallSource, *hubs: SmallHub) -> None:
    """Push the last change at each of these."""
    before, until = source.changes[-2].changed_at, source.changes[-1].changed_at
    assert before is not None
    assert until is not None
    for hub in hubs:
        await hub.publish(source.fragment(source.changes[-1:], before), before, until)


async def beat(source: SmallSource, hub: SmallHub) -> None:
    """Push a heartbeat."""
    last = source.changes[-1].changed_at
    assert last is not None
    until = last + MICROSECOND
    await hub.publish(source.fragment((), last, until), last, until)


async def sum_up(source: SmallSource, hub: SmallHub) -> None:
    """Push the last change, and what the set is, as only a Source does that has heartbeats."""
    before, until = source.changes[-2].changed_at, source.changes[-1].changed_at
    assert before is not None
    assert until is not None
    change = read_document(source.fragment(source.changes[-1:], before))
    summed = replace(change, attributes=SetDigest(5, "0" * 32, hash="other").attributes)
    await hub.publish(write_document(summed), before, until)


# Two hubs


async def test_a_lost_hub_is_followed_by_the_next_and_come_back_to(
    source: SmallSource, two: list[SmallHub], destination: Destination
) -> None:
    hub, other = two
    async with followed(destination):
        await until_by(destination, hub.url)
        assert other.subscriptions == []
        await hub.stop()
        await until_by(destination, other.url)
        await other.subscribed()
        source.answers[LIST] = status(503)
        source.put_inline("new", b"by the other")
        await push(source, other)
        await destination.until_equal()
        await hub.server.start()
        await until_by(destination, hub.url, other.url)
        source.put_inline("newer", b"by the other, as the Source has not reached the first")
        await push(source, other)
        await destination.until_equal()
        await hub.subscribed(2)
        source.put_inline("newest", b"by the first")
        await push(source, hub)
        await until_by(destination, hub.url)
        await destination.until_equal()


async def test_what_is_published_while_no_hub_is_there_is_replayed_by_whichever_is_back(
    source: SmallSource, two: list[SmallHub], destination: Destination
) -> None:
    async with followed(destination) as subscriber:
        source.put_inline("before", b"1")
        await push(source, *two)
        await destination.until_equal()
        source.answers[LIST] = status(503)
        for one in two:
            await one.stop()
        await destination.until(lambda: subscriber.status.push is PushState.DOWN)
        source.put_inline("meanwhile", b"2")
        await push(source, *two)
        await two[1].server.start()
        await until_by(destination, two[1].url)
        await destination.until_equal()


async def test_a_hub_that_accepts_connections_and_never_answers_is_not_waited_for(
    source: SmallSource,
    hub: SmallHub,
    silent: str,
    destination: Destination,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preference, "PATIENCE", 0.1)
    source.hubs = [silent, hub.url]
    async with followed(destination):
        await until_by(destination, hub.url)


async def test_a_hub_that_never_confirms_a_subscription_is_given_up(
    hub: SmallHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ignore(*_: object) -> None:
        pass

    monkeypatch.setattr(hub, "_subscribe", ignore)
    monkeypatch.setattr(websocket, "TIMEOUT", 0.1)
    lost = websocket.WebSocketTransport(hub.url, "topic", trusts=lambda _: True)
    with pytest.raises(Unavailable, match="no answer in time"):
        await lost.receive(None, Nobody())


@pytest.mark.parametrize(
    "frame",
    [
        f'{{"type": "subscribed", "audience": {10**400}}}',
        '{"type": "subscribed", "audience": -1}',
        f'{{"type": "no", "more": {"[" * 100_000}{"]" * 100_000}}}',
        "{",
    ],
    ids=["more listeners than a number holds", "less than none", "too deep", "cut off"],
)
async def test_a_hub_that_says_what_cannot_be_is_given_up(
    hub: SmallHub, monkeypatch: pytest.MonkeyPatch, frame: str
) -> None:
    async def babble(socket: web.WebSocketResponse, _: object) -> None:
        await socket.send_str(frame)

    monkeypatch.setattr(hub, "_subscribe", babble)
    lost = websocket.WebSocketTransport(hub.url, "topic", trusts=lambda _: True)
    with pytest.raises(Unavailable):
        await lost.receive(None, Nobody())


async def test_of_what_a_hub_says_only_the_beginning_is_told(
    hub: SmallHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(socket: web.WebSocketResponse, _: object) -> None:
        await socket.send_json({"type": "error", "code": "no", "message": "because " * 1000})

    monkeypatch.setattr(hub, "_subscribe", refuse)
    lost = websocket.WebSocketTransport(hub.url, "topic", trusts=lambda _: True)
    with pytest.raises(Unavailable, match="'no': 'because because") as error:
        await lost.receive(None, Nobody())
    assert len(str(error.value)) < 500


class Nobody:
    """A `Listener` that must hear nothing."""

    def up(self) -> None:
        raise AssertionError

    gap = up

    def fragment(self, document: bytes) -> None:
        raise AssertionError


async def test_a_hub_that_the_source_does_not_reach_is_told_from_the_lists(
    source: SmallSource,
    two: list[SmallHub],
    destination: Destination,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(push_module, "MUTE", 0.1)
    hub, other = two
    events: list[Event] = []
    pace = replace(PACE, poll_with_push=0.2)
    async with followed(destination, pace=pace, on_event=events.append) as subscriber:
        await until_by(destination, hub.url)
        while subscriber.status.way != (other.url,):
            source.put("unheard", b"%d" % len(source.changes))
            await destination.until_equal()
            await destination.until(lambda: events)
        reasons = [one.reason for one in events if isinstance(one, PushDown)]
        assert reasons == [f"{hub.url}: it does not tell of changes that the lists have"]
        await other.subscribed()
        source.answers[LIST] = status(503)
        source.put_inline("new", b"by the other")
        await push(source, other)
        await destination.until_equal()
        source.put_inline("newer", b"by both")
        await push(source, *two)
        await until_by(destination, hub.url)


async def test_after_a_loss_the_lists_are_polled_until_push_brings_something_new(
    source: SmallSource, two: list[SmallHub], destination: Destination
) -> None:
    hub, other = two
    pace = replace(PACE, poll=0.1, poll_with_push=600)
    async with followed(destination, pace=pace):
        source.put_inline("first", b"1")
        await push(source, hub)
        await destination.until_equal()
        await hub.stop()
        await until_by(destination, other.url)
        for n in range(3):
            source.put("unheard", b"%d" % n)
            await destination.until_equal()
        await other.subscribed()
        source.put_inline("new", b"by the other")
        await push(source, other)
        await destination.until_equal()
        source.gets.clear()
        for n in range(30):
            source.put_inline("often", b"%d" % n)
            await push(source, other)
            await destination.until_equal()
        assert source.gets[LIST] <= 2


async def test_polls_come_as_without_push_where_the_one_hub_tells_nothing(
    source: SmallSource,
    hub: SmallHub,
    destination: Destination,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(push_module, "MUTE", 0.1)
    source.hubs = [hub.url]
    async with followed(destination, pace=replace(PACE, poll_with_push=0.2)) as subscriber:
        while subscriber.status.push is PushState.UP:
            source.put("unheard", b"%d" % len(source.changes))
            await destination.until_equal()
        assert subscriber.status.way == ()
        assert len(hub.sockets) == 1
        source.put("r0", b"by a poll")
        await destination.until_equal()
        source.put_inline("new", b"by the hub")
        await push(source, hub)
        await until_by(destination, hub.url)


@pytest.mark.parametrize("tell", [beat, sum_up])
async def test_polls_come_as_without_push_where_heartbeats_stop(
    tell: Callable[[SmallSource, SmallHub], Awaitable[None]],
    source: SmallSource,
    hub: SmallHub,
    destination: Destination,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reception, "QUIET", 0.2)
    source.hubs = [hub.url]
    async with followed(destination, pace=replace(PACE, poll=0.1, poll_with_push=600)):
        await until_by(destination, hub.url)
        await tell(source, hub)
        for n in range(3):
            source.put("unheard", b"%d" % n)
            await destination.until_equal()
        assert len(hub.sockets) == 1


async def test_what_is_offered_is_looked_at_soon_where_heartbeats_stop(
    source: SmallSource,
    hub: SmallHub,
    other: SmallHub,
    destination: Destination,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reception, "QUIET", 0.2)
    source.hubs = [hub.url]
    async with followed(destination, pace=replace(PACE, poll=0.1, poll_with_push=600)):
        await until_by(destination, hub.url)
        source.hubs = [other.url]
        await beat(source, hub)
        await until_by(destination, other.url)


async def test_several_hubs_at_once_bring_each_change_once(
    source: SmallSource, two: list[SmallHub], destination: Destination
) -> None:
    hub, other = two
    async with followed(destination, hubs=2) as subscriber:
        await until_by(destination, hub.url, other.url)
        await hub.subscribed()
        await other.subscribed()
        source.answers[LIST] = status(503)
        for n in range(20):
            source.put_inline(f"both{n}", b"%d" % n)
            await push(source, *two)
        await destination.until(lambda: subscriber.status.applied >= 25)
        assert destination.equals_source()
        assert subscriber.status.applied == 25
        await hub.stop()
        await until_by(destination, other.url)
        assert subscriber.status.push is PushState.UP
        source.put_inline("one", b"left")
        await push(source, other)
        await destination.until_equal()


async def test_who_only_catches_up_speaks_to_no_hub(
    two: list[SmallHub], destination: Destination
) -> None:
    await destination.catch_up()
    assert [one.subscriptions for one in two] == [[], []]
    assert destination.current.status.way == ()


async def test_no_hub_at_once_is_refused(destination: Destination) -> None:
    with pytest.raises(ConfigurationError, match="1 or more"):
        destination.subscriber(hubs=0)


# Offers that change


async def test_only_the_hubs_that_are_others_now_are_touched(
    source: SmallSource,
    two: list[SmallHub],
    destination: Destination,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "_REDISCOVER", 0.05)
    hub, other = two
    source.hubs = [hub.url, "ws://127.0.0.1:9/ws"]
    events: list[Event] = []
    options = {"pace": PACE, "hubs": 2, "on_event": events.append}
    async with followed(destination, **options) as subscriber:
        await hub.subscribed()
        source.hubs = [other.url, hub.url]
        await until_by(destination, other.url, hub.url)
        assert len(hub.subscriptions) == 1
        source.hubs = [other.url]
        await until_by(destination, other.url)
        source.hubs = []
        await destination.until(lambda: subscriber.status.push is PushState.OFF)
        source.put("polled", b"1")
        await destination.until_equal()
        assert len(other.subscriptions) == 1
    offers = [one.now.hubs for one in events if isinstance(one, OfferChanged)]
    assert offers == [(other.url, hub.url), (other.url,), ()]


# WebSub


async def test_a_hub_of_websub_is_taken_leave_of_when_a_better_way_is_back(
    source: SmallSource, hub: SmallHub, destination: Destination, tmp_path: Path
) -> None:
    settings = {"port": 0, "data": str(tmp_path / "hub"), "allow_private_addresses": True}
    async with serve(load_configuration(None, **settings)) as slow, open_desk() as desk:
        source.hubs = [slow + "websub", hub.url]
        async with followed(destination, callbacks=desk.callbacks):
            await until_by(destination, hub.url)
            assert await desk.any_subscriptions_at(slow) == []
            await hub.stop()
            await until_by(destination, slow + "websub")
            await desk.subscriptions_at(slow, 1)
            await hub.server.start()
            await hub.subscribed(2)
            source.put_inline("new", b"by the first")
            await push(source, hub)
            await until_by(destination, hub.url)
            await desk.subscriptions_at(slow, 0)
            assert len(desk.callbacks) == 0
            source.answers[LIST] = status(503)
            source.put_inline("newer", b"by the first alone")
            await push(source, hub)
            await destination.until_equal()


async def test_stopping_while_one_hub_hangs_and_another_has_not_answered_takes_no_time(
    source: SmallSource, silent: str, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preference, "PATIENCE", 0.1)
    async with open_blog() as blog, open_desk() as desk:
        source.hubs = [silent, blog.hub]
        blog.answering.clear()
        async with destination.subscriber(callbacks=desk.callbacks):
            await blog.until_confirmed(1)
        assert len(desk.callbacks) == 0
        assert blog.confirmed == {}
        blog.answering.set()


# All of them, one after the other


async def test_each_way_takes_over_from_the_better_one_and_gives_back_to_it(
    source: SmallSource,
    hub: SmallHub,
    mosquitto: Mosquitto,
    destination: Destination,
    tmp_path: Path,
    unused_tcp_port: int,
) -> None:
    settings = {"port": unused_tcp_port, "allow_private_addresses": True}
    slow = f"http://127.0.0.1:{unused_tcp_port}/"
    source.hubs = [slow + "websub", mosquitto.url, hub.url]
    pace = replace(RARE, poll=0.1)  # while no push is there, and only then

    async with AsyncExitStack() as life, open_desk(replace(TERMS, quiet=0.3)) as desk:

        async def begin_slow(folder: str) -> None:
            configuration = load_configuration(None, **settings, data=str(tmp_path / folder))
            await life.enter_async_context(serve(configuration))

        async def arrives(way: str | None) -> None:
            """Let a change come by a way, while nothing else can bring it."""
            await destination.until(lambda: best() == way)
            if way is not None:
                source.answers[LIST] = status(503)
            source.put_inline(f"by{len(source.changes)}", b"x")
            await bring(way)
            await destination.until_equal()
            await until_by(destination, *([way] if way else []))
            source.answers.pop(LIST, None)

        def best() -> str | None:
            return next(iter(destination.current.status.way), None)

        async def bring(way: str | None) -> None:
            if way == hub.url:
                await push(source, hub)
            elif way == mosquitto.url:
                await publish(mosquitto, source)
            elif way is not None:
                await desk.subscriptions_at(slow, 1)
                await say(desk, slow, source)

        await begin_slow("first")
        async with followed(destination, pace=pace, callbacks=desk.callbacks):
            await arrives(hub.url)
            await hub.stop()
            await arrives(mosquitto.url)
            await mosquitto.stop()
            await arrives(slow + "websub")
            await life.aclose()
            await arrives(None)
            await begin_slow("second")
            await arrives(slow + "websub")
            await mosquitto.start()
            await arrives(mosquitto.url)
            await hub.server.start()
            await arrives(hub.url)


async def say(desk: Desk, hub: str, source: SmallSource) -> None:
    """Publish the last change at a real hub."""
    before = source.changes[-2].changed_at
    assert before is not None
    fragment = source.fragment(source.changes[-1:], before)
    await desk.publish_at(hub, source.base + "channel.xml", fragment, "application/xml")


# Events


async def test_an_application_is_told_how_it_stands(
    source: SmallSource, two: list[SmallHub], destination: Destination
) -> None:
    hub, other = two
    events: list[Event] = []
    async with followed(destination, on_event=events.append) as subscriber:
        await hub.subscribed()
        topic = source.base + "channel.xml"
        assert PushUp(Via.WEBSOCKET, hub.url, topic) in events
        assert isinstance(events[-1], Level)
        assert [type(one).__name__ for one in events if type(one).__name__.startswith("Base")] == [
            "BaselineBegun",
            "BaselineComplete",
        ]
        rungs = [one.rung.value for one in events if isinstance(one, Pulling)]
        assert rungs[:2] == ["Resource List", "Change List"]
        events.clear()
        source.put("lost", b"1")
        source.put("seen", b"2")
        await push(source, hub)
        await destination.until_equal()
        await destination.until(lambda: subscriber.status.level)
        assert [type(one) for one in events if not isinstance(one, Behind | Level)] == [
            GapSeen,
            Pulling,
        ]
        events.clear()
        await hub.stop()
        await until_by(destination, other.url)
        downs = [one for one in events if isinstance(one, PushDown)]
        assert [(one.hub, one.left) for one in downs] == [(hub.url, 0)]
        assert hub.url in downs[0].reason
        assert PushUp(Via.WEBSOCKET, other.url, topic) in events
        await hub.server.start()
        await hub.subscribed(2)
        source.put_inline("newest", b"by the first")
        await push(source, hub)
        await until_by(destination, hub.url)
        assert events[-1] == PushDown(Via.WEBSOCKET, other.url, topic, "", 1)
    assert events[-1] == PushDown(Via.WEBSOCKET, hub.url, topic, "", 0)


async def test_what_hears_of_events_may_fail_and_may_stop(
    source: SmallSource,
    two: list[SmallHub],
    destination: Destination,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def on_event(event: Event) -> None:
        if isinstance(event, PushUp):
            destination.current.stop()
        raise ZeroDivisionError

    async with asyncio.timeout(10):
        with suppress(asyncio.CancelledError):
            await destination.subscriber(on_event=on_event).run()
    assert "on_event failed at PushUp" in caplog.text
