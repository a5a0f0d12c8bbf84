"""A WebSocket for many topics: its subscriptions and publications, each of which ends by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from rsnotify_hub.live.subscribers import CUT_OFF_SECONDS, LiveChannel
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.urls import check_url
from rsnotify_hub.websocket.connection import FrameHandler, WebSocketConnection
from rsnotify_hub.websocket.frames import (
    DocumentsFrame,
    EndFrame,
    PublishFrame,
    SubscribeFrame,
    decode_of_topics,
)
from rsnotify_hub.websocket.publishing import WebSocketPublication
from rsnotify_hub.websocket.subscribing import NamedFrames, TopicSubscriber

_Role: TypeAlias = TopicSubscriber | WebSocketPublication
_Refuse: TypeAlias = Callable[[Refusal], None]

#: How many bytes of frames are answered while the client does not read the answers.
_UNREAD = 4 * 1024 * 1024
#: The most that an answer adds to what it repeats of its frame, in bytes.
_OVERHEAD = 256


class ManyTopics(FrameHandler):
    """The role of a WebSocket for many topics.

    Args:
        subscribe: Begins the replay to a subscriber.
        publish: Begins a publication on a topic, which calls a function if it is refused.
        add_topic: Counts a topic in the limits, and returns what ends that.
        refuse: Sends a refusal of a topic, or, without a topic, of all, and then closes.
    """

    def __init__(
        self,
        connection: WebSocketConnection,
        channel: LiveChannel,
        subscribe: Callable[[TopicSubscriber, SubscribeFrame], None],
        publish: Callable[[str, _Refuse], WebSocketPublication],
        add_topic: Callable[[], Callable[[], None]],
        refuse: Callable[[Refusal, str | None], None],
    ) -> None:
        self._connection = connection
        self._channel = channel
        self._subscribe = subscribe
        self._publish = publish
        self._add_topic = add_topic
        self._refuse = refuse
        self._roles: dict[str, tuple[_Role, Callable[[], None]]] = {}
        #: The topic of the documents that follow.
        self._current: str | None = None
        self._unread = 0
        connection.turns = asyncio.Lock()

    # Calls of the connection.

    def received(self, payload: bytes, *, is_text: bool) -> None:
        try:
            if is_text and payload.startswith(b"{"):
                self._process(decode_of_topics(payload))
                self._limit_answers(payload)
            elif self._current is None:
                raise Refusal(Code.BAD_REQUEST, "a document came before a documents frame")
            else:
                self._pass_on(self._current, payload, is_text=is_text)
        except Refusal as refusal:
            self._refuse(refusal, None)

    def resumed(self) -> None:
        self._unread = 0
        for role, _ in self._roles.values():
            if isinstance(role, WebSocketPublication):
                role.resumed()

    def lost(self) -> None:
        for topic in list(self._roles):
            self._end(topic)

    # Topics.

    def _limit_answers(self, payload: bytes) -> None:
        if self._connection.is_paused:
            self._unread += len(payload) + _OVERHEAD
            if self._unread > _UNREAD:
                self._connection.cut_off(seconds=CUT_OFF_SECONDS)

    def _process(self, frame: SubscribeFrame | PublishFrame | EndFrame | DocumentsFrame) -> None:
        if isinstance(frame, DocumentsFrame):
            self._current = frame.topic
            return
        self._end(frame.topic)
        if isinstance(frame, EndFrame):
            return
        try:
            self._begin(frame)
        except Refusal as refusal:
            self._refuse_topic(frame.topic, refusal)

    def _begin(self, frame: SubscribeFrame | PublishFrame) -> None:
        topic = check_url(frame.topic, "topic")
        refuse = partial(self._refuse_topic, topic)
        release = self._add_topic()
        try:
            role: _Role
            if isinstance(frame, PublishFrame):
                role = self._publish(topic, refuse)
            else:
                encoding = NamedFrames(topic)
                role = TopicSubscriber(
                    self._connection, topic, self._channel, encoding, refuse=refuse
                )
                self._subscribe(role, frame)
        except BaseException:
            release()
            raise
        self._roles[topic] = role, release

    def _pass_on(self, topic: str, payload: bytes, *, is_text: bool) -> None:
        role, _ = self._roles.get(topic, (None, None))
        # A document of a topic that was refused may have been on its way.
        if isinstance(role, WebSocketPublication):
            role.received(payload, is_text=is_text)

    def _refuse_topic(self, topic: str, refusal: Refusal) -> None:
        self._end(topic)
        self._refuse(refusal, topic)

    def _end(self, topic: str) -> None:
        if topic in self._roles:
            role, release = self._roles.pop(topic)
            role.lost()
            release()
            if isinstance(role, WebSocketPublication):
                # It reads no more once it was refused, however much has arrived.
                self._connection.resume_reading()
