"""When a failed delivery is retried, and when the hub gives up."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from random import Random

from rsnotify.format.datetimes import Instant
from rsnotify.sync.retry import Retry
from rsnotify_hub.statistics import DeliveryOutcome, DeliveryTransport, Statistics
from rsnotify_hub.websub.callback_subscriber import CallbackSubscriber, DeliveryAttempt

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
