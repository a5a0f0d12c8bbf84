"""Delivers what subscriptions lack, and tries again what failed.

Theory of operation. A subscription that is up to date costs nothing but its entry. When
something is appended, it takes a turn (`turns`), in which it reads on in the log, POSTs, and
moves its cursor; then it takes another, until the log's end is reached. Whatever was appended
meanwhile is merged, where it chains, so that a slow callback gets few large fragments instead
of many small ones. A failed try is repeated after a growing wait (`failures`); the log is the
queue, so waiting costs no memory but a timer.

Most deliveries are the last fragment for somebody who is up to date, to whom a connection is
open: that is sent in the turn of the loop in which it was appended, and needs no task. A task
does all else: reading, merging, dialling, and what follows a failure.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial

from rsnotify.errors import StorageError
from rsnotify.format.datetimes import Instant
from rsnotify.sync.retry import Retry
from rsnotify_hub.config.configuration import WebSubConfig
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.statistics import Outcome, Statistics, Way
from rsnotify_hub.subscriptions import is_expired
from rsnotify_hub.websub.delivering.answers import Answer, Verdict
from rsnotify_hub.websub.delivering.callbacks import Callbacks
from rsnotify_hub.websub.delivering.delivery import Delivery
from rsnotify_hub.websub.delivering.failures import Failures
from rsnotify_hub.websub.delivering.notifications import Notification, Notifications
from rsnotify_hub.websub.delivering.turn import Turn
from rsnotify_hub.websub.delivering.turns import Turns

log = logging.getLogger("rsnotify.hub.websub")

#: How long deliveries under way may take when the hub stops, in seconds.
CLOSE_SECONDS = 3.0


class Sender:
    """Delivers to each subscription, one notification after another.

    Args:
        callbacks: Makes the requests.
        configuration: The settings of retries.
        clock: Tells the current instant.
        statistics: Where deliveries are counted.
        move: Moves a subscription's place in the log.
        note: Stores how deliveries fail, whenever that may have changed.
        end: Ends a subscription, for a reason; False where it goes on: it was renewed meanwhile,
            or cannot be forgotten now.
        turns: Say when each may be asked.

    Attributes:
        failures: What failed.
    """

    def __init__(
        self,
        callbacks: Callbacks,
        configuration: WebSubConfig,
        clock: Callable[[], Instant],
        statistics: Statistics,
        *,
        move: Callable[[Delivery, int], None],
        note: Callable[[Delivery], None],
        end: Callable[[Delivery, str], Awaitable[bool]],
        turns: Turns,
    ) -> None:
        self._retry = Retry(configuration.retry_seconds, configuration.max_retry_seconds)
        self.failures = Failures(self._retry, configuration.give_up_seconds, statistics)
        self._callbacks = callbacks
        self._turns = turns
        self._clock = clock
        self._statistics = statistics
        self._move = move
        self._note = note
        self._end = end
        self._topics: TopicLogs | None = None
        self._notifications: Notifications | None = None
        self._closed = False

    def start(self, topics: TopicLogs) -> None:
        """Take the logs to read from."""
        self._topics = topics
        self._notifications = Notifications(topics)

    def waiting(self) -> int:
        """Count the deliveries that wait for a connection."""
        return self._turns.waiting()

    def updated(self, delivery: Delivery) -> None:
        """Begin to deliver what was appended, also to one that was given up."""
        if delivery.given_up_since is not None:
            delivery.take_heart(self._clock())
            self._note(delivery)
        self.wake(delivery)

    def encourage(self, delivery: Delivery) -> None:
        """Try now rather than later; a failure then leaves the backoff as it is."""
        if delivery.timer is not None:
            delivery.timer.cancel()
            delivery.timer = delivery.retry_at = None
        delivery.take_heart(self._clock())
        delivery.is_extra = delivery.turn is None  # else it is under way by the backoff
        self.wake(delivery, at_once=True)
        self._note(delivery)

    def interrupt(self, delivery: Delivery) -> None:
        """Break off what is under way, or waits."""
        turn, delivery.turn = delivery.turn, None
        if turn is not None and (turn.task is None or turn.task is not asyncio.current_task()):
            self._turns.cancel(turn)
        if delivery.timer is not None:
            delivery.timer.cancel()
            delivery.timer = delivery.retry_at = None

    def wake(self, delivery: Delivery, *, at_once: bool = False) -> None:
        """Deliver what is lacking, unless that is under way or waits for its time.

        Args:
            delivery: Whose.
            at_once: Whether to try at once what failed before.
        """
        if delivery.turn is not None or delivery.timer is not None or self._closed:
            return
        if not self.lags(delivery):
            delivery.behind_since = None
            return
        delivery.behind_since = delivery.behind_since or self._clock()
        if delivery.subscription.suspended or delivery.given_up_since is not None:
            self._note(delivery)
            return
        wait = 0.0 if at_once else self.failures.rest_of_wait(delivery, self._clock())
        if wait > 0:
            self._wait(delivery, wait)
        else:
            self._try(delivery)

    def lags(self, delivery: Delivery) -> bool:
        """Whether the log has something that was not delivered."""
        assert self._topics is not None
        subscription = delivery.subscription
        return subscription.position < self._topics.position(subscription.topic)

    def _wait(self, delivery: Delivery, seconds: float) -> None:
        delivery.due = delivery.retry_at = self._clock() + timedelta(seconds=seconds)
        delivery.timer = asyncio.get_running_loop().call_later(seconds, self._again, delivery)

    def _again(self, delivery: Delivery) -> None:
        delivery.timer = None
        self.wake(delivery, at_once=True)

    def _try(self, delivery: Delivery) -> None:
        failed = delivery.failures > 0
        self._statistics.retries += failed
        delivery.retry_at = None
        delivery.turn = self._turns.take(
            delivery.authority,
            partial(self._work, delivery),
            begin=partial(self._begin, delivery),
            slow=failed,
        )

    def _begin(self, delivery: Delivery, turn: Turn) -> bool:
        """Send at once what is at hand, where a connection waits for it.

        So nearly all deliveries go, and need no task; `_work` can do everything.
        """
        assert self._notifications is not None
        subscription = delivery.subscription
        notification = self._notifications.at_hand(subscription)
        if notification is None or notification.body is None:
            return False
        if is_expired(subscription, self._clock()):
            return False
        request = self._callbacks.begin(
            subscription, notification.body, notification.content_type, turn.answered
        )
        if request is None:
            return False
        turn.expect(request, partial(self._answered, delivery, turn, notification))
        return True

    def _answered(
        self, delivery: Delivery, turn: Turn, notification: Notification, answer: Answer | None
    ) -> None:
        if answer is None:
            self._turns.go_on(turn, self._work(delivery, turn))
        elif answer.verdict is not Verdict.DELIVERED:
            # No coroutine yet: a task that is cancelled before it begins would leave it unawaited.
            self._turns.go_on(
                turn, self._conclude(delivery, turn, partial(self._failed, delivery, answer))
            )
        else:
            self._succeeded(delivery, turn, notification)

    def _succeeded(self, delivery: Delivery, turn: Turn, notification: Notification) -> None:
        wait = 0.0
        try:
            self._delivered(delivery, notification)
        except Exception:
            wait = self._broken_off(delivery)
        delivery.turn = None
        self._turns.end(turn)
        self._go_on(delivery, wait)

    def _broken_off(self, delivery: Delivery) -> float:
        """Tell of a fault of ours, which must not end what somebody subscribed to; return the
        seconds until the next try.
        """
        log.exception("a delivery of %s broke off", delivery.subscription.topic)
        return self._retry.most

    async def _work(self, delivery: Delivery, turn: Turn) -> None:
        await self._conclude(delivery, turn, partial(self._deliver_next, delivery, turn))

    async def _conclude(
        self, delivery: Delivery, turn: Turn, work: Callable[[], Awaitable[float | None]]
    ) -> None:
        """Do the work of a turn, and see to the next."""
        wait: float | None = None
        try:
            wait = await work()
        except Exception:
            wait = self._broken_off(delivery)
        finally:
            if delivery.turn is turn:
                delivery.turn = None
        if delivery.turn is None:
            self._go_on(delivery, wait)

    def _go_on(self, delivery: Delivery, wait: float | None) -> None:
        """Deliver the next after some seconds; None where that is for others to say."""
        if wait is None or self._closed:
            return
        if wait:
            self._wait(delivery, wait)
        else:
            self.wake(delivery)

    async def _deliver_next(self, delivery: Delivery, turn: Turn) -> float | None:
        """Deliver once. Return the seconds to wait until the next; None when that is for others
        to say.
        """
        assert self._notifications is not None
        if is_expired(delivery.subscription, self._clock()):
            return None if await self._end(delivery, "its lease has ended") else self._retry.first
        try:
            notification = await self._notifications.next(delivery.subscription)
        except StorageError as error:
            log.warning("a delivery of %s must wait: %s", delivery.subscription.topic, error)
            return self._retry.first
        if notification.body is not None:
            answer = await turn.within(
                self._callbacks.deliver(
                    delivery.subscription, notification.body, notification.content_type
                )
            )
            if delivery.turn is not turn:
                return None
            if answer.verdict is not Verdict.DELIVERED:
                return await self._failed(delivery, answer)
        self._delivered(delivery, notification)
        return 0.0

    def _delivered(self, delivery: Delivery, notification: Notification) -> None:
        if notification.body is not None:
            self._count(Outcome.DELIVERED)
            self._statistics.delivered_bytes[Way.WEBSUB] += len(notification.body)
            delivery.succeeded()
            if delivery.noted is not None:
                self._note(delivery)
        self._move(delivery, notification.position)

    async def _failed(self, delivery: Delivery, answer: Answer) -> float | None:
        gone = answer.verdict is Verdict.GONE
        if gone and await self._end(delivery, "its callback is gone (410)"):
            self._count(Outcome.GONE)
            return None
        wait = self.failures.note(delivery, answer, self._clock())
        self._note(delivery)
        return wait

    def _count(self, outcome: Outcome) -> None:
        self._statistics.deliveries[Way.WEBSUB, outcome] += 1

    async def close(self) -> None:
        """Stop. What is under way has a few seconds to end."""
        self._closed = True
        await self._turns.close(CLOSE_SECONDS)
