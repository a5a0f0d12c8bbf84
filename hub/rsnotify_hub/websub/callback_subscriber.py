"""A WebSub subscription with the state of its deliveries: values and decisions without I/O.

Theory of operation. A subscription is *active* while deliveries succeed, no matter how far behind
it is. A failed attempt makes it *retrying*, with exponential backoff. If attempts keep failing for
too long, the hub *gives up* on the subscription, which becomes a dead letter: the hub sends nothing
until the topic is updated, and then retries for the same period again (WebSub §7). The position in
the log is kept, so the subscriber then receives everything that it missed. A renewal shows that the
subscriber is alive, so the next attempt does not wait. A *suspended* subscription waits for an
administrator.

    state       failed          failed for too long   delivered   updated     renewed
    active      retrying        -                     active      active      active
    retrying    retrying        given up              active      retrying    retrying, now
    given up    -               -                     -           retrying    retrying, now
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta

from msgspec import Struct

from rsnotify.format.coverage import EARLIEST
from rsnotify.format.datetimes import Instant
from rsnotify_hub.urls import authority_of, host_of
from rsnotify_hub.websub.callback_requests import Answer, CallbackTarget, redacted
from rsnotify_hub.websub.request_scheduler import RequestSlot
from rsnotify_hub.websub_subscription import DeliveryState, Subscription, subscription_id

#: Number of failed and of successful attempts kept in memory for each subscription.
KEPT_FAILED, KEPT_DELIVERED = 10, 5
#: Minimum time between two kept successful attempts. It makes the kept attempts cover more than the
#: last moment, and most deliveries cost nothing extra.
_KEPT_INTERVAL = timedelta(seconds=10)


class DeliveryAttempt(Struct, frozen=True, gc=False):
    """A delivery attempt.

    Args:
        at: When the attempt failed, or when a successful attempt began.
        reason: The outcome, worded to follow "the callback".
        excerpt: The first bytes of the response, if the attempt failed.
        after: The position of the subscription in the log before the attempt.
        through: The position of the last fragment that was sent.
    """

    at: Instant
    status: int | None
    reason: str
    excerpt: bytes = b""
    seconds: float = 0.0
    after: int = 0
    through: int = 0
    size: int = 0


class FailureState(Struct, frozen=True):
    """The failures of deliveries to a subscription, stored to survive a restart of the hub.

    `trying_since` is when attempts began to fail, or when the hub last resumed them.
    """

    failures: int
    behind_since: Instant | None
    trying_since: Instant | None
    given_up_since: Instant | None
    last_failure: DeliveryAttempt | None


@dataclass(slots=True, eq=False, repr=False)
class CallbackSubscriber:
    """A subscription, and the state of its deliveries.

    Attributes:
        behind_since: When the subscription fell behind; None while it is up to date.
        backoff_until: When the backoff allows the next attempt. `retry_now` does not change it.
        is_extra: Whether the next attempt is in addition to those that the backoff allows.
        failed: The last failed attempts.
        delivered: Some of the last successful attempts.
        kept_after: A successful attempt is kept only if it began at or after this instant.
        given_up_since: When the subscription became a dead letter; None if it is not one.
        target: The target of the attempts; None before the first one.
        slot: The attempt that is running or waiting for capacity.
        lock: Held while the subscription is changed in the store.
        is_stopped: Whether attempts have ended because another node has, or will have, the
            subscription.
    """

    subscription: Subscription
    id: str = field(init=False)
    host: str = field(init=False)
    authority: str = field(init=False)
    failures: int = 0
    behind_since: Instant | None = None
    retry_at: Instant | None = None
    backoff_until: Instant | None = None
    is_extra: bool = False
    stored_failure_state: FailureState | None = None
    failed: list[DeliveryAttempt] = field(default_factory=list)
    delivered: list[DeliveryAttempt] = field(default_factory=list)
    kept_after: Instant = EARLIEST
    given_up_since: Instant | None = None
    target: CallbackTarget | None = None
    slot: RequestSlot | None = None
    timer: asyncio.TimerHandle | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_stopped: bool = False
    _trying_since: Instant | None = None

    def __post_init__(self) -> None:
        topic, callback = self.subscription.topic, self.subscription.callback
        self.id = subscription_id(topic, callback)
        self.host = host_of(callback)
        self.authority = authority_of(callback)

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
    def failure_state(self) -> FailureState | None:
        """The state that must survive a restart; None while deliveries succeed."""
        if not self.failures and not (self.subscription.suspended and self.behind_since):
            return None
        return FailureState(
            self.failures,
            self.behind_since,
            self._trying_since,
            self.given_up_since,
            self.last_failure,
        )

    def restore(self, stored: FailureState) -> None:
        self.stored_failure_state = stored
        self.failures = stored.failures
        self.behind_since = stored.behind_since
        self._trying_since = stored.trying_since
        self.given_up_since = stored.given_up_since
        self.failed = [] if stored.last_failure is None else [stored.last_failure]

    def new_attempt(
        self, answer: Answer, at: Instant, seconds: float, through: int, size: int
    ) -> DeliveryAttempt:
        excerpt = redacted(answer.excerpt, self.subscription)
        before = self.subscription.position
        return DeliveryAttempt(
            at, answer.status, answer.reason, excerpt, seconds, before, through, size
        )

    def should_keep_success(self, began: Instant) -> bool:
        # The second condition is true after the clock was set back.
        return began >= self.kept_after or began < self.kept_after - _KEPT_INTERVAL

    def keep_success(self, attempt: DeliveryAttempt) -> None:
        self.delivered.append(attempt)
        del self.delivered[:-KEPT_DELIVERED]
        self.kept_after = attempt.at + _KEPT_INTERVAL

    def record_success(self) -> None:
        self.failures = 0
        self.is_extra = False
        self.given_up_since = self.retry_at = self.backoff_until = self._trying_since = None

    def record_failure(self, attempt: DeliveryAttempt) -> None:
        """Record a failed attempt. An extra attempt counts only if it is the first to fail."""
        self.failures += not (self.is_extra and self.failures)
        # The first failure may be dated by another node, or by a clock that was set back.
        self._trying_since = min(self._trying_since or attempt.at, attempt.at)
        self.failed.append(attempt)
        del self.failed[:-KEPT_FAILED]
        self.kept_after = EARLIEST

    def has_failed_for(self, seconds: float, now: Instant) -> bool:
        """Return whether attempts have failed for this long since the hub last resumed them."""
        since = self._trying_since
        return since is not None and now - since >= timedelta(seconds=seconds)

    def give_up(self, now: Instant) -> None:
        """Make the subscription a dead letter."""
        self.given_up_since = now
        self.retry_at = None

    def resume_trying(self, now: Instant) -> None:
        """Allow attempts again, and restart the period after which the hub gives up."""
        self.given_up_since = None
        self._trying_since = now if self.failures else None
