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
"""

from __future__ import annotations

import hashlib
import hmac
from datetime import timedelta
from enum import Enum, auto

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.datetimes import Instant


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


def granted_lease(requested: int | None, *, default: int, maximum: int) -> int:
    """Return the lease that is granted, in seconds (WebSub §5.1)."""
    return min(requested or default, maximum)


def subscribed(
    old: Subscription | None,
    *,
    topic: str,
    callback: str,
    secret: str | None,
    lease: int,
    now: Instant,
    position: int,
) -> Subscription:
    """Apply a confirmed subscribe.

    Args:
        old: The subscription that it renews, if there is one.
        topic: What it is for.
        callback: Where deliveries go.
        secret: The secret of this request.
        lease: The granted lease in seconds, from now.
        now: The current instant.
        position: The end of the topic's log, where a new subscription begins.
    """
    expires = now + timedelta(seconds=lease)
    if old is not None and not is_expired(old, now):
        return replace(old, secret=secret, expires=expires)
    return Subscription(topic, callback, secret, expires, position)


def is_expired(subscription: Subscription, now: Instant) -> bool:
    """Tell whether the lease has ended."""
    return subscription.expires <= now


class Answer(Enum):
    """What a callback's answer means for its subscription."""

    DELIVERED = auto()
    GONE = auto()
    RETRY = auto()


def judge(status: int) -> Answer:
    """Judge the HTTP status of a callback's answer (WebSub §7).

    A redirect is a failure: the subscriber verified this callback, no other.
    """
    if 200 <= status < 300:
        return Answer.DELIVERED
    return Answer.GONE if status == 410 else Answer.RETRY


def signature(secret: str, body: bytes) -> str:
    """Return the value of `X-Hub-Signature` (WebSub §7.1)."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
