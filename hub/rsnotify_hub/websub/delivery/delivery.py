"""How one subscription stands: values and decisions; the channel does the I/O.

Theory of operation. A subscription is *active* while deliveries succeed, however far behind it
is. A failed try makes it *retrying*, with growing waits. When tries have failed for too long it is
*given up*: nothing is tried until the topic is updated, and then again for as long (WebSub §7).
Its place in the log stays, so what it has not got goes with the update. A renewal shows that the
subscriber is alive, so its next try does not wait. *Suspended* ones wait for an administrator.

    state       failed          failed for too long   delivered   updated     renewed
    active      retrying        -                     active      active      active
    retrying    retrying        given up              active      retrying    retrying, now
    given up    -               -                     -           retrying    retrying, now
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from enum import StrEnum

from msgspec import Struct

from rsnotify.format.datetimes import Instant
from rsnotify_hub.subscriptions import Subscription, subscription_id
from rsnotify_hub.urls import authority_of, host_of
from rsnotify_hub.websub.delivery.answers import Answer, presentable
from rsnotify_hub.websub.delivery.turn import DeliverySlot


class DeliveryState(StrEnum):
    """How deliveries to a subscription go."""

    ACTIVE = "active"
    RETRYING = "retrying"
    GIVEN_UP = "given-up"
    SUSPENDED = "suspended"


class DeliveryFailure(Struct, frozen=True):
    """A try that failed.

    Args:
        at: When.
        status: The HTTP status of the answer; None when none came.
        reason: What happened, to go on after "the callback".
        excerpt: The first bytes of the answer's body.
    """

    at: Instant
    status: int | None
    reason: str
    excerpt: bytes


class Trouble(Struct, frozen=True):
    """How deliveries to a subscription fail: what a restart of the hub must not lose.

    Args:
        failures: How many tries failed in a row.
        behind_since: When it began to lag.
        trying_since: When the first of these tries failed, or the topic was updated since.
        given_up_since: When it was given up.
        last_failure: The last try that failed.
    """

    failures: int
    behind_since: Instant | None
    trying_since: Instant | None
    given_up_since: Instant | None
    last_failure: DeliveryFailure | None


class Delivery:
    """How one subscription stands.

    Args:
        subscription: What the store keeps of it.

    Attributes:
        id: What it is called where its callback must not show.
        host: The host of its callback.
        authority: The host and port of its callback.
        subscription: Its value, with the position up to which it was delivered.
        failures: How many tries failed in a row.
        behind_since: When it began to lag; None when it is up to date.
        retry_at: When the next try is, if it waits for one.
        due: When the next try was due by the backoff, though another was made before.
        is_extra: Whether the next try is beside those of the backoff.
        noted: What the store has of its trouble.
        last_failure: The last try that failed, also long ago.
        given_up_since: When it was given up; None unless it is.
        turn: The try that is under way, or waits only for its turn.
        timer: What ends its wait.
        changing: Held by whoever changes its value in the store.
    """

    def __init__(self, subscription: Subscription) -> None:
        self.id = subscription_id(subscription.topic, subscription.callback)
        self.host = host_of(subscription.callback)
        self.authority = authority_of(subscription.callback)
        self.subscription = subscription
        self.failures = 0
        self.behind_since: Instant | None = None
        self.retry_at: Instant | None = None
        self.due: Instant | None = None
        self.is_extra = False
        self.noted: Trouble | None = None
        self.last_failure: DeliveryFailure | None = None
        self.given_up_since: Instant | None = None
        self.turn: DeliverySlot | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.changing = asyncio.Lock()
        self._trying_since: Instant | None = None

    @property
    def state(self) -> DeliveryState:
        """Say how deliveries go."""
        if self.subscription.suspended:
            return DeliveryState.SUSPENDED
        if self.given_up_since is not None:
            return DeliveryState.GIVEN_UP
        return DeliveryState.RETRYING if self.failures else DeliveryState.ACTIVE

    @property
    def trouble(self) -> Trouble | None:
        """What a restart must not lose; None while deliveries go well."""
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
        """Go on as before a restart of the hub."""
        self.noted = trouble
        self.failures = trouble.failures
        self.behind_since = trouble.behind_since
        self._trying_since = trouble.trying_since
        self.given_up_since = trouble.given_up_since
        self.last_failure = trouble.last_failure

    def succeeded(self) -> None:
        """Note that a try succeeded."""
        self.failures = 0
        self.is_extra = False
        self.given_up_since = self.retry_at = self.due = self._trying_since = None

    def failed(self, answer: Answer, now: Instant) -> DeliveryFailure:
        """Note that a try failed; one beside the backoff counts only if none had failed."""
        self.failures += not (self.is_extra and self.failures)
        self._trying_since = self._trying_since or now
        excerpt = presentable(answer.excerpt, self.subscription)
        self.last_failure = DeliveryFailure(now, answer.status, answer.reason, excerpt)
        return self.last_failure

    def has_failed_for(self, seconds: float, now: Instant) -> bool:
        """Tell whether tries have failed for so long, since the first or since an update."""
        since = self._trying_since
        return since is not None and now - since >= timedelta(seconds=seconds)

    def give_up(self, now: Instant) -> None:
        """Try no more until there is news."""
        self.given_up_since = now
        self.retry_at = None

    def take_heart(self, now: Instant) -> None:
        """Begin to try again, for as long as before."""
        self.given_up_since = None
        self._trying_since = now if self.failures else None
