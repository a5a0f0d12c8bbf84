"""Fragments over a WebSocket (docs/protocol.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from rsnotify.errors import FetchError, Unavailable
from rsnotify.format.datetimes import Instant
from rsnotify.format.vocabulary import MAX_BYTES
from rsnotify.runtime.dialing import TIMEOUT
from rsnotify.runtime.shared_websockets import TOPICS, SharedWebSockets
from rsnotify.selection.push_selection import EVERYTHING, PushSelection
from rsnotify_subscriber.push.connecting import AddressMemory, HubDialer
from rsnotify_subscriber.push.hub_websocket import HubWebSocket
from rsnotify_subscriber.push.transport import TransportListener

#: The seconds between pings, and until a hub that does not answer one counts as dead.
_PING, _PONG = 5.0, 10.0


@dataclass(repr=False)
class WebSocketTransport:
    """A connection to a hub for one topic, or a part of a shared one; a `Transport`.

    Args:
        trusts: Returns whether a host may be at any address.
        select: The requested part of the topic; a hub may send more.
        credentials: Header fields of the request.
        memory: Which addresses failed in earlier attempts.
        shared: The connections of several subscribers; None for one of its own.
    """

    hub: str
    topic: str
    trusts: Callable[[str | None], Awaitable[bool]]
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
                # The answer may be on its way: the next to subscribe must not take it as its own.
                connection.is_ending |= reception.subscribed.cancelled()
                reception.end(None)
                await connection.end(self.topic)

    async def _connect(self) -> HubWebSocket:
        if self.shared is None:
            return await self._open()
        # Those who may not dial what another may must not use its connection.
        trusted = await self.trusts(urlsplit(self.hub).hostname)
        key = self.hub, frozenset(self.credentials.items()), trusted
        return await self.shared.connect(key, self.topic, self._open)

    async def _open(self) -> HubWebSocket:
        dialer = HubDialer(self.memory, self.trusts)
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
                # Small frames gain nothing by it, and it could hide a decompression bomb.
                compression=None,
                max_size=MAX_BYTES,
                open_timeout=TIMEOUT,
                ping_interval=_PING,
                ping_timeout=_PONG,
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
            raise Unavailable(self.hub, str(error) or type(error).__name__) from error
