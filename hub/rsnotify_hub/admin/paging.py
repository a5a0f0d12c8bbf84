"""Pages of rows that come and go, and change, while the pages are read.

The key of a row says its place. A page begins after the last key of the page before, so a row
that stays where it is comes exactly once, whatever happens to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from heapq import nlargest, nsmallest
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from rsnotify_hub.admin.questions import PageQuery, SubscriptionOrder, TopicOrder
from rsnotify_hub.log.store import LogState
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.websub.delivery.delivery import Delivery, DeliveryState

T = TypeVar("T")

_TROUBLE = {
    DeliveryState.GIVEN_UP: 0,
    DeliveryState.RETRYING: 1,
    DeliveryState.SUSPENDED: 2,
    DeliveryState.ACTIVE: 3,
}
_NEVER = datetime.max.replace(tzinfo=UTC)


class Order(Struct, Generic[T], frozen=True):
    """An order of rows.

    Args:
        key: The place of a row; no two share it.
        type: The type of keys.
        descending: Whether the greatest key comes first.
    """

    key: Callable[[T], tuple[Any, ...]]
    type: Any
    descending: bool = False


TOPICS: dict[TopicOrder, Order[LogState]] = {
    TopicOrder.TOPIC: Order(lambda log: (log.topic,), tuple[str]),
    TopicOrder.RECEIVED: Order(
        lambda log: (log.received, log.topic), tuple[datetime, str], descending=True
    ),
}
# The instant since when, not the lag, which would be another on the next page.
SUBSCRIPTIONS: dict[SubscriptionOrder, Order[Delivery]] = {
    SubscriptionOrder.TOPIC: Order(
        lambda each: (each.subscription.topic, each.id), tuple[str, str]
    ),
    SubscriptionOrder.TROUBLE: Order(
        lambda each: (_TROUBLE[each.state], each.behind_since or _NEVER, each.id),
        tuple[int, datetime, str],
    ),
}


class Page(Struct, Generic[T], frozen=True):
    """A page.

    Args:
        rows: What is on it.
        total: How many rows there are on all pages.
        next: What to ask for to go on; None when nothing is behind it.
    """

    rows: list[T]
    total: int
    next: str | None


def cut(rows: Iterable[T], order: Order[T], query: PageQuery) -> Page[T]:
    """Cut a page out of all rows.

    Args:
        rows: All rows, however they lie.
        order: Their order.
        query: Which page.

    Raises:
        Refusal: Its `after` is from no page of this order.
    """
    keyed = [(order.key(row), row) for row in rows]
    first = nlargest if order.descending else nsmallest
    found = first(query.limit + 1, _behind(keyed, order, query.after))
    page = found[: query.limit]
    following = _encode(page[-1][0]) if len(found) > len(page) else None
    return Page([row for _, row in page], len(keyed), following)


def _behind(
    keyed: list[tuple[tuple[Any, ...], T]], order: Order[T], after: str
) -> list[tuple[tuple[Any, ...], T]]:
    if not after:
        return keyed
    try:
        key = msgspec.json.decode(after, type=order.type)
    except (msgspec.DecodeError, UnicodeError):
        raise Refusal(Code.BAD_REQUEST, "after is not the next of a page in this order") from None
    if order.descending:
        return [pair for pair in keyed if pair[0] < key]
    return [pair for pair in keyed if pair[0] > key]


def _encode(key: tuple[Any, ...]) -> str:
    return msgspec.json.encode(key).decode()
