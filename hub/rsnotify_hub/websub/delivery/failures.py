"""The handling of a failed attempt: it is logged and counted, and retried or given up."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from datetime import timedelta
from random import Random

from rsnotify.format.datetimes import Instant
from rsnotify.sync.retry import Retry
from rsnotify_hub.statistics import DeliveryOutcome, DeliveryTransport, Statistics
from rsnotify_hub.websub.delivery.delivery import Delivery, DeliveryAttempt

log = logging.getLogger("rsnotify.hub.websub")

#: How many failures are kept in memory.
RECENT_FAILURES = 200


class FailureHandling:
    """Handles the failed attempts of all deliveries.

    Attributes:
        recent: The newest failed attempts.
    """

    def __init__(self, retry: Retry, give_up_seconds: float, statistics: Statistics) -> None:
        self.recent: deque[tuple[Delivery, DeliveryAttempt]] = deque(maxlen=RECENT_FAILURES)
        self._retry = retry
        self._give_up_seconds = give_up_seconds
        self._statistics = statistics
        self._random = Random()

    def record(
        self, delivery: Delivery, attempt: DeliveryAttempt, retry_after: float | None
    ) -> float | None:
        """Return the seconds until the next attempt, or None if the delivery is given up."""
        now = attempt.at
        delivery.record_failure(attempt)
        self._statistics.count(DeliveryTransport.WEBSUB, DeliveryOutcome.FAILED)
        self.recent.append((delivery, attempt))
        facts = _facts(delivery, attempt)
        # Warn once for each callback that fails; its further failures are details.
        level = logging.WARNING if delivery.failures == 1 else logging.INFO
        log.log(level, "the callback at %(host)s %(reason)s", facts, extra=facts)
        if delivery.has_failed_for(self._give_up_seconds, now):
            delivery.give_up(now)
            delivery.is_extra = False
            self._statistics.count(DeliveryTransport.WEBSUB, DeliveryOutcome.GIVEN_UP)
            log.warning(
                "deliveries of %(topic)s to %(host)s wait for an update", facts, extra=facts
            )
            return None
        is_extra, delivery.is_extra = delivery.is_extra, False
        at_least = min(retry_after or 0.0, self._retry.most)
        if is_extra and delivery.backoff_until is not None and delivery.backoff_until > now:
            return max(at_least, (delivery.backoff_until - now).total_seconds())
        return self._retry.delay(delivery.failures, self._random, at_least=at_least)

    def restore(self, deliveries: Iterable[Delivery]) -> None:
        """Fill `recent` with the last failures from before a restart."""
        found = [(each, each.last_failure) for each in deliveries if each.last_failure is not None]
        self.recent.extend(sorted(found, key=lambda failure: failure[1].at))

    def remaining_wait(self, delivery: Delivery, now: Instant) -> float:
        """Return how long a delivery that was given up must still wait.

        So a dead callback of a busy topic is not requested at each update.
        """
        if not delivery.failures or delivery.last_failure is None:
            return 0.0
        wait = self._retry.delay(delivery.failures, self._random)
        return (delivery.last_failure.at + timedelta(seconds=wait) - now).total_seconds()


def _facts(delivery: Delivery, attempt: DeliveryAttempt) -> dict[str, object]:
    return {
        "id": delivery.id,
        "topic": delivery.subscription.topic,
        "host": delivery.host,
        "status": attempt.status,
        "reason": attempt.reason,
        "failures": delivery.failures,
    }
