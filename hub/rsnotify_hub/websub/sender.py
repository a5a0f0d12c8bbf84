"""Delivers log entries to WebSub subscriptions.

Theory of operation. A subscription that is up to date costs only its entry in the registry. When
something is appended to its topic, the subscription gets a slot (`RequestScheduler`). In that slot
the sender reads the next entries of the log, POSTs them, and moves the cursor. The subscription
then gets another slot, until it reaches the end of the log. Contiguous entries that have
accumulated are merged, so a slow callback gets a few large fragments instead of many small ones
(`Notifications`). The sender retries a failed attempt with exponential backoff, until it gives up
(`RetryPolicy`). The log is the queue, so a waiting delivery uses no memory except its timer.

Most deliveries send the newest fragment to a subscription that is up to date and whose connection
is open. The sender does this without a task, in the same iteration of the event loop in which the
fragment was appended (`_send_without_task`). A task handles every other case: reading, merging,
connecting, and failures (`_run_attempt`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any

from msgspec import Struct

from rsnotify.errors import StorageError
from rsnotify.format.datetimes import Instant
from rsnotify.runtime.http_client import HttpReply
from rsnotify.sync.retry import Retry
from rsnotify_hub.config.configuration import WebSubConfig
from rsnotify_hub.fragments import (
    MERGED_CONTENT_TYPE,
    FragmentKind,
    count_chained,
    merge_fragments,
)
from rsnotify_hub.statistics import DeliveryOutcome, DeliveryTransport, Statistics
from rsnotify_hub.store.interface import LogEntry, LogState, NotOwner
from rsnotify_hub.topic_log import TopicLogs
from rsnotify_hub.websub.callback_requests import Answer, CallbackRequests
from rsnotify_hub.websub.callback_subscriber import CallbackSubscriber, DeliveryAttempt
from rsnotify_hub.websub.registry import SubscriptionUpdates
from rsnotify_hub.websub.request_scheduler import RequestScheduler, RequestSlot
from rsnotify_hub.websub_subscription import Subscription, is_expired

logger = logging.getLogger("rsnotify.hub.websub")

#: Number of recent failures kept in memory.
RECENT_FAILURES = 200


class RetryPolicy:
    """Records failed attempts, and decides when the next attempt is due."""

    def __init__(self, retry: Retry, give_up_seconds: float, statistics: Statistics) -> None:
        self.recent_failures: deque[tuple[CallbackSubscriber, DeliveryAttempt]] = deque(
            maxlen=RECENT_FAILURES
        )
        self._retry = retry
        self._give_up_seconds = give_up_seconds
        self._statistics = statistics
        self._random = Random()

    def record(
        self, subscriber: CallbackSubscriber, attempt: DeliveryAttempt, retry_after: float | None
    ) -> float | None:
        """Record a failed attempt.

        Returns:
            The seconds until the next attempt; None if the hub has given up.
        """
        now = attempt.at
        subscriber.record_failure(attempt)
        self._statistics.count(DeliveryTransport.WEBSUB, DeliveryOutcome.FAILED)
        self.recent_failures.append((subscriber, attempt))
        facts = _facts(subscriber, attempt)
        # Warn only about the first of consecutive failures; the others are details.
        level = logging.WARNING if subscriber.failures == 1 else logging.INFO
        logger.log(level, "the callback at %(host)s %(reason)s", facts, extra=facts)
        if subscriber.has_failed_for(self._give_up_seconds, now):
            subscriber.give_up(now)
            subscriber.is_extra = False
            self._statistics.count(DeliveryTransport.WEBSUB, DeliveryOutcome.GIVEN_UP)
            logger.warning(
                "gave up delivering %(topic)s to %(host)s until the topic is updated",
                facts,
                extra=facts,
            )
            return None
        is_extra, subscriber.is_extra = subscriber.is_extra, False
        at_least = min(retry_after or 0.0, self._retry.most)
        if is_extra and subscriber.backoff_until is not None and subscriber.backoff_until > now:
            wait = (subscriber.backoff_until - now).total_seconds()
            return max(at_least, min(wait, self._retry.most))
        return self._retry.delay(subscriber.failures, self._random, at_least=at_least)

    def restore(self, subscribers: Iterable[CallbackSubscriber]) -> None:
        """Fill `recent_failures` with the last failures from before a restart."""
        found = [(each, each.last_failure) for each in subscribers if each.last_failure is not None]
        self.recent_failures.extend(sorted(found, key=lambda failure: failure[1].at))

    def remaining_wait(self, subscriber: CallbackSubscriber, now: Instant) -> float:
        """Return the seconds that a subscriber must still wait after a failure.

        Without this wait, every update of a busy topic would cause a request to a dead callback.
        """
        if not subscriber.failures or subscriber.last_failure is None:
            return 0.0
        wait = self._retry.delay(subscriber.failures, self._random)
        # The failure may be dated by the clock of another node, or by a clock that was set back.
        age = max(0.0, (now - subscriber.last_failure.at).total_seconds())
        return wait - age


def _facts(subscriber: CallbackSubscriber, attempt: DeliveryAttempt) -> dict[str, object]:
    return {
        "id": subscriber.id,
        "topic": subscriber.subscription.topic,
        "host": subscriber.host,
        "status": attempt.status,
        "reason": attempt.reason,
        "failures": subscriber.failures,
    }


#: Maximum size of a merged fragment, in bytes.
MERGED_BYTES = 256 * 1024


class Notification(Struct, frozen=True):
    """The next request body for a subscription, and the log position that it reaches.

    The body is None if there is nothing to send.
    """

    body: bytes | None
    content_type: str
    position: int


class Notifications:
    """Builds notifications. Subscriptions at the same position of a log share one notification."""

    def __init__(self, topics: TopicLogs) -> None:
        self._topics = topics
        self._last: tuple[LogState, int, Notification] | None = None

    def next_in_memory(self, subscription: Subscription) -> Notification | None:
        """Return the next notification, or None if building it requires reading or merging."""
        topic, after = subscription.topic, subscription.position
        state = self._topics.state(topic)  # replaced by a new object whenever the log changes
        if (found := self._known(state, after)) is not None:
            return found
        entries = _drop_replaced(self._topics.recent(topic, after=after) or [])
        if state is None or not entries or (len(entries) > 1 and _count_chained(entries) > 1):
            return None
        return self._remember(state, after, _unmerged(entries[0]))

    async def next(self, subscription: Subscription) -> Notification:
        """Return the next notification.

        Contiguous fragments are merged. If several entries have whole content, only the newest is
        used.
        """
        topic, after = subscription.topic, subscription.position
        state = self._topics.state(topic)
        if (found := self._known(state, after)) is not None:
            return found
        if state is None:
            return Notification(None, "", 0)
        entries = _drop_replaced(await self._topics.read(topic, after=after))
        if not entries:  # the undelivered entries were trimmed
            return Notification(None, "", state.position)
        return self._remember(state, after, await _merged(entries[: _count_chained(entries)]))

    async def rebuild(self, topic: str, attempt: DeliveryAttempt) -> bytes | None:
        """Rebuild the body that an attempt sent. Return None if the log no longer has all of it."""
        read = await self._topics.read(topic, after=attempt.after)
        entries = _drop_replaced([each for each in read if each.position <= attempt.through])
        if not entries or entries[-1].position != attempt.through:
            return None
        body = (await _merged(entries)).body
        return body if body is not None and len(body) == attempt.size else None

    def _known(self, state: LogState | None, after: int) -> Notification | None:
        if self._last is not None and self._last[0] is state and self._last[1] == after:
            return self._last[2]
        return None

    def _remember(self, state: LogState, after: int, found: Notification) -> Notification:
        self._last = state, after, found
        return found


def _count_chained(entries: Sequence[LogEntry]) -> int:
    return count_chained([entry.fragment for entry in entries], max_bytes=MERGED_BYTES)


def _unmerged(entry: LogEntry) -> Notification:
    return Notification(entry.fragment.body, entry.fragment.content_type, entry.position)


async def _merged(entries: Sequence[LogEntry]) -> Notification:
    if len(entries) == 1:
        return _unmerged(entries[0])
    # Merge in a thread, so that other deliveries do not have to wait.
    body = await asyncio.to_thread(merge_fragments, [entry.fragment for entry in entries])
    return Notification(body, MERGED_CONTENT_TYPE, entries[-1].position)


def _drop_replaced(entries: Sequence[LogEntry]) -> Sequence[LogEntry]:
    """Return the entries from the newest whole content on."""
    wholes = (
        number for number, entry in enumerate(entries) if entry.fragment.kind is FragmentKind.WHOLE
    )
    return entries[max(wholes, default=0) :]


#: Seconds that running deliveries have to finish when the hub stops.
CLOSE_SECONDS = 3.0

_DELIVERED = (DeliveryTransport.WEBSUB, DeliveryOutcome.DELIVERED)

#: Returns the seconds until the next attempt; None if there is none.
_Attempt = Coroutine[Any, Any, float | None]


@dataclass(eq=False, repr=False)
class DeliverySender:
    requests: CallbackRequests
    topics: TopicLogs
    scheduler: RequestScheduler
    updates: SubscriptionUpdates
    configuration: WebSubConfig
    clock: Callable[[], Instant]
    statistics: Statistics

    def __post_init__(self) -> None:
        self._retry = Retry(self.configuration.retry_seconds, self.configuration.max_retry_seconds)
        self.retry_policy = RetryPolicy(
            self._retry, self.configuration.give_up_seconds, self.statistics
        )
        self.notifications = Notifications(self.topics)
        self._closed = False

    def deliver_appended(self, subscribers: Iterable[CallbackSubscriber]) -> None:
        """Deliver newly appended entries, and retry dead letters."""
        now = self.clock()
        for subscriber in subscribers:
            if subscriber.given_up_since is not None:
                subscriber.resume_trying(now)
                self.updates.save_failure_state(subscriber)
            self.wake(subscriber, now=now)

    def retry_now(self, subscriber: CallbackSubscriber) -> None:
        """Make an attempt now. If it fails, the backoff schedule does not change."""
        self._cancel_wait(subscriber)
        subscriber.resume_trying(self.clock())
        subscriber.is_extra = subscriber.slot is None  # otherwise a regular attempt is pending
        self.wake(subscriber, skip_backoff=True)
        self.updates.save_failure_state(subscriber)

    def wake(
        self,
        subscriber: CallbackSubscriber,
        *,
        skip_backoff: bool = False,
        now: Instant | None = None,
    ) -> None:
        """Schedule a delivery if one is due and no attempt is running or waiting."""
        if subscriber.slot is not None or subscriber.timer is not None:
            return
        if self._closed or subscriber.is_stopped:
            return
        if not self.is_behind(subscriber):
            subscriber.behind_since = None
            return
        if subscriber.behind_since is None:
            subscriber.behind_since = now or self.clock()
        if subscriber.subscription.suspended or subscriber.given_up_since is not None:
            self.updates.save_failure_state(subscriber)
            return
        wait = 0.0
        if subscriber.failures and not skip_backoff:
            wait = self.retry_policy.remaining_wait(subscriber, now or self.clock())
        if wait > 0:
            self._retry_in(subscriber, wait)
            return
        is_retry = subscriber.failures > 0
        self.statistics.retries += is_retry
        subscriber.retry_at = None
        subscriber.slot = self.scheduler.submit(
            subscriber.authority, partial(self._start, subscriber), slow=is_retry
        )

    def is_behind(self, subscriber: CallbackSubscriber) -> bool:
        subscription = subscriber.subscription
        return subscription.position < self.topics.position(subscription.topic)

    def _retry_in(self, subscriber: CallbackSubscriber, seconds: float) -> None:
        subscriber.backoff_until = subscriber.retry_at = self.clock() + timedelta(seconds=seconds)
        loop = asyncio.get_running_loop()
        subscriber.timer = loop.call_later(seconds, self._on_retry_due, subscriber)

    def _on_retry_due(self, subscriber: CallbackSubscriber) -> None:
        subscriber.timer = None
        self.wake(subscriber, skip_backoff=True)

    def _cancel_wait(self, subscriber: CallbackSubscriber) -> None:
        if subscriber.timer is not None:
            subscriber.timer.cancel()
            subscriber.timer = subscriber.retry_at = None

    def interrupt(self, subscriber: CallbackSubscriber) -> None:
        """Cancel the current or next attempt, unless this is called by that attempt."""
        slot, subscriber.slot = subscriber.slot, None
        if slot is not None and (slot.task is None or slot.task is not asyncio.current_task()):
            self.scheduler.cancel(slot)
        self._cancel_wait(subscriber)

    def stop(self, subscriber: CallbackSubscriber) -> None:
        """Make no further attempts, and cancel the current one."""
        subscriber.is_stopped = True
        self.interrupt(subscriber)

    async def finish(self, subscribers: Iterable[CallbackSubscriber]) -> None:
        """Make no further attempts, and give running ones a few seconds to finish."""
        running: list[RequestSlot] = []
        for subscriber in subscribers:
            if subscriber.slot is None or not subscriber.slot.is_started:
                self.stop(subscriber)
            else:
                subscriber.is_stopped = True
                self._cancel_wait(subscriber)
                running.append(subscriber.slot)
        await self.scheduler.finish(running, CLOSE_SECONDS)

    async def end(self, subscriber: CallbackSubscriber, *, lease: Instant | None = None) -> bool:
        """End a subscription unless its lease was renewed, and cancel its delivery."""
        ended = await self.updates.end(subscriber, lease=lease)
        if ended:
            self.interrupt(subscriber)
        return ended

    # One attempt.

    def _start(self, subscriber: CallbackSubscriber, slot: RequestSlot) -> None:
        try:
            # A retry usually has several fragments to merge.
            if not subscriber.failures and self._send_without_task(subscriber, slot):
                return
        except ValueError:  # the callback's URL is unusable
            pass
        except Exception:
            logger.exception("cannot deliver to the callback at %s without a task", slot.host)
        self._run_delivery(subscriber, slot)

    def _run_delivery(self, subscriber: CallbackSubscriber, slot: RequestSlot) -> None:
        attempt = partial(self._deliver_next, subscriber, slot)
        self.scheduler.run(slot, self._run_attempt(subscriber, slot, attempt))

    def _send_without_task(self, subscriber: CallbackSubscriber, slot: RequestSlot) -> bool:
        """Send the next notification if it is in memory and a connection is open.

        Return False if that is not possible. Nearly all deliveries use this path; `_deliver_next`
        handles every case.
        """
        subscription = subscriber.subscription
        notification = self.notifications.next_in_memory(subscription)
        if notification is None or notification.body is None:
            return False
        now = self.clock()
        if is_expired(subscription, now) or not self.updates.may_deliver(subscriber):
            return False
        target = subscriber.target
        if target is None or target.secret != subscription.secret:
            target = subscriber.target = self.requests.target(subscription)
        request = self.requests.send_now(
            target, subscription.topic, notification.body, notification.content_type, slot.complete
        )
        if request is None:
            return False
        slot.watch(request, partial(self._on_outcome, subscriber, slot, notification, now))
        return True

    def _on_outcome(
        self,
        subscriber: CallbackSubscriber,
        slot: RequestSlot,
        notification: Notification,
        began: Instant,
        outcome: HttpReply | Exception,
    ) -> None:
        answer = self.requests.parse_outcome(outcome)
        if answer is None:
            self._run_delivery(subscriber, slot)
        elif not answer.succeeded:
            record = partial(self._record_failure, subscriber, slot, notification, answer)
            self.scheduler.run(slot, self._run_attempt(subscriber, slot, record))
        else:
            wait = 0.0
            try:
                self._record_success(subscriber, slot, notification, answer, began)
            except Exception:
                wait = self._log_internal_error(subscriber)
            subscriber.slot = None
            self.scheduler.release(slot)
            if wait:
                self._continue(subscriber, wait)
            else:
                self.wake(subscriber)

    async def _run_attempt(
        self,
        subscriber: CallbackSubscriber,
        slot: RequestSlot,
        attempt: Callable[[], _Attempt],
    ) -> None:
        """Run an attempt, or the rest of one, and then schedule the next.

        `attempt` is a function, because a coroutine would never be awaited if the task were
        cancelled before it runs.
        """
        wait: float | None = None
        try:
            wait = await attempt()
        except NotOwner:
            # Another node will acquire the subscription and continue from its cursor. This node
            # stops the delivery when it learns that. But if this node renews its lease in time,
            # nothing else triggers the attempt.
            wait = self._retry.first
        except Exception:
            wait = self._log_internal_error(subscriber)
        finally:
            if subscriber.slot is slot:
                subscriber.slot = None
        if subscriber.slot is None:
            self._continue(subscriber, wait)

    def _log_internal_error(self, subscriber: CallbackSubscriber) -> float:
        """Log an internal error, and return the seconds until the next attempt.

        An internal error must not end a subscription.
        """
        topic = subscriber.subscription.topic
        logger.exception("internal error: a delivery of %s failed", topic)
        return self._retry.most

    def _continue(self, subscriber: CallbackSubscriber, wait: float | None) -> None:
        """Make the next attempt after `wait` seconds, or none if `wait` is None."""
        if wait is None or self._closed or subscriber.is_stopped:
            return
        if wait:
            self._retry_in(subscriber, wait)
        else:
            self.wake(subscriber)

    async def _deliver_next(
        self, subscriber: CallbackSubscriber, slot: RequestSlot
    ) -> float | None:
        """Deliver one notification, and return the seconds until the next attempt (`_continue`).

        Raises:
            NotOwner: Another node may own the subscription.
        """
        self._check_owner(subscriber)
        began = self.clock()
        if is_expired(subscriber.subscription, began):
            ended = await self._end(subscriber, "its lease has expired")
            return None if ended else self._retry.first
        try:
            notification = await self.notifications.next(subscriber.subscription)
        except StorageError as error:
            topic = subscriber.subscription.topic
            logger.warning("cannot read the next delivery of %s; retrying: %s", topic, error)
            return self._retry.first
        self._check_owner(subscriber)
        if notification.body is None:
            self.updates.move_cursor(subscriber, notification.position)
        else:
            answer = await slot.limit(
                self.requests.send(
                    subscriber.subscription,
                    notification.body,
                    notification.content_type,
                    is_allowed=partial(self.updates.may_deliver, subscriber),
                )
            )
            if subscriber.slot is not slot:
                return None
            if not answer.succeeded:
                return await self._record_failure(subscriber, slot, notification, answer)
            self._record_success(subscriber, slot, notification, answer, began)
        return 0.0

    def _check_owner(self, subscriber: CallbackSubscriber) -> None:
        if not self.updates.may_deliver(subscriber):
            raise NotOwner("another node delivers to this callback")

    def _record_success(
        self,
        subscriber: CallbackSubscriber,
        slot: RequestSlot,
        sent: Notification,
        answer: Answer,
        began: Instant,
    ) -> None:
        self.statistics.deliveries[_DELIVERED] += 1
        size = len(sent.body or b"")
        self.statistics.delivered_bytes[DeliveryTransport.WEBSUB] += size
        if subscriber.should_keep_success(began):
            subscriber.keep_success(
                subscriber.new_attempt(answer, began, slot.seconds, sent.position, size)
            )
        subscriber.record_success()
        if subscriber.stored_failure_state is not None:
            self.updates.save_failure_state(subscriber)
        self.updates.move_cursor(subscriber, sent.position)

    async def _record_failure(
        self, subscriber: CallbackSubscriber, slot: RequestSlot, sent: Notification, answer: Answer
    ) -> float | None:
        size = len(sent.body or b"")
        attempt = subscriber.new_attempt(answer, self.clock(), slot.seconds, sent.position, size)
        if answer.is_gone and await self._end(subscriber, "its callback is gone (410)"):
            self.statistics.count(DeliveryTransport.WEBSUB, DeliveryOutcome.GONE)
            return None
        wait = self.retry_policy.record(subscriber, attempt, answer.retry_after)
        self.updates.save_failure_state(subscriber)
        return wait

    async def _end(self, subscriber: CallbackSubscriber, reason: str) -> bool:
        """End a subscription. Return False if it continues."""
        subscription = subscriber.subscription
        logger.info("ending a subscription to %s: %s", subscription.topic, reason)
        try:
            return await self.end(subscriber, lease=subscription.expires)
        except StorageError as error:
            # The next attempt will end it: the lease is still expired, or the callback returns 410
            # again.
            logger.warning("cannot end a subscription to %s: %s", subscription.topic, error)
            return False

    async def close(self) -> None:
        """Stop delivering. Running deliveries have a few seconds to finish."""
        self._closed = True
        await self.scheduler.close(CLOSE_SECONDS)
