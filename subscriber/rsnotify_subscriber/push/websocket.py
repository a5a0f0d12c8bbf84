"""Fragments over a WebSocket (docs/protocol.md)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.frames import DATA_OPCODES, Frame
from websockets.http11 import Response
from websockets.typing import BytesLike

from rsnotify.errors import FetchError, Unavailable
from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.format.vocabulary import MAX_BYTES
from rsnotify.runtime.dialing import TIMEOUT
from rsnotify.selection.push_selection import EVERYTHING, PushSelection
from rsnotify_subscriber.push.connecting import AddressMemory, HubDialer
from rsnotify_subscriber.push.transport import TransportListener

#: The seconds between pings, and until a hub that does not answer one counts as dead.
_PING, _PONG = 5.0, 10.0
#: The most characters of a hub's reason that a message repeats.
_REASON = 200


class _Control(Struct):
    type: str
    code: str = ""
    message: str = ""
    audience: Annotated[int, Meta(ge=0, le=2**53)] = 0


class _DirectConnection(ClientConnection):
    """A connection that passes messages on where they are received, without a queue and a task.

    Attributes:
        subscribed: Is done once a message has confirmed the subscription, or `ended` is.
        ended: Is done once the connection is lost, or with the error of a message.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.subscribed: asyncio.Future[None] = self.loop.create_future()
        self.ended: asyncio.Future[None] = self.loop.create_future()
        #: Handles a message, and returns whether that confirms the subscription; what a hub sends
        #: before it is requested is ignored.
        self.handle: Callable[[bytes], bool] = lambda message: False
        self._frames: list[BytesLike] = []

    def process_event(self, event: Frame | Response) -> None:  # type: ignore[override]
        if not isinstance(event, Frame) or event.opcode not in DATA_OPCODES:
            super().process_event(event)
            return
        self._frames.append(event.data)
        if event.fin:
            message = b"".join(self._frames)
            self._frames.clear()
            if not self.ended.done():
                self._handle(message)

    def _handle(self, message: bytes) -> None:
        try:
            if self.handle(message) and not self.subscribed.done():
                self.subscribed.set_result(None)
        except Exception as error:
            self.ended.set_exception(error)
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self.ended.done():
            self.ended.set_result(None)
        self._finish()

    def _finish(self) -> None:
        if not self.subscribed.done():
            self.subscribed.set_result(None)


@dataclass(repr=False)
class WebSocketTransport:
    """A connection to a hub for one topic; a `Transport`.

    Args:
        trusts: Returns whether a host may be at any address.
        select: The requested part of the topic; a hub may send more.
        credentials: Header fields of the request.
        memory: Which addresses failed in earlier attempts.
    """

    hub: str
    topic: str
    trusts: Callable[[str | None], Awaitable[bool]]
    select: PushSelection = EVERYTHING
    credentials: Mapping[str, str] = field(default_factory=dict)
    memory: AddressMemory = field(default_factory=AddressMemory)

    async def receive(self, since: Instant | None, listener: TransportListener) -> None:
        dialer = HubDialer(self.memory, self.trusts)
        try:
            await self._receive(dialer, since, listener)
        except FetchError:
            dialer.failed()
            raise

    async def _receive(
        self, dialer: HubDialer, since: Instant | None, listener: TransportListener
    ) -> None:
        try:
            sock = await self._dial(dialer)
            async with connect(
                self.hub,
                sock=sock,
                create_connection=_DirectConnection,
                additional_headers=self.credentials,
                # Small frames gain nothing by it, and it could hide a decompression bomb.
                compression=None,
                max_size=MAX_BYTES,
                open_timeout=TIMEOUT,
                ping_interval=_PING,
                ping_timeout=_PONG,
                close_timeout=1,
            ) as connection:
                assert isinstance(connection, _DirectConnection)
                connection.handle = lambda message: self._handle(message, listener)
                await connection.send(self._subscription(since))
                async with asyncio.timeout(TIMEOUT):
                    await connection.subscribed
                await connection.ended
                raise connection.protocol.close_exc
        except TimeoutError:
            raise Unavailable(self.hub, "no answer in time") from None
        except ConnectionClosed as error:
            if error.rcvd is None:
                raise Unavailable(self.hub, "the connection was lost") from error
            reason = f": {error.rcvd.reason}" if error.rcvd.reason else ""
            raise Unavailable(self.hub, f"it closed the connection{reason}") from error
        except (OSError, ValueError, RecursionError, WebSocketException) as error:
            raise Unavailable(self.hub, str(error) or type(error).__name__) from error

    async def _dial(self, dialer: HubDialer) -> socket.socket:
        parts = urlsplit(self.hub)
        port = parts.port or (443 if parts.scheme == "wss" else 80)
        return await dialer.dial(self.hub, parts.hostname, port)

    def _subscription(self, since: Instant | None) -> str:
        frame: dict[str, object] = {
            "type": "subscribe",
            "topic": self.topic,
            "since": format_datetime(since) if since is not None else None,
        }
        if self.select:
            frame["select"] = self.select
        return msgspec.json.encode(frame).decode()

    def _handle(self, data: bytes, listener: TransportListener) -> bool:
        """Handle a message; return whether it confirms the subscription."""
        if not data.startswith(b"{"):
            listener.fragment(data)
            return False
        control = msgspec.json.decode(data, type=_Control)
        if control.type == "subscribed":
            listener.audience(control.audience)
            listener.up()
        elif control.type == "gap":
            listener.gap()
        elif control.type == "error":
            reason = f"{control.code[:_REASON]!r}: {control.message[:_REASON]!r}"
            raise Unavailable(self.hub, f"the hub refuses: {reason}")
        return control.type == "subscribed"
