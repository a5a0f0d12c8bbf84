"""Subscribers of one process share a WebSocket to a hub, if the hub permits it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, cast

import pytest
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.typing import Subprotocol

from rsnotify.errors import FetchError, RefusedAddress, Unavailable
from rsnotify.runtime import shared_websockets
from rsnotify.runtime.shared_websockets import SharedWebSockets
from rsnotify_subscriber import TransportListener
from rsnotify_subscriber.push.websocket_transport import HubWebSocket, WebSocketTransport
from tests.subscriber.hub import anywhere, nowhere
from tests.subscriber.recording import RecordingListener
from tests.subscriber.source import PATIENCE

Shared = SharedWebSockets[HubWebSocket]


class Hub:
    """Records what is requested on each connection, and sends what a test wants."""

    def __init__(self) -> None:
        self.connections: list[ServerConnection] = []
        self.frames: list[tuple[int, dict[str, Any]]] = []
        self.refused: set[str] = set()
        self.late: str | None = None
        self.silent: set[str] = set()
        self.ended = 0
        self.permits_many = True
        self.opening = asyncio.Event()
        self.opening.set()
        self._changed = asyncio.Condition()
        self.server: Server

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/ws"

    def select(
        self, connection: ServerConnection, offered: list[Subprotocol]
    ) -> Subprotocol | None:
        return shared_websockets.TOPICS if self.permits_many and offered else None

    async def answer(self, *_: object) -> None:
        await self.opening.wait()

    async def handle(self, connection: ServerConnection) -> None:
        number = len(self.connections)
        self.connections.append(connection)
        async for message in connection:
            frame = json.loads(message)
            self.frames.append((number, frame))
            if frame["type"] == "subscribe":
                await self._subscribe(connection, frame["topic"])
            await self._notify()
        self.ended += 1
        await self._notify()

    async def _subscribe(self, connection: ServerConnection, topic: str) -> None:
        if topic in self.silent:
            return
        if self.late is not None:
            await self.send(self.connections.index(connection), topic, self.late)
        if topic in self.refused:
            answer = {"type": "error", "topic": topic, "code": "too-many", "message": "later"}
        else:
            answer = {"type": "subscribed", "topic": topic, "through": None, "audience": 1}
        await connection.send(json.dumps(answer))

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def send(self, number: int, topic: str, *documents: str) -> None:
        connection = self.connections[number]
        await connection.send(json.dumps({"type": "documents", "topic": topic}))
        for document in documents:
            await connection.send(document)

    async def received(self, *frames: tuple[int, str, str]) -> None:
        """Wait until these frames, and no others, were received, in any order."""

        def found() -> list[tuple[int, str, str]]:
            return sorted((number, each["type"], each["topic"]) for number, each in self.frames)

        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: found() == sorted(frames))

    async def closed(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: self.ended == count)


class Listener(RecordingListener):
    """Receives a topic in a task, until it ends."""

    def __init__(
        self,
        hub: Hub,
        topic: str,
        shared: Shared,
        credentials: Mapping[str, str] = {},
        allows_any_address: Any = anywhere,
    ) -> None:
        super().__init__()
        self._read = 0
        transport = WebSocketTransport(
            hub.url, topic, allows_any_address, credentials=credentials, shared=shared
        )
        self.task = asyncio.create_task(transport.receive(None, self))

    def audience(self, listeners: int) -> None:
        pass

    def fragment(self, document: bytes) -> None:
        if document == b"<bad/>":
            raise ValueError("it cannot be handled")
        super().fragment(document)

    async def next(self) -> str | bytes:
        await self.more_than(self._read)
        self._read += 1
        return self.events[self._read - 1]

    async def error(self) -> FetchError:
        with pytest.raises(FetchError) as caught:
            await self.ended()
        return caught.value

    async def leave(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError, FetchError):
            await self.task


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    hub = Hub()
    async with serve(
        hub.handle, "127.0.0.1", 0, select_subprotocol=hub.select, process_request=hub.answer
    ) as hub.server:
        yield hub
        hub.opening.set()


@pytest.fixture
def shared() -> Shared:
    return SharedWebSockets()


async def listening(hub: Hub, shared: Shared, *topics: str) -> list[Listener]:
    listeners = [Listener(hub, topic, shared) for topic in topics]
    assert [await each.next() for each in listeners] == ["up"] * len(topics)
    return listeners


async def test_all_topics_of_a_hub_share_one_connection(hub: Hub, shared: Shared):
    a, b, c = await listening(hub, shared, "a", "b", "c")
    await hub.received(*((0, "subscribe", topic) for topic in "abc"))
    await hub.send(0, "b", "<one/>", "<two/>")
    await hub.send(0, "a", "<three/>")
    assert [await b.next(), await b.next(), await a.next()] == [b"<one/>", b"<two/>", b"<three/>"]
    await b.leave()
    await hub.received(*((0, "subscribe", topic) for topic in "abc"), (0, "end", "b"))
    await hub.send(0, "b", "<ignored/>")
    await hub.send(0, "c", "<four/>")
    assert await c.next() == b"<four/>"
    await a.leave()
    assert hub.ended == 0
    await c.leave()
    await hub.closed(1)


async def test_who_comes_after_the_last_has_left_opens_another(hub: Hub, shared: Shared):
    for number in range(2):
        (listener,) = await listening(hub, shared, "a")
        await listener.leave()
        await hub.closed(number + 1)


async def test_a_hub_without_the_subprotocol_gets_a_connection_for_each_topic(
    hub: Hub, shared: Shared
):
    hub.permits_many = False
    listeners = await listening(hub, shared, "a", "b", "c")
    topics = {frame["topic"]: number for number, frame in hub.frames}
    assert len(set(topics.values())) == 3
    await hub.connections[topics["b"]].send("<one/>")
    assert await listeners[1].next() == b"<one/>"
    hub.permits_many = True  # after an update, what opens next is shared again
    await asyncio.gather(*(each.leave() for each in listeners))
    await hub.closed(3)
    listeners = await listening(hub, shared, "a", "b")
    later = await listening(hub, shared, "c", "d")
    assert len(hub.connections) <= 5
    await asyncio.gather(*(each.leave() for each in [*listeners, *later]))


async def test_a_lost_connection_ends_each_with_the_reason_and_one_is_opened_again(
    hub: Hub, shared: Shared
):
    listeners = await listening(hub, shared, "a", "b", "c")
    await hub.connections[0].close(1013, "queue overflow")
    for listener in listeners:
        assert "queue overflow" in str(await listener.error())
    listeners = await listening(hub, shared, "a", "b", "c")
    assert len(hub.connections) == 2
    hub.connections[1].transport.abort()
    for listener in listeners:
        assert "lost" in str(await listener.error())


async def test_a_refused_topic_does_not_end_the_others(hub: Hub, shared: Shared):
    hub.refused.add("b")
    (a,) = await listening(hub, shared, "a")
    assert "'too-many': 'later'" in str(await Listener(hub, "b", shared).error())
    await hub.send(0, "a", "<one/>")
    assert await a.next() == b"<one/>"
    assert len(hub.connections) == 1
    await a.leave()


async def test_a_fragment_that_fails_ends_its_topic_only(hub: Hub, shared: Shared):
    a, b = await listening(hub, shared, "a", "b")
    await hub.send(0, "a", "<bad/>")
    await hub.send(0, "b", "<one/>")
    assert "cannot be handled" in str(await a.error())
    assert await b.next() == b"<one/>"
    await b.leave()


@pytest.mark.parametrize("text", ["{", '{"type": "error", "code": "c", "message": "m"}'])
async def test_what_concerns_no_topic_ends_all(hub: Hub, shared: Shared, text: str):
    listeners = await listening(hub, shared, "a", "b")
    await hub.connections[0].send(text)
    for listener in listeners:
        assert isinstance(await listener.error(), Unavailable)
    await hub.closed(1)


async def test_each_topic_is_subscribed_to_once_on_a_connection(hub: Hub, shared: Shared):
    listeners = await listening(hub, shared, "a", "a", "b")
    await hub.received((0, "subscribe", "a"), (0, "subscribe", "b"), (1, "subscribe", "a"))
    await hub.send(0, "a", "<one/>")
    await hub.send(1, "a", "<one/>")
    assert [await each.next() for each in listeners[:2]] == [b"<one/>", b"<one/>"]
    await asyncio.gather(*(each.leave() for each in listeners))


async def test_what_was_on_its_way_to_an_ended_subscription_is_ignored_by_the_next(
    hub: Hub, shared: Shared
):
    (first, other) = await listening(hub, shared, "a", "b")
    await first.leave()
    hub.late = "<of-the-first/>"
    (second,) = await listening(hub, shared, "a")
    await hub.send(0, "a", "<one/>")
    assert await second.next() == b"<one/>"
    assert len(hub.connections) == 1
    await asyncio.gather(second.leave(), other.leave())


async def test_who_leaves_before_the_hub_has_answered_leaves_no_answer_to_others(
    hub: Hub, shared: Shared
):
    (other,) = await listening(hub, shared, "b")
    hub.silent.add("a")
    first = Listener(hub, "a", shared)
    await hub.received((0, "subscribe", "b"), (0, "subscribe", "a"))
    await first.leave()
    hub.silent.clear()
    (second,) = await listening(hub, shared, "a")
    assert [number for number, frame in hub.frames if frame["topic"] == "a"] == [0, 0, 1]
    await asyncio.gather(second.leave(), other.leave())


async def test_a_connection_has_a_limited_number_of_topics(
    hub: Hub, shared: Shared, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shared_websockets, "_MAX_TOPICS", 2)
    listeners = await listening(hub, shared, *"abcde")
    assert len(hub.connections) == 3
    await asyncio.gather(*(each.leave() for each in listeners))


async def test_credentials_are_not_shared(hub: Hub, shared: Shared):
    listeners = [
        Listener(hub, "a", shared),
        Listener(hub, "b", shared, {"Authorization": "Bearer 1"}),
        Listener(hub, "c", shared, {"Authorization": "Bearer 2"}),
        Listener(hub, "d", shared, {"Authorization": "Bearer 2"}),
    ]
    for each in listeners:
        await each.next()
    tokens = {
        frame["topic"]: hub.connections[number].request.headers.get("Authorization")
        for number, frame in hub.frames
        if hub.connections[number].request is not None
    }
    assert tokens == {"a": None, "b": "Bearer 1", "c": "Bearer 2", "d": "Bearer 2"}
    assert len(hub.connections) == 3
    await asyncio.gather(*(each.leave() for each in listeners))


async def test_who_may_not_dial_a_hub_does_not_use_the_connection_of_another(
    hub: Hub, shared: Shared
):
    (a,) = await listening(hub, shared, "a")
    refused = await Listener(hub, "b", shared, allows_any_address=nowhere).error()
    assert isinstance(refused, RefusedAddress)
    await a.leave()


async def test_another_opens_the_connection_if_the_first_is_cancelled(hub: Hub, shared: Shared):
    hub.opening.clear()
    first, *others = (Listener(hub, topic, shared) for topic in "abc")
    await asyncio.sleep(0)
    await first.leave()
    hub.opening.set()
    for each in others:
        assert await each.next() == "up"
    assert len(hub.connections) == 1
    await asyncio.gather(*(each.leave() for each in others))


async def test_those_who_wait_for_a_connection_that_fails_fail_with_it(hub: Hub, shared: Shared):
    hub.server.close(close_connections=False)
    url = hub.url
    await hub.server.wait_closed()
    tries = 0

    async def counted(host: str | None) -> bool:
        nonlocal tries
        tries += 1
        return True

    transports = [WebSocketTransport(url, topic, counted, shared=shared) for topic in "abc"]
    listener = cast(TransportListener, None)
    results = await asyncio.gather(
        *(each.receive(None, listener) for each in transports), return_exceptions=True
    )
    assert [type(each) for each in results] == [Unavailable] * 3
    assert tries == len(transports) + 1  # one more to dial
