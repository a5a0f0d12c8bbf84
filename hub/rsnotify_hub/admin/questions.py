"""What is asked of the admin API: queries, and the one body there is."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from rsnotify_hub.websub.delivery.delivery import DeliveryState

#: How many rows a page has at most.
MAX_ROWS = 1000


class Redelivery(Struct, frozen=True, forbid_unknown_fields=True):
    """What to deliver again.

    Args:
        since: A W3C Datetime: go back in the log, to deliver all that changed after it. If it
            is absent, what waits already is tried at once.
    """

    since: str | None = None


class Nothing(Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters."""


class TopicOrder(StrEnum):
    """The order of topics: by URI, or those that changed last first."""

    TOPIC = "topic"
    RECEIVED = "received"


class SubscriptionOrder(StrEnum):
    """The order of subscriptions: by topic; or those given up, retrying, suspended and active,
    and among each those that lag the longest first.
    """

    TOPIC = "topic"
    TROUBLE = "trouble"


class PageQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which page.

    Args:
        limit: How many rows at most.
        after: The `next` of the page before.
    """

    limit: Annotated[int, Meta(ge=1, le=MAX_ROWS)] = 100
    after: str = ""


class TopicQuery(PageQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which topics.

    Args:
        limit: How many rows at most.
        after: The `next` of the page before, which had the same order.
        topic: Only this one.
        sort: The order: by URI, or `received` for those that changed last first.
    """

    topic: str | None = None
    sort: TopicOrder = TopicOrder.TOPIC


class SubscriptionQuery(PageQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which subscriptions.

    Args:
        limit: How many rows at most.
        after: The `next` of the page before, which had the same order.
        topic: Only those of this topic.
        state: Only those that stand so.
        sort: The order: by topic, or `trouble` for those given up, retrying, suspended and
            active, and among each those that lag the longest first.
    """

    topic: str | None = None
    state: DeliveryState | None = None
    sort: SubscriptionOrder = SubscriptionOrder.TOPIC
