"""Subscribers over each transport, which check the bytes and the order of what they receive."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count, cycle
from typing import NoReturn

import aiohttp
from aiohttp import web
from msgspec import Struct

from rsnotify.format.datetimes import format_datetime
from rsnotify.format.links import parse_links
from rsnotify.runtime.mqtt_broker import MqttMessage, channel_topic, parse_broker
from rsnotify.runtime.mqtt_connection import connect
from rsnotify.runtime.tasks import running
from tests.harnesses.cluster.traffic import Ledger
from tests.hub.event_streams import EventReader
from tests.hub.helpers import Client, at
from tests.publisher.helpers import serving
from tests.waiting import until

_LOST = (aiohttp.ClientError, OSError, TimeoutError)
#: Seconds in which a node has to begin a stream, and in which it has to show that it is alive.
_BEGINS, _ALIVE = 5.0, 3.0
#: Seconds without an event after which an event stream is opened elsewhere.
_SILENT = 8.0
#: Seconds until a subscriber connects again.
_PAUSE = 0.1
_SECRET = "the secret of a subscription"


class Delivery(Struct, frozen=True):
    """A fragment that arrived; a repeat if it had arrived before."""

    at: float
    topic: str
    number: int
    is_repeat: bool


class Receiver:
    """A subscriber of some topics.

    Attributes:
        transport: The name of the transport.
        received: How many fragments of each topic it has.
        faults: What must not happen, in sentences.

    Args:
        is_late: Whether it subscribes when there are fragments, and lacks those.
    """

    def __init__(
        self,
        name: str,
        transport: str,
        ledger: Ledger,
        topics: Sequence[str],
        *,
        is_late: bool = False,
    ) -> None:
        self.name = name
        self._is_late = is_late
        self.transport = transport
        self._ledger = ledger
        self.received = dict.fromkeys(topics, 0)
        self.deliveries: list[Delivery] = []
        self.faults: list[str] = []
        self.connections = 0

    def receive(self, body: bytes) -> range:
        """Note a fragment, and return its number, or those that were merged into it."""
        place = self._ledger.place(body)
        if place is None or place[0] not in self.received:
            self.faults.append(f"received what was not published to it: {body[:2_000]!r}")
            return range(0)
        topic, numbers = place
        is_first = self._is_late and not self.deliveries
        expected = numbers[0] if is_first else self.received[topic]
        if numbers[0] > expected:
            self.faults.append(f"received fragment {numbers[0]} of {topic} after {expected - 1}")
        self.received[topic] = max(expected, numbers[-1] + 1)
        now = time.monotonic()
        self.deliveries += [Delivery(now, topic, each, each < expected) for each in numbers]
        return numbers

    def lacks(self, wanted: dict[str, int]) -> bool:
        """Return whether it has fewer fragments of some topic than there are."""
        return any(self.received[topic] < wanted[topic] for topic in self.received)


class _Stream(Receiver):
    """A subscriber of one topic, which connects to the next node when a connection is lost."""

    def __init__(self, name: str, transport: str, ledger: Ledger, topic: str) -> None:
        super().__init__(name, transport, ledger, [topic])
        self._topic = topic
        self._last: int | None = None

    @property
    def _since(self) -> str:
        """The instant after which it has nothing."""
        return format_datetime(at(self.received[self._topic]))

    async def run(
        self, session: aiohttp.ClientSession, nodes: Sequence[str], first: int
    ) -> NoReturn:
        for number in count(first):
            self._last = None
            try:
                await self._follow(session, nodes[number % len(nodes)])
            except _LOST:
                await asyncio.sleep(_PAUSE)
        raise AssertionError

    async def _follow(self, session: aiohttp.ClientSession, node: str) -> None:
        raise NotImplementedError

    def _next(self, body: bytes) -> None:
        """Note the next fragment of a connection, on which each follows the one before."""
        numbers = self.receive(body)
        if len(numbers) > 1:
            self.faults.append(f"received {numbers} merged into one")
        if numbers and self._last is not None and numbers[0] != self._last + 1:
            self.faults.append(f"{numbers[0]} follows {self._last} on one connection")
        self._last = numbers[-1] if numbers else None


class SocketReceiver(_Stream):
    async def _follow(self, session: aiohttp.ClientSession, node: str) -> None:
        async with asyncio.timeout(_BEGINS) as beginning:
            async with session.ws_connect(
                node + "ws",
                max_msg_size=0,
                heartbeat=_ALIVE,
                timeout=aiohttp.ClientWSTimeout(ws_close=1),
            ) as socket:
                await socket.send_json(
                    {"type": "subscribe", "topic": self._topic, "since": self._since}
                )
                while True:
                    message = await socket.receive()
                    if message.type is not aiohttp.WSMsgType.TEXT:
                        raise ConnectionError
                    if not message.data.startswith("{"):
                        self._next(message.data.encode())
                        continue
                    frame = json.loads(message.data)
                    if frame["type"] == "gap":
                        self.faults.append(f"the hub reports a gap: {frame}")
                    elif frame["type"] == "subscribed":
                        self.connections += 1
                        beginning.reschedule(None)
                    else:
                        raise ConnectionError  # a node that cannot serve at the moment


class EventReceiver(_Stream):
    async def _follow(self, session: aiohttp.ClientSession, node: str) -> None:
        query = {"topic": self._topic, "since": self._since}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_BEGINS, sock_read=_SILENT)
        async with session.get(node + "events", params=query, timeout=timeout) as response:
            if response.status != 200:
                raise ConnectionError
            reader = EventReader(response)
            while (event := await reader.next()) is not None:
                if event.type == "gap":
                    self.faults.append(f"the hub reports a gap: {event.data}")
                elif event.type == "subscribed":
                    self.connections += 1
                else:
                    self._next(event.data.encode())


class CallbackReceiver(Receiver):
    """A WebSub callback, at a port of its own."""

    def __init__(self, name: str, ledger: Ledger, topic: str, *, is_late: bool) -> None:
        super().__init__(name, "WebSub", ledger, [topic], is_late=is_late)
        self.topic = topic
        self.url = ""

    async def get(self, request: web.Request) -> web.Response:
        return web.Response(text=request.query.get("hub.challenge", ""))

    async def post(self, request: web.Request) -> web.Response:
        body = await request.read()
        signature = "sha256=" + hmac.digest(_SECRET.encode(), body, "sha256").hex()
        if request.headers.get("X-Hub-Signature") != signature:
            self.faults.append("a delivery has a wrong signature")
        if not any(
            rel == "self" and to == self.topic
            for rel, to in parse_links(request.headers.getall("Link"))
        ):
            self.faults.append(f"a delivery has the links {request.headers.getall('Link')}")
        self.receive(body)
        return web.Response(status=204)


@asynccontextmanager
async def callbacks(
    number: int, ledger: Ledger, nodes: Sequence[str], *, are_late: bool = False
) -> AsyncIterator[list[CallbackReceiver]]:
    """Subscribe callbacks at the nodes in turn, and wait until all are confirmed."""
    async with AsyncExitStack() as stack:
        found = [
            CallbackReceiver(f"callback {each}", ledger, topic, is_late=are_late)
            for each, topic in zip(range(number), cycle(ledger.topics), strict=False)
        ]
        session = await stack.enter_async_context(aiohttp.ClientSession())
        clients = [Client(node, session) for node in nodes]
        before = len(await clients[0].subscriptions(limit="1000"))
        for each, client in zip(found, cycle(clients), strict=False):
            app = web.Application(client_max_size=10**8)
            app.router.add_get("/", each.get)
            app.router.add_post("/", each.post)
            each.url = await stack.enter_async_context(serving(app)) + "/"
            form = {"mode": "subscribe", "topic": each.topic, "callback": each.url}
            # Shards may have no owner yet, and requests of a client are limited.
            while (await client.form(**form, secret=_SECRET))[0] != 202:  # noqa: ASYNC110
                await asyncio.sleep(_PAUSE)
        await clients[0].subscriptions(lambda rows: len(rows) == before + number, limit="1000")
        yield found


@asynccontextmanager
async def streams(
    sockets: int, events: int, ledger: Ledger, nodes: Sequence[str]
) -> AsyncIterator[list[Receiver]]:
    """Connect WebSockets and event streams to the nodes in turn, and wait until all are."""
    topics = cycle(ledger.topics)
    found: list[_Stream] = [
        *(
            SocketReceiver(f"WebSocket {each}", "WebSocket", ledger, next(topics))
            for each in range(sockets)
        ),
        *(EventReceiver(f"events {each}", "SSE", ledger, next(topics)) for each in range(events)),
    ]
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(sock_connect=_BEGINS)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
        running(*(each.run(session, nodes, first) for first, each in enumerate(found))),
    ):
        await until(lambda: all(each.connections for each in found))
        yield [*found]


def _arrived(receiver: Receiver, message: MqttMessage) -> None:
    receiver.receive(message.payload)


@asynccontextmanager
async def mqtt_clients(number: int, ledger: Ledger, broker: str) -> AsyncIterator[list[Receiver]]:
    """Subscribe to all topics at the broker."""
    async with AsyncExitStack() as stack:
        found = [
            Receiver(f"MQTT client {each}", "MQTT", ledger, list(ledger.topics))
            for each in range(number)
        ]
        for each in found:
            connection = await stack.enter_async_context(
                connect(
                    parse_broker(broker),
                    on_message=partial(_arrived, each),
                )
            )
            for topic in ledger.topics:
                await connection.subscribe(channel_topic(topic))
        yield found
