"""Several hubs of one Source: they go, come back, cannot be used, or are others now."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from aiohttp import web
from websockets.utils import accept_key

from rsnotify.errors import ConfigurationError, Unavailable
from rsnotify_subscriber import (
    Behind,
    Event,
    GapSeen,
    LevelReached,
    OfferChanged,
    Pulling,
    PushDown,
    PushState,
    PushUp,
    Via,
)
from rsnotify_subscriber.following import following as rediscovery
from rsnotify_subscriber.push import websocket_transport as websocket
from tests.subscriber.destination import PACE, PATIENCE, Destination
from tests.subscriber.hub import SmallHub, anywhere, push
from tests.subscriber.push.failing_over.scene import LIST, followed
from tests.subscriber.recording import RecordingListener
from tests.subscriber.source import SmallSource, status


async def test_the_next_hub_takes_over_until_the_lost_one_is_back(
    source: SmallSource, two: list[SmallHub], destination: Destination
) -> None:
    hub, other = two
    async with followed(destination):
        await destination.until_by(hub.url)
        assert other.subscriptions == []
        await hub.stop()
        await destination.until_by(other.url)
        await other.subscribed()
        source.answers[LIST] = status(503)
        source.put_inline("new", b"by the other")
        await push(source, other)
        await destination.until_equal()
        await hub.server.start()
        await destination.until_by(hub.url, other.url)
        source.put_inline("newer", b"by the other, as the Source has not reached the first")
        await push(source, other)
        await destination.until_equal()
        await hub.subscribed(2)
        source.put_inline("newest", b"by the first")
        await push(source, hub)
        await destination.until_by(hub.url)
        await destination.until_equal()


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (None, "no answer in time"),
        (f'{{"type": "subscribed", "audience": {10**400}}}', "^ws://"),
        ('{"type": "subscribed", "audience": -1}', "^ws://"),
        (f'{{"type": "no", "more": {"[" * 100_000}{"]" * 100_000}}}', "^ws://"),
        ("{", "^ws://"),
        (
            f'{{"type": "error", "code": "no", "message": "{"because " * 1000}"}}',
            "'no': 'because because",
        ),
    ],
    ids=[
        "none",
        "more listeners than a number holds",
        "less than none",
        "too deep",
        "cut off",
        "long",
    ],
)
async def test_a_hub_that_does_not_confirm_a_subscription_is_given_up(
    hub: SmallHub, monkeypatch: pytest.MonkeyPatch, frame: str | None, reason: str
) -> None:
    async def babble(socket: web.WebSocketResponse, _: object) -> None:
        if frame is not None:
            await socket.send_str(frame)

    monkeypatch.setattr(hub, "_subscribe", babble)
    monkeypatch.setattr(websocket, "TIMEOUT", PATIENCE if frame else 0.1)
    lost = websocket.WebSocketTransport(hub.url, "topic", allows_any_address=anywhere)
    recorder = RecordingListener()
    with pytest.raises(Unavailable, match=reason) as error:
        await lost.receive(None, recorder)
    assert recorder.events == []
    assert len(str(error.value)) < 500


async def test_a_run_that_only_catches_up_connects_to_no_hub(
    two: list[SmallHub], destination: Destination
) -> None:
    await destination.catch_up()
    assert [one.subscriptions for one in two] == [[], []]
    assert destination.current.status.way == ()


async def test_no_hub_at_once_is_refused(destination: Destination) -> None:
    with pytest.raises(ConfigurationError, match="1 or more"):
        destination.subscriber(hubs=0)


async def test_another_offer_affects_only_the_hubs_that_changed(
    source: SmallSource,
    two: list[SmallHub],
    destination: Destination,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rediscovery, "_OFFER_INTERVAL", 0.05)
    hub, other = two
    source.hubs = [hub.url, "ws://127.0.0.1:9/ws"]
    async with followed(destination, pace=PACE, hubs=2) as subscriber:
        await hub.subscribed()
        source.hubs = [other.url, hub.url]
        await destination.until_by(other.url, hub.url)
        assert len(hub.subscriptions) == 1
        source.hubs = [other.url]
        await destination.until_by(other.url)
        source.hubs = []
        await destination.until(lambda: subscriber.status.push is PushState.OFF)
        source.put("polled", b"1")
        await destination.until_equal()
        assert len(other.subscriptions) == 1
    offers = [one.now.hubs for one in destination.events_of(OfferChanged)]
    assert offers == [(other.url, hub.url), (other.url,), ()]


# The events that an application receives about its endpoints.


def ways(destination: Destination) -> list[Event]:
    """Return the events about transports; those about being level come separately."""
    return [one for one in destination.events if isinstance(one, PushUp | PushDown)]


async def test_an_application_receives_events_about_its_endpoints(
    source: SmallSource, two: list[SmallHub], destination: Destination
) -> None:
    hub, other = two
    events = destination.events
    async with followed(destination) as subscriber:
        await hub.subscribed()
        topic = source.base + "channel.xml"
        assert PushUp(Via.WEBSOCKET, hub.url, topic) in events
        assert isinstance([one for one in events if not isinstance(one, PushUp)][-1], LevelReached)
        names = [type(one).__name__ for one in events]
        baseline = [name for name in names if name.startswith("Base")]
        assert baseline == ["BaselineBegun", "BaselineComplete"]
        rungs = [one.kind.value for one in destination.events_of(Pulling)]
        assert rungs[:2] == ["Resource List", "Change List"]
        events.clear()
        source.put("lost", b"1")
        source.put("seen", b"2")
        await push(source, hub)
        await destination.until_equal()
        await destination.until(lambda: subscriber.status.level)
        kinds = [type(one) for one in events if not isinstance(one, Behind | LevelReached)]
        assert kinds == [GapSeen, Pulling]
        events.clear()
        await hub.stop()
        await destination.until_by(other.url)
        (down,) = destination.events_of(PushDown)
        assert (down.hub, down.left) == (hub.url, 0)
        assert hub.url in down.reason
        assert PushUp(Via.WEBSOCKET, other.url, topic) in events
        await hub.server.start()
        await hub.subscribed(2)
        source.put_inline("newest", b"by the first")
        await push(source, hub)
        await destination.until_by(hub.url)
        assert ways(destination)[-1] == PushDown(Via.WEBSOCKET, other.url, topic, "", 1)
    assert ways(destination)[-1] == PushDown(Via.WEBSOCKET, hub.url, topic, "", 0)


async def test_an_event_handler_may_fail_and_may_stop_the_subscriber(
    two: list[SmallHub], destination: Destination, caplog: pytest.LogCaptureFixture
) -> None:
    def on_event(event: Event) -> None:
        if isinstance(event, PushUp):
            destination.current.stop()
        raise ZeroDivisionError

    async with asyncio.timeout(PATIENCE):
        with suppress(asyncio.CancelledError):
            await destination.subscriber(on_event=on_event).run()
    assert "on_event failed for PushUp" in caplog.text


# A hub that sends something before it is requested does not end the subscriber.


async def test_a_message_in_one_packet_with_the_handshake_is_ignored() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(line.split(": ", 1) for line in request.splitlines()[1:] if line)
        accept = accept_key(fields["Sec-WebSocket-Key"])
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept.encode() + b"\r\n\r\n\x81\x02{}"
        )
        await reader.readexactly(2)  # the subscription
        writer.close()

    server, recorder = await asyncio.start_server(answer, "127.0.0.1", 0), RecordingListener()
    async with server:
        hub = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        with pytest.raises(Unavailable, match="lost"):
            await websocket.WebSocketTransport(hub, "t", anywhere).receive(None, recorder)
    assert recorder.events == []
