"""Fragments over a WebSocket (docs/protocol.md)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, WebSocketException

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
                additional_headers=self.credentials,
                # Small frames gain nothing by it, and it could hide a decompression bomb.
                compression=None,
                max_size=MAX_BYTES,
                open_timeout=TIMEOUT,
                ping_interval=_PING,
                ping_timeout=_PONG,
                close_timeout=1,
            ) as connection:
                await connection.send(self._subscription(since))
                async with asyncio.timeout(TIMEOUT):
                    while not self._handle(await connection.recv(decode=False), listener):
                        pass
                while True:
                    self._handle(await connection.recv(decode=False), listener)
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

    def _handle(self, message: str | bytes, listener: TransportListener) -> bool:
        """Handle a frame; return whether it confirms the subscription."""
        data = message.encode() if isinstance(message, str) else message
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
