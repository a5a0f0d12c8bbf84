"""What follows a try that failed: it is told and counted, and waits, or is given up."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from datetime import timedelta
from random import Random

from rsnotify.format.datetimes import Instant
from rsnotify.sync.retry import Retry
from rsnotify_hub.statistics import DeliveryOutcome, DeliveryTransport, Statistics
from rsnotify_hub.websub.delivery.answers import Answer
from rsnotify_hub.websub.delivery.delivery import Delivery, DeliveryFailure

log = logging.getLogger("rsnotify.hub.websub")

#: How many failures are remembered.
RECENT_FAILURES = 200


class FailureHandling:
    """Takes the failures of all deliveries.

    Args:
        retry: The waits between tries.
        give_up_seconds: How long tries may fail.
        statistics: Where failures are counted.

    Attributes:
        recent: The newest failures: id of the delivery, topic, host of the callback, and what
            failed.
    """

    def __init__(self, retry: Retry, give_up_seconds: float, statistics: Statistics) -> None:
        self.recent: deque[tuple[str, str, str, DeliveryFailure]] = deque(maxlen=RECENT_FAILURES)
        self._retry = retry
        self._give_up_seconds = give_up_seconds
        self._statistics = statistics
        self._random = Random()

    def note(self, delivery: Delivery, answer: Answer, now: Instant) -> float | None:
        """Note that a try failed; return the seconds until the next, or None if it is given up."""
        failure = delivery.failed(answer, now)
        self._count(DeliveryOutcome.FAILED)
        topic = delivery.subscription.topic
        self.recent.append((delivery.id, topic, delivery.host, failure))
        facts = _facts(delivery, answer)
        # Warn once of a callback that fails; what follows is for those who look closely.
        level = logging.WARNING if delivery.failures == 1 else logging.INFO
        log.log(level, "the callback at %(host)s %(reason)s", facts, extra=facts)
        if delivery.has_failed_for(self._give_up_seconds, now):
            delivery.give_up(now)
            delivery.is_extra = False
            self._count(DeliveryOutcome.GIVEN_UP)
            log.warning(
                "deliveries of %(topic)s to %(host)s wait for an update", facts, extra=facts
            )
            return None
        is_extra, delivery.is_extra = delivery.is_extra, False
        wish = min(answer.retry_after or 0.0, self._retry.most)
        if is_extra and delivery.due is not None and delivery.due > now:
            return max(wish, (delivery.due - now).total_seconds())
        return self._retry.delay(delivery.failures, self._random, at_least=wish)

    def restore(self, deliveries: Iterable[Delivery]) -> None:
        """Remember the last failures of before a restart."""
        found = [
            (each.id, each.subscription.topic, each.host, each.last_failure)
            for each in deliveries
            if each.last_failure is not None
        ]
        self.recent.extend(sorted(found, key=lambda one: one[3].at))

    def rest_of_wait(self, delivery: Delivery, now: Instant) -> float:
        """Return how long one that was given up must still wait: a dead callback of a busy
        topic is not tried at each of its updates.
        """
        if not delivery.failures or delivery.last_failure is None:
            return 0.0
        wait = self._retry.delay(delivery.failures, self._random)
        return (delivery.last_failure.at + timedelta(seconds=wait) - now).total_seconds()

    def _count(self, outcome: DeliveryOutcome) -> None:
        self._statistics.deliveries[DeliveryTransport.WEBSUB, outcome] += 1


def _facts(delivery: Delivery, answer: Answer) -> dict[str, object]:
    """Return the fields of a failure in the log: which, and what became of it."""
    return {
        "id": delivery.id,
        "topic": delivery.subscription.topic,
        "host": delivery.host,
        "status": answer.status,
        "reason": answer.reason,
        "failures": delivery.failures,
    }
