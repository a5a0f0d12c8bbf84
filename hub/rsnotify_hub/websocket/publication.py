"""A publication over WebSocket: a Source sends fragments without waiting for acknowledgements."""

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

log = logging.getLogger("rsnotify.hub.websocket")

#: How many fragments of one connection may wait for the disk before the hub reads no more.
_IN_FLIGHT = 256

#: How much of one connection is read ahead, in bytes.
_AHEAD_BYTES = 512 * 1024

#: How many fragments of one connection are read before the event loop continues.
_AT_ONCE = 16


@dataclass(eq=False, repr=False)
class WebSocketPublication(WebSocketRole):
    """Appends the fragments of a Source to the log of its topic, and acknowledges them.

    Theory of operation. Fragments are read and published in callbacks, without a task. Those that
    arrive while another is read in a thread, or while many wait for the disk, are kept in a queue;
    reading from the connection pauses while there is much in it. An acknowledgement covers all
    fragments before it, so one is sent for all that became durable together.

    Args:
        check: Raises `Refusal` if the Source may no longer publish.
        refuse: Sends a refusal, and ends the publication; everything that arrived before was
            appended and acknowledged then.

    Attributes:
        ended: Done once everything that arrived is durable or refused, after `finish`.
        passed: The number of fragments that were published.
    """

    connection: WebSocketConnection
    topic: str
    topics: TopicLogs
    intake: FragmentIntake
    check: Callable[[], None]
    refuse: Callable[[Refusal], None]

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # None is a message that is not text; it is refused after those before it.
        self._messages: deque[bytes | None] = deque()
        self._size = 0
        self._has_finished = False
        self._refusal: Refusal | None = None
        self._reading: asyncio.Task[Fragment] | None = None
        self._in_flight = 0
        self.passed = 0
        self._last_written: asyncio.Future[None] | None = None
        self._failure: Refusal | None = None
        self._durable: Instant | None = None
        self._is_scheduled = False
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def start(self) -> None:
        """Report the end of the log to the Source."""
        state = self.topics.state(self.topic)
        through = instant(state.through if state else None)
        self.connection.send_message(PublishingFrame(topic=self.topic, through=through))

    def finish(self) -> None:
        """Accept no more messages; those that have arrived are still appended."""
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
        if self._size > _AHEAD_BYTES:
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
        for _ in range(_AT_ONCE):
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
            # A fault of the hub must not affect other connections.
            log.exception("a publication failed")
            return Refusal(Code.UNAVAILABLE, "the hub failed")
        return None

    def _can_read(self) -> bool:
        return bool(
            self._messages
            and self._reading is None
            and self._refusal is None
            and self._in_flight < _IN_FLIGHT
        )

    def _read_next(self) -> None:
        payload = self._messages.popleft()
        if payload is None:
            raise Refusal(Code.BAD_REQUEST, "frames are text frames")
        before, self._size = self._size, self._size - len(payload)
        if before > _AHEAD_BYTES >= self._size:
            self.connection.resume_reading()
        self.check()
        if self.intake.is_small(payload):
            self._publish(self.intake.read_now(payload))
        else:
            self._reading = asyncio.create_task(self.intake.read(payload))
            self._reading.add_done_callback(self._read_large)

    def _read_large(self, reading: asyncio.Task[Fragment]) -> None:
        """Publish a fragment that was read in a thread."""

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
        last = self._last_written
        if last is not None and last.done() and last.exception() is not None:
            return  # `_written`, which is about to be called, ends the publication
        self._in_flight += 1
        self.passed += 1
        self._last_written = written = self.topics.publish(self.topic, fragment)
        written.add_done_callback(partial(self._written, fragment.until))

    def _written(self, until: Instant, written: asyncio.Future[None]) -> None:
        self._in_flight -= 1
        refusal = self._attempt(written.result)
        # Nothing after a lost fragment may be acknowledged.
        if refusal is not None:
            self._failure = self._failure or refusal
        elif self._failure is None:
            self._durable = until
        if self._in_flight or self._is_scheduled:
            self._schedule()
        else:
            self._continue()  # no other acknowledgement can be part of this one

    def _acknowledge(self) -> None:
        if self._durable is None or self.connection.is_paused:
            return
        frame = AcceptedFrame(topic=self.topic, until=format_datetime(self._durable))
        self._durable = None
        self.connection.send_message(frame)

    def _expects_more(self) -> bool:
        return self._refusal is None and (bool(self._messages) or not self._has_finished)

    def _end_if_done(self) -> None:
        """End the publication after a failure, or once everything before its end is durable."""
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
