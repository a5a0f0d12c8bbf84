"""The life cycle of a WebSub subscription: values and decisions without I/O.

Theory of operation. A subscription is identified by its topic and callback. A request never
changes it; only a *verified* intent does (WebSub §5.3), so that nobody can subscribe, renew or end
a subscription that is not theirs:

    state     confirmed subscribe       confirmed unsubscribe   lease ends   callback says 410
    absent    active, from now on       absent                  -            -
    active    active, renewed           absent                  absent       absent

A renewal replaces the secret and the lease, and keeps the position in the log. Any answer of a
callback except 2xx and 410 leaves the subscription as it is, and the delivery is retried until the
lease ends: a callback that is down loses nothing that the log still has.

An administrator may suspend a subscription, which keeps its position and its lease but receives
nothing, and may end one; the hub then notifies the callback (WebSub §5.2).
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.datetimes import Instant


class DeliveryState(StrEnum):
    """The state of the deliveries to a subscription (`websub.delivery`)."""

    ACTIVE = "active"
    RETRYING = "retrying"
    GIVEN_UP = "given-up"
    SUSPENDED = "suspended"


class Subscription(Struct, frozen=True, gc=False):
    """A confirmed subscription.

    Args:
        callback: Where deliveries go, exactly as the subscriber wrote it.
        secret: The secret that deliveries are signed with, if any.
        position: The position in the log up to which it was delivered.
        suspended: Whether nothing is delivered for now.
        client: The client that requested it first, whose quota it counts for.
    """

    topic: str
    callback: str
    secret: str | None
    expires: Instant
    position: int
    suspended: bool = False
    client: str = ""

    def __repr__(self) -> str:
        """Return what may be logged: neither the secret nor the callback's query."""
        return f"Subscription(topic={self.topic!r}, expires={self.expires})"


def subscription_id(topic: str, callback: str) -> str:
    """Return the name of a subscription where its callback must not show.

    Neither a topic nor a callback contains a line break, so that the hashed text is unambiguous.
    The id is long enough that nobody can find two subscriptions with the same one.
    """
    return hashlib.sha256(f"{topic}\n{callback}".encode()).hexdigest()[:32]


def granted_lease(requested: int | None, *, default: int, minimum: int, maximum: int) -> int:
    """Return the lease to grant, in seconds (WebSub §5.1); the maximum takes precedence."""
    return min(max(requested or default, minimum), maximum)


def subscribed(
    old: Subscription | None,
    *,
    topic: str,
    callback: str,
    secret: str | None,
    lease: int,
    now: Instant,
    position: int,
    client: str = "",
) -> Subscription:
    """Return the subscription after a confirmed subscribe, new or renewed.

    The lease counts from `now`, when the callback was requested to confirm (WebSub §5.3). A new
    subscription begins at `position`, the end of the log.
    """
    expires = now + timedelta(seconds=lease)
    if old is not None and not is_expired(old, now):
        return replace(old, secret=secret, expires=expires)
    return Subscription(topic, callback, secret, expires, position, client=client)


def is_expired(subscription: Subscription, now: Instant) -> bool:
    return subscription.expires <= now
