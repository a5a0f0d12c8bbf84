"""The delivery state of one subscription: values and decisions without I/O.

Theory of operation. A subscription is *active* while deliveries succeed, however far behind it
is. A failed attempt makes it *retrying*, with growing waits. After attempts have failed for too
long it is *given up*, a dead letter: nothing is sent until the topic is updated, and then it is
retried for as long again (WebSub §7). Its position in the log stays, so that it then receives what
it missed. A renewal shows that the subscriber is alive, so its next attempt does not wait. A
*suspended* subscription waits for an administrator.

    state       failed          failed for too long   delivered   updated     renewed
    active      retrying        -                     active      active      active
    retrying    retrying        given up              active      retrying    retrying, now
    given up    -               -                     -           retrying    retrying, now
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from msgspec import Struct

from rsnotify.format.coverage import EARLIEST
from rsnotify.format.datetimes import Instant
from rsnotify_hub.subscriptions import DeliveryState, Subscription, subscription_id
from rsnotify_hub.urls import authority_of, host_of
from rsnotify_hub.websub.callback_requests import Answer, CallbackTarget, redacted
from rsnotify_hub.websub.scheduler import DeliverySlot

#: How many failed and how many successful attempts are kept in memory for each subscription.
KEPT_FAILED, KEPT_DELIVERED = 10, 5
#: The time between two successful attempts that are kept. So most deliveries cost nothing more, and
#: those that are kept show more than the last moment.
_APART = timedelta(seconds=10)


class DeliveryAttempt(Struct, frozen=True, gc=False):
    """An attempt to deliver; the reason is worded to follow "the callback".

    Args:
        at: When it failed, or when one that succeeded began.
        excerpt: The first bytes of the answer to an attempt that failed.
        seconds: How long it took.
        after: The position in the log that the subscription had.
        through: The position of the last fragment that was sent.
        size: The bytes that were sent.
    """

    at: Instant
    status: int | None
    reason: str
    excerpt: bytes = b""
    seconds: float = 0.0
    after: int = 0
    through: int = 0
    size: int = 0


class Trouble(Struct, frozen=True):
    """How deliveries to a subscription fail, stored so that it survives a restart of the hub.

    The attempts have failed since `trying_since`, or the topic was updated then.
    """

    failures: int
    behind_since: Instant | None
    trying_since: Instant | None
    given_up_since: Instant | None
    last_failure: DeliveryAttempt | None


class Delivery:
    """The delivery state of one subscription.

    Attributes:
        behind_since: When it fell behind; None while it is up to date.
        backoff_until: When the next attempt is due by the backoff, even if one was made earlier.
        is_extra: Whether the next attempt is one besides those of the backoff.
        failed: Its last failed attempts.
        delivered: Some of its last successful attempts.
        kept_after: Successful attempts are kept from this instant on.
        given_up_since: When it became a dead letter; None unless it is one.
        target: Where its attempts go; None until the first.
        slot: The attempt that runs or waits for capacity.
        lock: Held while its value is changed in the store.
        is_stopped: Whether no further attempts are made: another node has it, or will have it.
    """

    __slots__ = (
        "_trying_since",
        "authority",
        "backoff_until",
        "behind_since",
        "delivered",
        "failed",
        "failures",
        "given_up_since",
        "host",
        "id",
        "is_extra",
        "is_stopped",
        "kept_after",
        "lock",
        "retry_at",
        "slot",
        "stored_trouble",
        "subscription",
        "target",
        "timer",
    )

    def __init__(self, subscription: Subscription) -> None:
        self.id = subscription_id(subscription.topic, subscription.callback)
        self.host = host_of(subscription.callback)
        self.authority = authority_of(subscription.callback)
        self.subscription = subscription
        self.failures = 0
        self.behind_since: Instant | None = None
        self.retry_at: Instant | None = None
        self.backoff_until: Instant | None = None
        self.is_extra = False
        self.stored_trouble: Trouble | None = None
        self.failed: list[DeliveryAttempt] = []
        self.delivered: list[DeliveryAttempt] = []
        self.kept_after = EARLIEST
        self.given_up_since: Instant | None = None
        self.target: CallbackTarget | None = None
        self.slot: DeliverySlot | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.lock = asyncio.Lock()
        self.is_stopped = False
        self._trying_since: Instant | None = None

    @property
    def state(self) -> DeliveryState:
        if self.subscription.suspended:
            return DeliveryState.SUSPENDED
        if self.given_up_since is not None:
            return DeliveryState.GIVEN_UP
        return DeliveryState.RETRYING if self.failures else DeliveryState.ACTIVE

    @property
    def last_failure(self) -> DeliveryAttempt | None:
        return self.failed[-1] if self.failed else None

    @property
    def trouble(self) -> Trouble | None:
        """What must survive a restart; None while deliveries succeed."""
        if not self.failures and not (self.subscription.suspended and self.behind_since):
            return None
        return Trouble(
            self.failures,
            self.behind_since,
            self._trying_since,
            self.given_up_since,
            self.last_failure,
        )

    def restore(self, trouble: Trouble) -> None:
        self.stored_trouble = trouble
        self.failures = trouble.failures
        self.behind_since = trouble.behind_since
        self._trying_since = trouble.trying_since
        self.given_up_since = trouble.given_up_since
        self.failed = [] if trouble.last_failure is None else [trouble.last_failure]

    def attempt(
        self, answer: Answer, at: Instant, seconds: float, through: int, size: int
    ) -> DeliveryAttempt:
        excerpt = redacted(answer.excerpt, self.subscription)
        before = self.subscription.position
        return DeliveryAttempt(
            at, answer.status, answer.reason, excerpt, seconds, before, through, size
        )

    def keep(self, attempt: DeliveryAttempt) -> None:
        self.delivered.append(attempt)
        del self.delivered[:-KEPT_DELIVERED]
        self.kept_after = attempt.at + _APART

    def record_success(self) -> None:
        self.failures = 0
        self.is_extra = False
        self.given_up_since = self.retry_at = self.backoff_until = self._trying_since = None

    def record_failure(self, attempt: DeliveryAttempt) -> None:
        """Count a failed attempt; an extra one only if none had failed before."""
        self.failures += not (self.is_extra and self.failures)
        self._trying_since = self._trying_since or attempt.at
        self.failed.append(attempt)
        del self.failed[:-KEPT_FAILED]
        self.kept_after = EARLIEST

    def has_failed_for(self, seconds: float, now: Instant) -> bool:
        """Return whether attempts have failed for this long since the first, or since an update."""
        since = self._trying_since
        return since is not None and now - since >= timedelta(seconds=seconds)

    def give_up(self, now: Instant) -> None:
        """Make it a dead letter: no more attempts until the topic is updated."""
        self.given_up_since = now
        self.retry_at = None

    def resume_trying(self, now: Instant) -> None:
        """Allow attempts again, for as long as before it was given up."""
        self.given_up_since = None
        self._trying_since = now if self.failures else None
