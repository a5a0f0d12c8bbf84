"""A WebSocket to a hub, and what it receives of each topic (docs/protocol.md)."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from websockets.asyncio.client import ClientConnection
from websockets.frames import DATA_OPCODES, Frame
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import BytesLike, Subprotocol

from rsnotify.errors import Unavailable
from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.selection.push_selection import PushSelection
from rsnotify_subscriber.push.connecting import HubDialer
from rsnotify_subscriber.push.transport import TransportListener

#: The subprotocol of connections for many topics.
TOPICS = Subprotocol("rsnotify.topics")
#: The most topics of one connection.
_MOST = 500
#: The most characters of a hub's reason that a message repeats.
_REASON = 200


class _Control(Struct):
    type: str
    topic: str | None = None
    code: str = ""
    message: str = ""
    audience: Annotated[int, Meta(ge=0, le=2**53)] = 0


class TopicReception:
    """A topic that a connection receives, from its subscription to its end.

    Attributes:
        subscribed: Is done once a message has confirmed the subscription, or `ended` is.
        ended: Is done once the connection is lost, or with the error of a message.
    """

    def __init__(self, hub: str, topic: str, listener: TransportListener) -> None:
        self.topic = topic
        self._hub = hub
        self._listener = listener
        loop = asyncio.get_running_loop()
        self.subscribed: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()

    def process(self, message: bytes | _Control) -> None:
        """Handle a document or a control frame; an error ends this topic only."""
        if self.ended.done():
            return
        try:
            if isinstance(message, bytes):
                self._listener.fragment(message)
            else:
                self._process_control(message)
        except Exception as error:
            self.end(error)

    def _process_control(self, control: _Control) -> None:
        if control.type == "subscribed":
            self._listener.audience(control.audience)
            self._listener.up()
            self._confirm()
        elif control.type == "gap":
            self._listener.gap()
        elif control.type == "error":
            reason = f"{control.code[:_REASON]!r}: {control.message[:_REASON]!r}"
            raise Unavailable(self._hub, f"the hub refuses: {reason}")

    def end(self, error: Exception | None) -> None:
        if not self.ended.done():
            if error is None:
                self.ended.set_result(None)
            else:
                self.ended.set_exception(error)
        self._confirm()

    def _confirm(self) -> None:
        if not self.subscribed.done():
            self.subscribed.set_result(None)


class HubWebSocket(ClientConnection):
    """A connection that passes messages on where they are received, without a queue and a task.

    Attributes:
        dialer: Made its TCP connection; set by who opens it.
    """

    dialer: HubDialer

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        #: Whether nobody may subscribe any more.
        self.is_ending = False
        self._receptions: dict[str, TopicReception] = {}
        #: Of the documents that follow.
        self._current: TopicReception | None = None
        self._frames: list[BytesLike] = []

    @property
    def is_for_many(self) -> bool:
        """Whether it may have more than one topic."""
        return self.subprotocol == TOPICS

    def has_room_for(self, topic: str) -> bool:
        """Return whether another subscriber can subscribe to a topic."""
        is_open = self.protocol.state is State.OPEN and not self.is_ending
        is_free = topic not in self._receptions and len(self._receptions) < _MOST
        return is_open and self.is_for_many and is_free

    def subscribe(
        self,
        hub: str,
        topic: str,
        since: Instant | None,
        select: PushSelection,
        listener: TransportListener,
    ) -> TopicReception:
        """Request a topic; what a hub sends before is ignored."""
        reception = self._receptions[topic] = TopicReception(hub, topic, listener)
        if not self.is_for_many:
            self._current = reception
        frame: dict[str, object] = {
            "type": "subscribe",
            "topic": topic,
            "since": format_datetime(since) if since is not None else None,
        }
        if select:
            frame["select"] = select
        self._send(frame)
        if self.protocol.state is State.CLOSED:
            reception.end(None)
        return reception

    async def unsubscribe(self, reception: TopicReception) -> None:
        """End a topic; close the connection if it was the last one."""
        reception.end(None)
        del self._receptions[reception.topic]
        if self._receptions:
            self._send({"type": "unsubscribe", "topic": reception.topic})
        else:
            self.is_ending = True
            await self.close()

    def _send(self, frame: dict[str, object]) -> None:
        if self.protocol.state is State.OPEN:
            self.protocol.send_text(msgspec.json.encode(frame))
            self.send_data()

    # Calls of `websockets`

    def process_event(self, event: Frame | Response) -> None:  # type: ignore[override]
        if not isinstance(event, Frame) or event.opcode not in DATA_OPCODES:
            super().process_event(event)
            return
        self._frames.append(event.data)
        if event.fin:
            message = b"".join(self._frames)
            self._frames.clear()
            if self._receptions:
                self._process_message(message)

    def _process_message(self, message: bytes) -> None:
        if not message.startswith(b"{"):
            if self._current is not None:
                self._current.process(message)
            return
        try:
            control = msgspec.json.decode(message, type=_Control)
        except (ValueError, RecursionError) as error:
            self._end_all(error)
            return
        named = self._current
        if self.is_for_many:
            named = self._receptions.get(control.topic or "")
        if control.type == "documents" and self.is_for_many:
            self._current = named
        elif named is not None:
            named.process(control)
        elif control.type == "error" and control.topic is None:
            self.is_ending = True
            for reception in self._receptions.values():
                reception.process(control)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._end_all(None)

    def _end_all(self, error: Exception | None) -> None:
        self.is_ending = True
        for reception in self._receptions.values():
            reception.end(error)
