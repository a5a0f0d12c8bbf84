"""Receives fragments over a WebSocket (docs/protocol.md).

`HubWebSocket` is a connection to a hub, and `TopicReception` one topic received over it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.protocol import State

from rsnotify import __version__
from rsnotify.errors import FetchError, Unavailable
from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.format.model import MAX_BYTES
from rsnotify.runtime.addresses import TIMEOUT
from rsnotify.runtime.reasons import reason_of
from rsnotify.runtime.shared_websockets import TOPICS, SharedWebSocket, SharedWebSockets
from rsnotify.runtime.tasks import settle
from rsnotify.selection import EVERYTHING, PushSelection
from rsnotify_subscriber.push.hub_dialer import AddressMemory, HubDialer
from rsnotify_subscriber.push.transport import TransportListener

#: Maximum number of characters of a hub's reason to include in a message.
_REASON_LENGTH = 200


class _Control(Struct):
    type: str
    topic: str | None = None
    code: str = ""
    message: str = ""
    audience: Annotated[int, Meta(ge=0, le=2**53)] = 0


class TopicReception:
    """One topic received over a connection, from subscribing to its end.

    Attributes:
        subscribed: Completes when the hub confirms the subscription, or together with `ended`.
        ended: Completes when the connection is lost, or with the error of a message.
    """

    def __init__(self, hub: str, listener: TransportListener) -> None:
        self._hub = hub
        self._listener = listener
        loop = asyncio.get_running_loop()
        self.subscribed: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()

    def process(self, message: bytes | _Control) -> None:
        """Process a document or a control frame. An error ends only this topic."""
        if self.ended.done():
            return
        try:
            if isinstance(message, bytes):
                # Earlier documents belong to a previous subscription, maybe with another selection.
                if self.subscribed.done():
                    self._listener.fragment(message)
            else:
                self._process_control(message)
        except Exception as error:
            self.end(error)

    def _process_control(self, control: _Control) -> None:
        if control.type == "subscribed":
            self._listener.audience(control.audience)
            self._listener.up()
            settle(self.subscribed, None)
        elif control.type == "gap":
            self._listener.gap()
        elif control.type == "error":
            code, message = control.code[:_REASON_LENGTH], control.message[:_REASON_LENGTH]
            raise Unavailable(self._hub, f"the hub refuses: {code!r}: {message!r}")

    def end(self, error: Exception | None) -> None:
        settle(self.ended, error)
        if not self.ended.cancelled():
            self.ended.exception()  # otherwise asyncio logs it as never retrieved
        settle(self.subscribed, None)


class HubWebSocket(SharedWebSocket[TopicReception]):
    """A connection that receives topics.

    Attributes:
        dialer: The dialer of the TCP connection, set when the connection is opened.
    """

    dialer: HubDialer
    #: The topic of the next documents.
    _current: TopicReception | None = None

    def subscribe(
        self,
        hub: str,
        topic: str,
        since: Instant | None,
        select: PushSelection,
        listener: TransportListener,
    ) -> TopicReception:
        """Subscribe to a topic. Documents that arrive before the confirmation are ignored."""
        reception = self.topics[topic] = TopicReception(hub, listener)
        if not self.is_for_many:
            self._current = reception
        frame: dict[str, object] = {
            "type": "subscribe",
            "topic": topic,
            "since": format_datetime(since) if since is not None else None,
        }
        if select:
            frame["select"] = select
        self.send_frame(frame)
        if self.protocol.state is State.CLOSED:
            reception.end(None)
        return reception

    def process_message(self, message: bytes) -> None:
        if not message.startswith(b"{"):
            if self._current is not None:
                self._current.process(message)
            return
        try:
            control = msgspec.json.decode(message, type=_Control)
        except (ValueError, RecursionError) as error:
            self.end_all(error)
            return
        named = self.named(control.topic)
        if control.type == "documents" and self.is_for_many:
            self._current = named
        elif named is not None:
            named.process(control)
        elif control.type == "error" and control.topic is None:
            self.is_ending = True
            for reception in self.topics.values():
                reception.process(control)

    def end_all(self, error: Exception | None) -> None:
        self.is_ending = True
        for reception in self.topics.values():
            reception.end(error)


#: Seconds between pings, and timeout for their answers.
_PING_INTERVAL, _PING_TIMEOUT = 5.0, 10.0


@dataclass(repr=False)
class WebSocketTransport:
    """A subscription to one topic, over its own or a shared connection. Implements `Transport`.

    Args:
        allows_any_address: As in `Sessions`.
        select: The wanted part of the topic. A hub may send more.
        credentials: Header fields for the handshake.
        shared: The connections that several subscribers share, or None for a separate connection.
    """

    hub: str
    topic: str
    allows_any_address: Callable[[str | None], Awaitable[bool]]
    select: PushSelection = EVERYTHING
    credentials: Mapping[str, str] = field(default_factory=dict)
    memory: AddressMemory = field(default_factory=AddressMemory)
    shared: SharedWebSockets[HubWebSocket] | None = None

    async def receive(self, since: Instant | None, listener: TransportListener) -> None:
        with self._as_fetch_errors():
            connection = await self._connect()
        with self._translated_errors(connection.dialer):
            reception = connection.subscribe(self.hub, self.topic, since, self.select, listener)
            try:
                async with asyncio.timeout(TIMEOUT):
                    await reception.subscribed
                await reception.ended
                raise connection.protocol.close_exc
            finally:
                # Otherwise, a late answer would be taken for that of the next subscription.
                connection.is_ending |= reception.subscribed.cancelled()
                reception.end(None)
                await connection.end(self.topic)

    async def _connect(self) -> HubWebSocket:
        if self.shared is None:
            return await self._open()
        # A subscriber must not share a connection to an address that it may not dial itself.
        is_anywhere = await self.allows_any_address(urlsplit(self.hub).hostname)
        key = self.hub, frozenset(self.credentials.items()), is_anywhere
        return await self.shared.connect(key, self.topic, self._open)

    async def _open(self) -> HubWebSocket:
        dialer = HubDialer(self.memory, self.allows_any_address)
        with self._translated_errors(dialer):
            parts = urlsplit(self.hub)
            port = parts.port or (443 if parts.scheme == "wss" else 80)
            sock = await dialer.dial(self.hub, parts.hostname, port)
            connection = await connect(
                self.hub,
                sock=sock,
                create_connection=HubWebSocket,
                subprotocols=None if self.shared is None else [TOPICS],
                additional_headers=self.credentials,
                user_agent_header=f"rsnotify/{__version__}",
                compression=None,  # useless for small frames, and a risk of decompression bombs
                max_size=MAX_BYTES,
                open_timeout=TIMEOUT,
                ping_interval=_PING_INTERVAL,
                ping_timeout=_PING_TIMEOUT,
                close_timeout=1,
            )
        assert isinstance(connection, HubWebSocket)
        connection.dialer = dialer
        return connection

    @contextmanager
    def _translated_errors(self, dialer: HubDialer) -> Iterator[None]:
        try:
            with self._as_fetch_errors():
                yield
        except FetchError:
            dialer.failed()
            raise

    @contextmanager
    def _as_fetch_errors(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise Unavailable(self.hub, "no answer in time") from None
        except ConnectionClosed as error:
            if error.rcvd is None:
                raise Unavailable(self.hub, "the connection was lost") from error
            reason = f": {error.rcvd.reason}" if error.rcvd.reason else ""
            raise Unavailable(self.hub, f"it closed the connection{reason}") from error
        except (OSError, ValueError, RecursionError, WebSocketException) as error:
            raise Unavailable(self.hub, reason_of(error, str(error))) from error
