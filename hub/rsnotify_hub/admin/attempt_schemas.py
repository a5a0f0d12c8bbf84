"""The JSON of the admin API about one subscription, with its callback and its last deliveries."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from rsnotify.format.datetimes import Instant
from rsnotify_hub.admin.schemas import FailureInfo, SubscriptionInfo


class AttemptInfo(FailureInfo, frozen=True, kw_only=True):
    """An attempt to deliver.

    Args:
        at: When it ended.
        status: The HTTP status of the answer; null without an answer.
        reason: The outcome.
        excerpt: The beginning of the body of the answer, unless the attempt succeeded.
        seconds: How long it took.
        delivered: Whether it succeeded.
        after: The position in the log after which the payload begins.
        through: The position in the log of the end of the payload.
        size: The bytes of the payload.
    """

    seconds: float
    delivered: bool
    after: int
    through: int
    size: int


class SubscriptionDetails(Struct, frozen=True, kw_only=True):
    """A subscription with its callback, and its last attempts.

    Args:
        subscription: The subscription.
        callback: Its whole callback, which may contain secrets of the subscriber.
        attempts: Its last failed attempts and some of its last successful ones, newest first.
        since: When the hub, or the node that delivers to it, started. Of earlier attempts only the
            last one is kept, if it failed and none has succeeded since.
    """

    subscription: SubscriptionInfo
    callback: str
    attempts: tuple[AttemptInfo, ...]
    since: Annotated[Instant, Meta(tz=True)] | None = None


class PayloadQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The attempt whose payload is requested: the last one with these positions.

    Args:
        after: Its `after`.
        through: Its `through`.
    """

    after: int | None = None
    through: int | None = None


class PayloadInfo(Struct, frozen=True, kw_only=True):
    """What an attempt has sent.

    Args:
        text: The beginning of the payload; null if the log has not all of it any more.
        size: The bytes of the whole payload.
    """

    text: str | None
    size: int
