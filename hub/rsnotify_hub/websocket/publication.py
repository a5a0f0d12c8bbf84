"""The role of a WebSocket on which a Source publishes a topic."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from rsnotify.errors import DocumentError, StorageError
from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify_hub.fragments import Fragment
from rsnotify_hub.intake import FragmentIntake
from rsnotify_hub.log.topic_log import TopicLogs
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.websocket.websocket_connection import (
    AcceptedFrame,
    PublishingFrame,
    WebSocketConnection,
    WebSocketRole,
    instant,
)

logger = logging.getLogger("rsnotify.hub.websocket")

#: Number of fragments from one connection that may wait for the disk before the hub stops reading.
_MAX_IN_FLIGHT = 256
#: Number of bytes that the hub reads ahead on one connection.
_MAX_AHEAD_BYTES = 512 * 1024
#: Number of fragments read from one connection before the event loop continues.
_MAX_READ_AT_ONCE = 16


@dataclass(eq=False, repr=False)
class WebSocketPublication(WebSocketRole):
    """Appends the fragments of a Source to the log of its topic, and acknowledges them.

    Theory of operation. Small fragments are read and published without a task. Fragments that
    arrive while another is being read in a thread, or while many are waiting for the disk, go into
    a queue. While the queue is large, the hub does not read from the connection. An acknowledgement
    covers all earlier fragments, so the hub sends a single one for all fragments that became
    durable together.

    Args:
        check: Raises `Refusal` if the Source may no longer publish.
        refuse: Sends a refusal, and ends the publication. By then, everything that arrived earlier
            is durable and acknowledged.

    Attributes:
        ended: Done when, after `finish`, everything that arrived is durable or refused.
        passed: The number of published fragments.
    """

    connection: WebSocketConnection
    topic: str
    topics: TopicLogs
    intake: FragmentIntake
    check: Callable[[], None]
    refuse: Callable[[Refusal], None]

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # None is a message that is not text. It is refused after the earlier messages.
        self._messages: deque[bytes | None] = deque()
        self._size = 0
        self._has_finished = False
        self._refusal: Refusal | None = None
        self._reading: asyncio.Task[Fragment] | None = None
        self._in_flight = 0
        self.passed = 0
        self._last_append: asyncio.Future[None] | None = None
        self._failure: Refusal | None = None
        self._durable: Instant | None = None
        self._is_scheduled = False
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def start(self) -> None:
        """Send the end of the log to the Source."""
        state = self.topics.state(self.topic)
        through = instant(state.through if state else None)
        self.connection.send_message(PublishingFrame(topic=self.topic, through=through))

    def finish(self) -> None:
        """Accept no more messages, but append those that have arrived."""
        self._has_finished = True
        self._schedule()

    def received(self, payload: bytes, *, is_text: bool) -> None:
        if self._has_finished:
            return
        if not is_text:
            self._messages.append(None)
            self._has_finished = True
        else:
            self._messages.append(payload)
            self._size += len(payload)
        if self._size > _MAX_AHEAD_BYTES:
            self.connection.pause_reading()
        if not self._is_scheduled:
            self._continue()

    def publishes(self) -> bool:
        return True

    def topic_roles(self) -> Collection[WebSocketPublication]:
        return (self,)

    def remaining(self, end: int) -> int:
        return 0

    def resumed(self) -> None:
        self._schedule()

    def lost(self) -> None:
        self.finish()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._is_scheduled = False
        self._acknowledge()
        for _ in range(_MAX_READ_AT_ONCE):
            if not self._can_read():
                break
            self._refusal = self._attempt(self._read_next)
        else:
            self._schedule()
        self._end_if_done()

    def _attempt(self, work: Callable[[], None]) -> Refusal | None:
        """Call `work`, and return the refusal if it fails."""
        try:
            work()
        except Refusal as refusal:
            return refusal
        except DocumentError as error:
            return Refusal(Code.INVALID_FRAGMENT, str(error))
        except StorageError:
            return Refusal(Code.UNAVAILABLE, "the hub cannot write its log; try again later")
        except Exception:
            # An internal error must not affect other connections.
            logger.exception("internal error: a publication failed")
            return Refusal(Code.UNAVAILABLE, "internal error of the hub")
        return None

    def _can_read(self) -> bool:
        return bool(
            self._messages
            and self._reading is None
            and self._refusal is None
            and self._in_flight < _MAX_IN_FLIGHT
        )

    def _read_next(self) -> None:
        payload = self._messages.popleft()
        if payload is None:
            raise Refusal(Code.BAD_REQUEST, "send text frames, not binary frames")
        before, self._size = self._size, self._size - len(payload)
        if before > _MAX_AHEAD_BYTES >= self._size:
            self.connection.resume_reading()
        self.check()
        fragment = self.intake.read_small_fragment(payload)
        if fragment is not None:
            self._publish(fragment)
        else:
            self._reading = asyncio.create_task(self.intake.read_large_fragment(payload))
            self._reading.add_done_callback(self._on_large_read)

    def _on_large_read(self, reading: asyncio.Task[Fragment]) -> None:

        def publish() -> None:
            fragment = reading.result()
            if self._refusal is not None:
                raise self._refusal
            self.check()
            self._publish(fragment)

        self._reading = None
        self._refusal = self._attempt(publish)
        self._continue()

    def _publish(self, fragment: Fragment) -> None:
        last = self._last_append
        if last is not None and last.done() and last.exception() is not None:
            return  # `_on_append_done`, which is about to be called, ends the publication
        self._in_flight += 1
        self.passed += 1
        self._last_append = append = self.topics.publish(self.topic, fragment)
        append.add_done_callback(partial(self._on_append_done, fragment.until))

    def _on_append_done(self, until: Instant, append: asyncio.Future[None]) -> None:
        self._in_flight -= 1
        refusal = self._attempt(append.result)
        # No fragment after a lost one may be acknowledged.
        if refusal is not None:
            self._failure = self._failure or refusal
        elif self._failure is None:
            self._durable = until
        if self._in_flight or self._is_scheduled:
            self._schedule()
        else:
            self._continue()  # no other append is pending, so acknowledge at once

    def _acknowledge(self) -> None:
        if self._durable is None or self.connection.is_paused:
            return
        frame = AcceptedFrame(topic=self.topic, until=format_datetime(self._durable))
        self._durable = None
        self.connection.send_message(frame)

    def _expects_more(self) -> bool:
        return self._refusal is None and (bool(self._messages) or not self._has_finished)

    def _end_if_done(self) -> None:
        """End the publication after a failure, or when everything that arrived is durable."""
        if self.ended.done():
            return
        if self._failure is not None:
            self._refusal = self._failure
        elif self._in_flight or self._reading is not None or self._expects_more():
            return
        self._has_finished = True
        self.ended.set_result(None)
        if self._refusal is not None:
            self.refuse(self._refusal)
