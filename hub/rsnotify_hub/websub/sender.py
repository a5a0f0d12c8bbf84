"""Deliver pending log entries to WebSub subscriptions, and retry failed deliveries.

Theory of operation. A subscription that is up to date costs only its entry in the registry. When
something is appended to its topic, the subscription gets a slot (`request_slots`). In that slot
the sender reads the next entries of the log, POSTs them, and moves the cursor. The subscription
then gets another slot, until it reaches the end of the log. Contiguous entries that have
accumulated are merged, so a slow callback gets a few large fragments instead of many small ones
(`Notifications`). The sender repeats a failed attempt with exponential backoff, until it gives up
on the delivery (`FailureHandling`). The log is the queue, so a waiting delivery uses no memory
except its timer.

Most deliveries send the newest fragment to a subscription that is up to date and whose connection
is open. The sender does this without a task, in the same iteration of the event loop in which the
fragment was appended (`_send_now`). A task does everything else: reading, merging, dialling, and
handling failures (`_attempt`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from random import Random

import msgspec
from msgspec import Struct

from rsnotify.errors import StorageError
from rsnotify.format.datetimes import Instant
from rsnotify.runtime.http_client import HttpReply
from rsnotify.sync.retry import Retry
from rsnotify_hub.config.configuration import WebSubConfig
from rsnotify_hub.fragments import MERGED_CONTENT_TYPE, count_chained, merge_fragments
from rsnotify_hub.log.topic_log import DeliveryChannel, TopicLogs
from rsnotify_hub.statistics import DeliveryOutcome, DeliveryTransport, Statistics
from rsnotify_hub.store.interface import (
    LogEntry,
    LogState,
    NotOwner,
    StoredSubscription,
    SubscriptionStore,
)
from rsnotify_hub.subscriptions import Subscription, is_expired
from rsnotify_hub.websub.callback_requests import Answer, CallbackRequests
from rsnotify_hub.websub.delivery import Delivery, DeliveryAttempt, Trouble
from rsnotify_hub.websub.forms import denial_url
from rsnotify_hub.websub.registry import SubscriptionRegistry, SubscriptionUpdates
from rsnotify_hub.websub.request_slots import DeliveryScheduler, DeliverySlot, IntentRequests

logger = logging.getLogger("rsnotify.hub.websub")

#: Number of recent failures kept in memory.
RECENT_FAILURES = 200
#: Maximum size of a merged fragment, in bytes.
MERGED_BYTES = 256 * 1024
#: Seconds that running deliveries have to finish when the hub stops.
CLOSE_SECONDS = 3.0

_DELIVERED = (DeliveryTransport.WEBSUB, DeliveryOutcome.DELIVERED)


@dataclass(eq=False, repr=False)
class DeliverySender:
    requests: CallbackRequests
    topics: TopicLogs
    scheduler: DeliveryScheduler
    updates: SubscriptionUpdates
    configuration: WebSubConfig
    clock: Callable[[], Instant]
    statistics: Statistics

    def __post_init__(self) -> None:
        self._retry = Retry(self.configuration.retry_seconds, self.configuration.max_retry_seconds)
        self.failures = FailureHandling(
            self._retry, self.configuration.give_up_seconds, self.statistics
        )
        self.notifications = Notifications(self.topics)
        self._closed = False

    def deliver_appended(self, deliveries: Iterable[Delivery]) -> None:
        """Deliver newly appended entries, and retry dead letters."""
        now = self.clock()
        for delivery in deliveries:
            if delivery.given_up_since is not None:
                delivery.resume_trying(now)
                self.updates.store_trouble(delivery)
            self.wake(delivery, now=now)

    def retry_now(self, delivery: Delivery) -> None:
        """Make an attempt now. If it fails, the backoff schedule does not change."""
        self._cancel_wait(delivery)
        delivery.resume_trying(self.clock())
        delivery.is_extra = delivery.slot is None  # otherwise a regular attempt is pending
        self.wake(delivery, at_once=True)
        self.updates.store_trouble(delivery)

    def wake(
        self, delivery: Delivery, *, at_once: bool = False, now: Instant | None = None
    ) -> None:
        """Schedule a delivery if one is due and no attempt is running or waiting.

        `at_once` skips the backoff.
        """
        if delivery.slot is not None or delivery.timer is not None:
            return
        if self._closed or delivery.is_stopped:
            return
        if not self.is_behind(delivery):
            delivery.behind_since = None
            return
        if delivery.behind_since is None:
            delivery.behind_since = now or self.clock()
        if delivery.subscription.suspended or delivery.given_up_since is not None:
            self.updates.store_trouble(delivery)
            return
        wait = 0.0
        if delivery.failures and not at_once:
            wait = self.failures.remaining_wait(delivery, now or self.clock())
        if wait > 0:
            self._retry_in(delivery, wait)
            return
        is_retry = delivery.failures > 0
        self.statistics.retries += is_retry
        delivery.retry_at = None
        delivery.slot = self.scheduler.submit(
            delivery.authority, partial(self._start, delivery), slow=is_retry
        )

    def is_behind(self, delivery: Delivery) -> bool:
        subscription = delivery.subscription
        return subscription.position < self.topics.position(subscription.topic)

    def _retry_in(self, delivery: Delivery, seconds: float) -> None:
        delivery.backoff_until = delivery.retry_at = self.clock() + timedelta(seconds=seconds)
        delivery.timer = asyncio.get_running_loop().call_later(seconds, self._retry_due, delivery)

    def _retry_due(self, delivery: Delivery) -> None:
        delivery.timer = None
        self.wake(delivery, at_once=True)

    def _cancel_wait(self, delivery: Delivery) -> None:
        if delivery.timer is not None:
            delivery.timer.cancel()
            delivery.timer = delivery.retry_at = None

    def interrupt(self, delivery: Delivery) -> None:
        slot, delivery.slot = delivery.slot, None
        if slot is not None and (slot.task is None or slot.task is not asyncio.current_task()):
            self.scheduler.cancel(slot)
        self._cancel_wait(delivery)

    def stop(self, delivery: Delivery) -> None:
        """Make no further attempts, and cancel the current one."""
        delivery.is_stopped = True
        self.interrupt(delivery)

    async def finish(self, deliveries: Iterable[Delivery]) -> None:
        """Make no further attempts, and give running ones a few seconds to finish."""
        running: list[DeliverySlot] = []
        for delivery in deliveries:
            if delivery.slot is None or not delivery.slot.is_started:
                self.stop(delivery)
            else:
                delivery.is_stopped = True
                self._cancel_wait(delivery)
                running.append(delivery.slot)
        await self.scheduler.finish(running, CLOSE_SECONDS)

    async def end(self, delivery: Delivery, *, lease: Instant | None = None) -> bool:
        """End a subscription unless its lease was renewed, and cancel its delivery."""
        ended = await self.updates.end(delivery, lease=lease)
        if ended:
            self.interrupt(delivery)
        return ended

    # One attempt.

    def _start(self, delivery: Delivery, slot: DeliverySlot) -> None:
        try:
            # A retry usually has several fragments to merge.
            if not delivery.failures and self._send_now(delivery, slot):
                return
        except ValueError:  # the hub cannot request the callback's URL
            pass
        except Exception:
            logger.exception("a delivery to the callback at %s needs a task", slot.host)
        self.scheduler.run(slot, self._attempt(delivery, slot))

    def _send_now(self, delivery: Delivery, slot: DeliverySlot) -> bool:
        """Send the next notification without a task, if it is in memory and a connection is open.

        Return False if that is not possible. Nearly all deliveries use this path; `_attempt`
        handles every case.
        """
        subscription = delivery.subscription
        notification = self.notifications.cached(subscription)
        if notification is None or notification.body is None:
            return False
        now = self.clock()
        if is_expired(subscription, now) or not self.updates.may_deliver(delivery):
            return False
        target = delivery.target
        if target is None or target.secret != subscription.secret:
            target = delivery.target = self.requests.target(subscription)
        request = self.requests.begin(
            target, subscription.topic, notification.body, notification.content_type, slot.complete
        )
        if request is None:
            return False
        slot.watch(request, partial(self._answered, delivery, slot, notification, now))
        return True

    def _answered(
        self,
        delivery: Delivery,
        slot: DeliverySlot,
        notification: Notification,
        began: Instant,
        outcome: HttpReply | Exception,
    ) -> None:
        answer = self.requests.answer(outcome)
        if answer is None:
            self.scheduler.run(slot, self._attempt(delivery, slot))
        elif not answer.succeeded:
            # A coroutine created here would never be awaited if the task were cancelled before it
            # runs.
            failed = partial(self._record_failure, delivery, slot, notification, answer)
            self.scheduler.run(slot, self._attempt(delivery, slot, failed))
        else:
            wait = 0.0
            try:
                self._record_success(delivery, slot, notification, answer, began)
            except Exception:
                wait = self._log_fault(delivery)
            delivery.slot = None
            self.scheduler.release(slot)
            if wait:
                self._continue(delivery, wait)
            else:
                self.wake(delivery)

    async def _attempt(
        self,
        delivery: Delivery,
        slot: DeliverySlot,
        record: Callable[[], Awaitable[float | None]] | None = None,
    ) -> None:
        """Deliver one notification, or record the outcome of a delivery, then schedule the next."""
        wait: float | None = None
        try:
            wait = await (record() if record else self._deliver_next(delivery, slot))
        except NotOwner:
            # Another node will acquire the subscription and continue from its cursor; this node
            # stops the delivery as soon as it learns that. But if this node renews its lease in
            # time, nothing else triggers the attempt.
            wait = self._retry.first
        except Exception:
            wait = self._log_fault(delivery)
        finally:
            if delivery.slot is slot:
                delivery.slot = None
        if delivery.slot is None:
            self._continue(delivery, wait)

    def _log_fault(self, delivery: Delivery) -> float:
        """Log an internal error, and return the seconds until the next attempt.

        An internal error must not end a subscription.
        """
        logger.exception(
            "a delivery of %s failed with an internal error", delivery.subscription.topic
        )
        return self._retry.most

    def _continue(self, delivery: Delivery, wait: float | None) -> None:
        """Make the next attempt after `wait` seconds, or none if `wait` is None."""
        if wait is None or self._closed or delivery.is_stopped:
            return
        if wait:
            self._retry_in(delivery, wait)
        else:
            self.wake(delivery)

    async def _deliver_next(self, delivery: Delivery, slot: DeliverySlot) -> float | None:
        """Deliver one notification, and return the seconds until the next attempt (`_continue`).

        Raises:
            NotOwner: Another node may own the subscription.
        """
        if not self.updates.may_deliver(delivery):
            raise NotOwner("another node delivers to this callback")
        began = self.clock()
        if is_expired(delivery.subscription, began):
            ended = await self._end(delivery, "its lease has ended")
            return None if ended else self._retry.first
        try:
            notification = await self.notifications.next(delivery.subscription)
        except StorageError as error:
            logger.warning("a delivery of %s must wait: %s", delivery.subscription.topic, error)
            return self._retry.first
        if not self.updates.may_deliver(delivery):
            raise NotOwner("another node delivers to this callback")
        if notification.body is None:
            self.updates.move_cursor(delivery, notification.position)
        else:
            answer = await slot.limit(
                self.requests.deliver(
                    delivery.subscription,
                    notification.body,
                    notification.content_type,
                    is_allowed=partial(self.updates.may_deliver, delivery),
                )
            )
            if delivery.slot is not slot:
                return None
            if not answer.succeeded:
                return await self._record_failure(delivery, slot, notification, answer)
            self._record_success(delivery, slot, notification, answer, began)
        return 0.0

    def _record_success(
        self,
        delivery: Delivery,
        slot: DeliverySlot,
        sent: Notification,
        answer: Answer,
        began: Instant,
    ) -> None:
        self.statistics.deliveries[_DELIVERED] += 1
        size = len(sent.body or b"")
        self.statistics.delivered_bytes[DeliveryTransport.WEBSUB] += size
        if delivery.keeps(began):
            delivery.keep(delivery.attempt(answer, began, slot.seconds, sent.position, size))
        delivery.record_success()
        if delivery.stored_trouble is not None:
            self.updates.store_trouble(delivery)
        self.updates.move_cursor(delivery, sent.position)

    async def _record_failure(
        self, delivery: Delivery, slot: DeliverySlot, sent: Notification, answer: Answer
    ) -> float | None:
        size = len(sent.body or b"")
        attempt = delivery.attempt(answer, self.clock(), slot.seconds, sent.position, size)
        if answer.is_gone and await self._end(delivery, "its callback is gone (410)"):
            self.statistics.count(DeliveryTransport.WEBSUB, DeliveryOutcome.GONE)
            return None
        wait = self.failures.record(delivery, attempt, answer.retry_after)
        self.updates.store_trouble(delivery)
        return wait

    async def _end(self, delivery: Delivery, reason: str) -> bool:
        """End a subscription. Return False if it continues."""
        subscription = delivery.subscription
        logger.info("a subscription of %s ends: %s", subscription.topic, reason)
        try:
            return await self.end(delivery, lease=subscription.expires)
        except StorageError as error:
            # The next attempt will end it: the lease is still expired, or the callback answers 410
            # again.
            logger.warning("a subscription of %s could not be ended: %s", subscription.topic, error)
            return False

    async def close(self) -> None:
        """Stop delivering. Running deliveries have a few seconds to finish."""
        self._closed = True
        await self.scheduler.close(CLOSE_SECONDS)


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

    def cached(self, subscription: Subscription) -> Notification | None:
        """Return the next notification, or None if building it requires reading or merging."""
        topic, after = subscription.topic, subscription.position
        state = self._topics.state(topic)  # replaced by a new object whenever the log changes
        if (found := self._known(state, after)) is not None:
            return found
        entries = _latest(self._topics.recent(topic, after=after) or [])
        if state is None or not entries or (len(entries) > 1 and _chained(entries) > 1):
            return None
        return self._remember(state, after, _alone(entries[0]))

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
        entries = _latest(await self._topics.read(topic, after=after))
        if not entries:  # the undelivered entries were trimmed
            return Notification(None, "", state.position)
        return self._remember(state, after, await _merged(entries[: _chained(entries)]))

    async def again(self, topic: str, attempt: DeliveryAttempt) -> bytes | None:
        """Rebuild the body that an attempt sent. Return None if the log no longer has all of it."""
        read = await self._topics.read(topic, after=attempt.after)
        entries = _latest([each for each in read if each.position <= attempt.through])
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


def _chained(entries: Sequence[LogEntry]) -> int:
    return count_chained([entry.fragment for entry in entries], max_bytes=MERGED_BYTES)


def _alone(entry: LogEntry) -> Notification:
    return Notification(entry.fragment.body, entry.fragment.content_type, entry.position)


async def _merged(entries: Sequence[LogEntry]) -> Notification:
    if len(entries) == 1:
        return _alone(entries[0])
    # Merge in a thread, so that other deliveries do not have to wait.
    body = await asyncio.to_thread(merge_fragments, [entry.fragment for entry in entries])
    return Notification(body, MERGED_CONTENT_TYPE, entries[-1].position)


def _latest(entries: Sequence[LogEntry]) -> Sequence[LogEntry]:
    """Drop the entries that the newest whole content replaces."""
    wholes = (number for number, entry in enumerate(entries) if entry.fragment.whole)
    return entries[max(wholes, default=0) :]


class FailureHandling:
    """Logs, counts and keeps failed attempts, and decides when the next is due."""

    def __init__(self, retry: Retry, give_up_seconds: float, statistics: Statistics) -> None:
        self.recent: deque[tuple[Delivery, DeliveryAttempt]] = deque(maxlen=RECENT_FAILURES)
        self._retry = retry
        self._give_up_seconds = give_up_seconds
        self._statistics = statistics
        self._random = Random()

    def record(
        self, delivery: Delivery, attempt: DeliveryAttempt, retry_after: float | None
    ) -> float | None:
        """Record an attempt. Return the seconds until the next one; None for a dead letter."""
        now = attempt.at
        delivery.record_failure(attempt)
        self._statistics.count(DeliveryTransport.WEBSUB, DeliveryOutcome.FAILED)
        self.recent.append((delivery, attempt))
        facts = _facts(delivery, attempt)
        # Warn only about the first of consecutive failures; the others are details.
        level = logging.WARNING if delivery.failures == 1 else logging.INFO
        logger.log(level, "the callback at %(host)s %(reason)s", facts, extra=facts)
        if delivery.has_failed_for(self._give_up_seconds, now):
            delivery.give_up(now)
            delivery.is_extra = False
            self._statistics.count(DeliveryTransport.WEBSUB, DeliveryOutcome.GIVEN_UP)
            logger.warning(
                "deliveries of %(topic)s to %(host)s wait for an update", facts, extra=facts
            )
            return None
        is_extra, delivery.is_extra = delivery.is_extra, False
        at_least = min(retry_after or 0.0, self._retry.most)
        if is_extra and delivery.backoff_until is not None and delivery.backoff_until > now:
            wait = (delivery.backoff_until - now).total_seconds()
            return max(at_least, min(wait, self._retry.most))
        return self._retry.delay(delivery.failures, self._random, at_least=at_least)

    def restore(self, deliveries: Iterable[Delivery]) -> None:
        """Fill `recent` with the last failures from before a restart."""
        found = [(each, each.last_failure) for each in deliveries if each.last_failure is not None]
        self.recent.extend(sorted(found, key=lambda failure: failure[1].at))

    def remaining_wait(self, delivery: Delivery, now: Instant) -> float:
        """Return the seconds that a failed delivery must still wait.

        Without this wait, the hub would request a dead callback at every update of a busy topic.
        The failure may be dated by the clock of another node, or by a clock that was set back.
        """
        if not delivery.failures or delivery.last_failure is None:
            return 0.0
        wait = self._retry.delay(delivery.failures, self._random)
        age = max(0.0, (now - delivery.last_failure.at).total_seconds())
        return wait - age


def _facts(delivery: Delivery, attempt: DeliveryAttempt) -> dict[str, object]:
    return {
        "id": delivery.id,
        "topic": delivery.subscription.topic,
        "host": delivery.host,
        "status": attempt.status,
        "reason": attempt.reason,
        "failures": delivery.failures,
    }


class WebSubChannel(DeliveryChannel):
    """All WebSub subscriptions, and their deliveries.

    Methods that change a subscription raise `StorageError` if the store fails, and then change
    nothing. Methods that look up a subscription by its ID return whether it exists.
    """

    def __init__(
        self,
        store: SubscriptionStore,
        topics: TopicLogs,
        requests: CallbackRequests,
        intent_requests: IntentRequests,
        configuration: WebSubConfig,
        clock: Callable[[], Instant],
        statistics: Statistics,
        scheduler: DeliveryScheduler | None = None,
    ) -> None:
        self.registry = SubscriptionRegistry()
        self._updates = SubscriptionUpdates(store, self.registry)
        self._topics = topics
        self._intent_requests = intent_requests
        self._clock = clock
        self._scheduler = scheduler or DeliveryScheduler(configuration.callback_seconds)
        self._sender = DeliverySender(
            requests, topics, self._scheduler, self._updates, configuration, clock, statistics
        )
        self.recent_failures = self._sender.failures.recent
        self.notifications = self._sender.notifications

    def acquired(self, stored: Sequence[StoredSubscription]) -> None:
        """Resume stored subscriptions: deliver missed entries, and retry failed deliveries."""
        deliveries = [Delivery(each.subscription) for each in stored]
        for delivery, each in zip(deliveries, stored, strict=True):
            self.registry.add(delivery)
            # The store may have recorded a success, but not yet cleared the trouble before it.
            if each.trouble is not None and self._sender.is_behind(delivery):
                delivery.restore(msgspec.msgpack.decode(each.trouble, type=Trouble))
            self._sender.wake(delivery)
        self._sender.failures.restore(deliveries)

    async def released(self, ids: Collection[str]) -> None:
        await self._sender.finish(self._removed(ids))

    def revoked(self, ids: Collection[str]) -> None:
        for delivery in self._removed(ids):
            self._sender.stop(delivery)

    def _removed(self, ids: Collection[str]) -> list[Delivery]:
        """Remove subscriptions from the registry, so nothing can trigger their deliveries."""
        found = [delivery for id in ids if (delivery := self.registry.get(id)) is not None]
        for delivery in found:
            self.registry.remove(delivery)
        return found

    def find(self, topic: str, callback: str) -> Subscription | None:
        delivery = self.registry.find(topic, callback)
        return delivery.subscription if delivery else None

    def subscribers(self, topic: str) -> int:
        return len(self.registry.of_topic(topic))

    def waiting(self) -> int:
        return self._scheduler.waiting()

    def deliver(self, topic: str, entries: Sequence[LogEntry]) -> None:
        if deliveries := self.registry.of_topic(topic):
            self._sender.deliver_appended(deliveries)

    async def put(self, subscription: Subscription) -> None:
        delivery = await self._updates.put(subscription)
        if delivery is not None:
            self._sender.retry_now(delivery)

    async def remove(self, topic: str, callback: str) -> None:
        """End a subscription if it exists. Raise `NotOwner` if another node may have it."""
        delivery = self.registry.find(topic, callback)
        if delivery is not None:
            await self._sender.end(delivery)
        else:
            self._updates.check_owner(callback)

    async def expire(self) -> None:
        """End every subscription whose lease has ended (WebSub §5.1)."""
        now = self._clock()
        for delivery in self.registry.all():
            subscription = delivery.subscription
            if is_expired(subscription, now):
                logger.info("a subscription of %s ends: its lease has ended", subscription.topic)
                await self._sender.end(delivery, lease=subscription.expires)

    async def redeliver(self, id: str, since: Instant | None = None) -> bool:
        """Make an attempt now, regardless of earlier failures.

        With `since`, deliver again everything after that instant that the log still has. A
        suspended subscription stays suspended.
        """
        delivery = self.registry.get(id)
        if delivery is None:
            return False
        again: Sequence[LogEntry] = ()
        if since is not None:
            again = await self._topics.read(delivery.subscription.topic, after=0, since=since)
        if self.registry.get(id) is not delivery:
            return False
        self._sender.interrupt(delivery)
        if again and again[0].position <= delivery.subscription.position:
            self._updates.move_cursor(delivery, again[0].position - 1)
        self._sender.retry_now(delivery)
        return True

    async def suspend(self, id: str) -> bool:
        """Deliver nothing until `resume`."""
        delivery = self.registry.get(id)
        if delivery is None or not await self._updates.change(delivery, suspended=True):
            return False
        self._sender.interrupt(delivery)
        self._updates.store_trouble(delivery)
        return True

    async def resume(self, id: str) -> bool:
        delivery = self.registry.get(id)
        if delivery is None or not await self._updates.change(delivery, suspended=False):
            return False
        self._sender.retry_now(delivery)
        return True

    async def drop(self, id: str, reason: str) -> bool:
        """End a subscription, and notify its callback of the denial (WebSub §5.2)."""
        delivery = self.registry.get(id)
        if delivery is None:
            return False
        topic, callback = delivery.subscription.topic, delivery.subscription.callback
        await self.remove(topic, callback)
        self._intent_requests.notify(denial_url(topic, callback, reason=reason))
        return True

    async def close(self) -> None:
        """Stop delivering. The hub delivers the rest after its next start."""
        await self._sender.close()
