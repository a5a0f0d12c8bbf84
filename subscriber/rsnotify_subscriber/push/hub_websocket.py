"""A WebSocket to a hub, and what it receives of each topic (docs/protocol.md)."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from websockets.protocol import State

from rsnotify.errors import Unavailable
from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.runtime.shared_websockets import SharedWebSocket
from rsnotify.selection.push_selection import PushSelection
from rsnotify_subscriber.push.connecting import HubDialer
from rsnotify_subscriber.push.transport import TransportListener

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

    def __init__(self, hub: str, listener: TransportListener) -> None:
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
                # What comes before is of an ended subscription, maybe to another selection.
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
                self.ended.exception()  # nobody need wait for it
        self._confirm()

    def _confirm(self) -> None:
        if not self.subscribed.done():
            self.subscribed.set_result(None)


class HubWebSocket(SharedWebSocket[TopicReception]):
    """A connection that receives topics.

    Attributes:
        dialer: Made its TCP connection; set by who opens it.
    """

    dialer: HubDialer
    #: The reception of the documents that follow.
    _current: TopicReception | None = None

    def subscribe(
        self,
        hub: str,
        topic: str,
        since: Instant | None,
        select: PushSelection,
        listener: TransportListener,
    ) -> TopicReception:
        """Request a topic; what a hub sends before is ignored."""
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
