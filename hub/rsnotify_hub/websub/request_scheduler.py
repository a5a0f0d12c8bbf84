"""Schedules the requests to callbacks so that no callback delays the others.

Theory of operation. There are two queues. A first attempt goes into the quick queue, and a retry
into the slow queue. While requests wait in the quick queue, a request that has run there for a
second moves to the slow queue; if that is full, the request times out. The capacity of the quick
queue is therefore freed at least once a second, regardless of what callbacks do, and the number of
open connections is bounded. Each host gets a limited share of a queue's capacity, and hosts with
waiting requests are served round-robin: a host with a thousand callbacks delays the others no more
than a host with one (`FairQueue`).

If there is capacity, `submit` starts a request immediately. A request has a task only if its
starter calls `RequestScheduler.run`. All requests have the same timeout, and one timer serves all
requests without a task.

Deliveries have one scheduler, and the GETs that verify or deny a subscription have another
(`IntentRequests`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from rsnotify.runtime.http_client import Done, HttpConnection, HttpReply, NoReply
from rsnotify_hub.websub.callback_requests import Answer

logger = logging.getLogger("rsnotify.hub.websub")

#: Seconds that a request may run in the quick queue while others are waiting there.
QUICK_SECONDS = 1.0


class Capacity(Struct, frozen=True):
    """The maximum number of running requests, in total and per host."""

    count: int
    per_host: int


#: The capacity for deliveries.
QUICK_DELIVERIES = Capacity(400, per_host=50)
SLOW_DELIVERIES = Capacity(200, per_host=10)


_TIMED_OUT = Answer(None, "timed out")
_TIMEOUT = NoReply(_TIMED_OUT.reason)


@dataclass(eq=False, repr=False)
class RequestScheduler:
    """Starts requests of one kind, and ends those that take longer than `seconds`."""

    seconds: float
    quick: Capacity = QUICK_DELIVERIES
    slow: Capacity = SLOW_DELIVERIES
    quick_seconds: float = QUICK_SECONDS

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()  # each lookup is a system call
        self._quick: FairQueue[RequestSlot] = FairQueue(self.quick)
        self._slow: FairQueue[RequestSlot] = FairQueue(self.slow)
        self._check: asyncio.TimerHandle | None = None
        self.expiry: asyncio.TimerHandle | None = None
        self._closed = False

    def submit(self, host: str, start: Starter, *, slow: bool = False) -> RequestSlot:
        """Start a request as soon as there is capacity.

        `start` is called with the slot. It calls either `run`, or `RequestSlot.watch` and later
        `release` or `run`. It must not raise.
        """
        queue = self._slow if slow else self._quick
        slot = RequestSlot(host, start, queue, self, self._loop.time())
        if not self._closed and queue.start_if_possible(slot, slot.began):
            start(slot)
        else:
            queue.add(slot)
            self._schedule_check()
        return slot

    def run(self, slot: RequestSlot, work: Coroutine[Any, Any, None]) -> None:
        """Run a started request in a task, and release its slot when the task ends."""
        slot.task = self._loop.create_task(work)
        slot.task.add_done_callback(partial(self._on_task_done, slot))

    def _on_task_done(self, slot: RequestSlot, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error(
                "internal error: a request to the callback at %s failed",
                slot.host,
                exc_info=error,
            )
        self.release(slot)

    def release(self, slot: RequestSlot) -> None:
        """Free the capacity of a finished request, and start requests that are waiting for it."""
        queue = slot.queue
        queue.remove(slot)
        if slot.ended is not None and not slot.ended.done():
            slot.ended.set_result(None)
        if queue.has_waiting:
            self._start_waiting(queue)

    def cancel(self, slot: RequestSlot) -> None:
        slot.cancel()
        if slot.task is None:  # otherwise the slot is released when the task ends
            self.release(slot)

    def waiting(self) -> int:
        return self._quick.waiting() + self._slow.waiting()

    def _start_waiting(self, queue: FairQueue[RequestSlot]) -> None:
        while not self._closed and (slot := queue.pop()) is not None:
            slot.began = self._loop.time()
            queue.start(slot, slot.began)
            slot.start(slot)
        if self._check is None:
            self._schedule_check()

    def _schedule_check(self) -> None:
        if self._check is None and self._quick.has_waiting:
            due = self._loop.time() + self.quick_seconds
            self._check = self._loop.call_at(due, self._clear_quick_queue, due)

    def _clear_quick_queue(self, due: float) -> None:
        self._check = None
        now = self._loop.time()
        # If this call is late, the hub itself was slow, and responses may be waiting unread.
        if now - due <= self.quick_seconds / 2:
            for slot in self._quick.blocking(now - self.quick_seconds):
                self._demote(slot, now)
        self._start_waiting(self._quick)

    def _demote(self, slot: RequestSlot, now: float) -> None:
        """Move a request to the slow queue, or time it out if that queue is full."""
        if self._slow.start_if_possible(slot, now):
            self._quick.remove(slot)
            slot.queue = self._slow
        else:
            slot.expire()

    def schedule_expiry(self, began: float) -> None:
        """Schedule the timeout of watched requests. The oldest of them started at `began`."""
        self.expiry = self._loop.call_at(began + self.seconds, self._expire)

    def _expire(self) -> None:
        self.expiry = None
        now = self._loop.time()
        watched = [each for each in self._running() if each.is_watched]
        for slot in watched:
            # Compute the same sum as `schedule_expiry`, because a difference may round differently.
            if slot.began + self.seconds <= now:
                slot.expire()
        rest = [slot.began for slot in watched if slot.is_watched]
        if rest:
            self.schedule_expiry(min(rest))

    def _running(self) -> list[RequestSlot]:
        return [*self._quick.running(), *self._slow.running()]

    async def close(self, seconds: float) -> None:
        """Start no more requests, and cancel those that are still running after `seconds`."""
        self._closed = True
        self._quick.clear()
        self._slow.clear()
        if self._check is not None:
            self._check.cancel()
        await self.finish(self._running(), seconds)
        if self.expiry is not None:
            self.expiry.cancel()

    async def finish(self, running: Sequence[RequestSlot], seconds: float) -> None:
        """Wait for running requests, and cancel those that are still running after `seconds`."""
        if not running:
            return
        ends = []
        for slot in running:
            slot.ended = slot.ended or self._loop.create_future()
            ends.append(slot.ended)
        await asyncio.wait(ends, timeout=seconds)
        for slot, end in zip(running, ends, strict=True):
            if not end.done():
                self.cancel(slot)
        await asyncio.gather(*ends)


class RequestSlot:
    """A waiting or running request to a host and port.

    Attributes:
        task: The task that runs the request, if there is one.
        ended: Done when the request has ended, if `RequestScheduler.finish` waits for it.
        began: When the last request began, or else when the slot was submitted, by the clock of the
            event loop.
    """

    task: asyncio.Task[None] | None = None
    ended: asyncio.Future[None] | None = None
    _request: HttpConnection | None = None
    _done: Done | None = None
    _timeout: asyncio.Timeout | None = None

    def __init__(
        self,
        host: str,
        start: Starter,
        queue: FairQueue[RequestSlot],
        scheduler: RequestScheduler,
        now: float,
    ) -> None:
        self.host = host
        self.start = start
        self.queue = queue
        self.began = now
        self._scheduler = scheduler

    async def limit(self, request: Coroutine[Any, Any, Answer]) -> Answer:
        """Await a request with the scheduler's timeout. Only the slot's own task may call this."""
        self.began = asyncio.get_running_loop().time()
        timeout = self._timeout = asyncio.timeout(self._scheduler.seconds)
        try:
            async with timeout:
                return await request
        except TimeoutError:
            if not timeout.expired():
                raise
            return _TIMED_OUT
        finally:
            self._timeout = None

    def watch(self, request: HttpConnection, done: Done) -> None:
        """Apply the timeout to a request without a task, which calls `complete` when it ends.

        `done` receives the outcome passed to `complete`, or an error if the request timed out.
        """
        self._request, self._done = request, done
        if self._scheduler.expiry is None:
            self._scheduler.schedule_expiry(self.began)

    def complete(self, outcome: HttpReply | Exception) -> None:
        """Report the outcome of a watched request."""
        done, self._done = self._done, None
        self._request = None
        if done is not None:
            done(outcome)

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()
        elif self._request is not None:
            self._request.cancel()
            self._request = self._done = None

    def expire(self) -> None:
        """Time out the running request, if any."""
        if self._request is not None:
            self._request.cancel()
            self.complete(_TIMEOUT)
        elif self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(0)

    @property
    def seconds(self) -> float:
        """The seconds that the last request has taken so far."""
        return asyncio.get_running_loop().time() - self.began

    @property
    def is_watched(self) -> bool:
        """Whether a request without a task is running."""
        return self._request is not None

    @property
    def is_started(self) -> bool:
        return self.task is not None or self._request is not None


#: Starts the request of a slot.
Starter = Callable[[RequestSlot], None]


class QueueItem(Protocol):
    @property
    def host(self) -> str: ...


T = TypeVar("T", bound=QueueItem)


class FairQueue(Generic[T]):
    def __init__(self, capacity: Capacity) -> None:
        self._count, self._per_host = capacity.count, capacity.per_host
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()
        self._running: dict[T, float] = {}
        self._running_hosts: dict[str, int] = {}

    def add(self, item: T) -> None:
        self._waiting.setdefault(item.host, deque()).append(item)

    def pop(self) -> T | None:
        """Remove and return the next waiting item; None if none may run now."""
        if not self._waiting or len(self._running) >= self._count:
            return None
        host = next((host for host in self._waiting if self._has_share(host)), None)
        if host is None:
            return None
        found = self._waiting[host].popleft()
        self._waiting.move_to_end(host)
        if not self._waiting[host]:
            del self._waiting[host]
        return found

    def _has_share(self, host: str) -> bool:
        return self._running_hosts.get(host, 0) < self._per_host

    def start_if_possible(self, item: T, now: float) -> bool:
        """Count an item as running. Return False if there is no capacity."""
        if len(self._running) >= self._count or not self._has_share(item.host):
            return False
        self.start(item, now)
        return True

    def start(self, item: T, now: float) -> None:
        """Count an item as running since `now`, in seconds of any monotonic clock."""
        self._running[item] = now
        self._running_hosts[item.host] = self._running_hosts.get(item.host, 0) + 1

    def remove(self, item: T) -> None:
        if self._running.pop(item, None) is not None:
            self._running_hosts[item.host] -= 1
            if not self._running_hosts[item.host]:
                del self._running_hosts[item.host]
        elif item in self._waiting.get(item.host, ()):
            self._waiting[item.host].remove(item)
            if not self._waiting[item.host]:
                del self._waiting[item.host]

    def blocking(self, before: float) -> Iterator[T]:
        """Yield the items that started at or before `before` and block waiting items."""
        full = len(self._running) >= self._count
        for item, started in list(self._running.items()):
            if started > before:
                return
            if self._waiting and (full or item.host in self._waiting):
                yield item

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def running(self) -> list[T]:
        return list(self._running)

    def clear(self) -> None:
        self._waiting.clear()
