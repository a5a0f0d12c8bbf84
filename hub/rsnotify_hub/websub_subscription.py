"""The life cycle of a WebSub subscription: values and decisions without I/O.

Theory of operation. A subscription is identified by its topic and callback. A request changes a
subscription only after the callback has confirmed it (WebSub §5.3), so that nobody can create,
renew or end a subscription that is not theirs:

    state     confirmed subscribe       confirmed unsubscribe   lease ends   callback says 410
    absent    active, from now on       absent                  -            -
    active    active, renewed           absent                  absent       absent

A renewal replaces the secret and the lease, and keeps the position in the log. If a callback
returns neither 2xx nor 410, the subscription stays unchanged, and the hub retries the delivery. A
callback that is down therefore loses nothing that the log still has.

An administrator may suspend a subscription: it keeps its position and lease but receives nothing.
An administrator may also end a subscription, and the hub then notifies the callback (WebSub §5.2).
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.datetimes import Instant


class DeliveryState(StrEnum):
    """The state of the deliveries to a subscription (`websub.callback_subscriber`)."""

    ACTIVE = "active"
    RETRYING = "retrying"
    GIVEN_UP = "given-up"
    SUSPENDED = "suspended"


class Subscription(Struct, frozen=True, gc=False):
    """A confirmed subscription.

    Args:
        callback: The URL that receives deliveries, exactly as the subscriber wrote it.
        secret: The secret that signs deliveries, if any.
        position: The position in the log up to which everything was delivered.
        suspended: Whether deliveries are paused.
        client: The client that first requested the subscription, for its quota.
    """

    topic: str
    callback: str
    secret: str | None
    expires: Instant
    position: int
    suspended: bool = False
    client: str = ""

    def __repr__(self) -> str:
        """Return a string that is safe to log, without the secret and the callback."""
        return f"Subscription(topic={self.topic!r}, expires={self.expires})"


def subscription_id(topic: str, callback: str) -> str:
    """Return the id of a subscription, for use where the callback must not appear."""
    # Neither a topic nor a callback contains a line break, so the hashed string is unambiguous. The
    # hash is long enough that nobody can create two subscriptions with the same id.
    return hashlib.sha256(f"{topic}\n{callback}".encode()).hexdigest()[:32]


def granted_lease(requested: int | None, *, default: int, minimum: int, maximum: int) -> int:
    """Return the lease to grant, in seconds (WebSub §5.1). The maximum takes precedence."""
    return min(max(requested or default, minimum), maximum)


def new_or_renewed(
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
    """Return the new or renewed subscription after a confirmed request.

    The lease starts at `now`, when the hub sent the verification request (WebSub §5.3). A new
    subscription begins at `position`, the end of the log.
    """
    expires = now + timedelta(seconds=lease)
    if old is not None and not is_expired(old, now):
        return replace(old, secret=secret, expires=expires)
    return Subscription(topic, callback, secret, expires, position, client=client)


def is_expired(subscription: Subscription, now: Instant) -> bool:
    return subscription.expires <= now
