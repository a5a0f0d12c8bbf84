"""The life of a WebSub subscription, as values and decisions; others do the I/O.

Theory of operation. A subscription is identified by its topic and callback. A request never
changes it; only a *verified* intent does, so that nobody can subscribe, renew or end what is
not theirs:

    state     confirmed subscribe       confirmed unsubscribe   lease ends   callback says 410
    absent    active, from now on       absent                  -            -
    active    active, renewed           absent                  absent       absent

A renewal replaces the secret and the lease, and keeps the place in the log. Any answer of a
callback but 2xx and 410 leaves the subscription as it is, to be tried again until its lease
ends: a callback that is down loses nothing that the log still has.

Who administers the hub may suspend a subscription, which keeps its place and its lease but is
not delivered, and end one; the callback is then told (WebSub §5.2).
"""

from __future__ import annotations

import hashlib
from datetime import timedelta

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.datetimes import Instant


class Subscription(Struct, frozen=True):
    """A confirmed subscription.

    Args:
        topic: What it is for.
        callback: Where deliveries go, exactly as the subscriber wrote it.
        secret: What deliveries are signed with, if anything.
        expires: When its lease ends.
        position: The place in the log up to which it was delivered.
        suspended: Whether nothing is delivered for now.
        client: The address that asked for it first, for its share of the room.
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
    """Return what a subscription is called where its callback must not show.

    Neither a topic nor a callback holds a line break, so no two are spelled alike. It is long
    enough that nobody finds two with the same id, who may choose both.
    """
    return hashlib.sha256(f"{topic}\n{callback}".encode()).hexdigest()[:32]


def granted_lease(requested: int | None, *, default: int, minimum: int, maximum: int) -> int:
    """Return the lease that is granted, in seconds (WebSub §5.1); the maximum wins."""
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
    """Apply a confirmed subscribe.

    Args:
        old: The subscription that it renews, if there is one.
        topic: What it is for.
        callback: Where deliveries go.
        secret: The secret of this request.
        lease: The granted lease in seconds, from `now`.
        now: When the callback was asked to confirm: the lease counts from then (WebSub §5.3).
        position: The end of the topic's log, where a new subscription begins.
        client: The address that asked for it.
    """
    expires = now + timedelta(seconds=lease)
    if old is not None and not is_expired(old, now):
        return replace(old, secret=secret, expires=expires)
    return Subscription(topic, callback, secret, expires, position, client=client)


def is_expired(subscription: Subscription, now: Instant) -> bool:
    """Tell whether the lease has ended."""
    return subscription.expires <= now
