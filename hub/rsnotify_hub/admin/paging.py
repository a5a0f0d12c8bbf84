"""Pages of rows that may change while a client reads the pages.

A page begins after the key of the last row of the page before. So a row whose key does not change
is on exactly one page, whatever happens to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from heapq import nlargest, nsmallest
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from rsnotify_hub.admin.schemas import PageQuery, SubscriptionOrder, TopicOrder
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.store.interface import LogState
from rsnotify_hub.subscriptions import DeliveryState
from rsnotify_hub.websub.delivery.delivery import Delivery

T = TypeVar("T")
U = TypeVar("U")

_STATE_ORDER = {
    DeliveryState.GIVEN_UP: 0,
    DeliveryState.RETRYING: 1,
    DeliveryState.SUSPENDED: 2,
    DeliveryState.ACTIVE: 3,
}
_NEVER = datetime.max.replace(tzinfo=UTC)


class RowOrder(Struct, Generic[T], frozen=True):
    """An order of rows, by a unique key of the given type."""

    key: Callable[[T], tuple[Any, ...]]
    type: Any
    descending: bool = False


TOPICS: dict[TopicOrder, RowOrder[LogState]] = {
    TopicOrder.TOPIC: RowOrder(lambda log: (log.topic,), tuple[str]),
    TopicOrder.RECEIVED: RowOrder(
        lambda log: (log.received, log.topic), tuple[datetime, str], descending=True
    ),
}
# The instant and not the lag, which would differ on the next page.
SUBSCRIPTIONS: dict[SubscriptionOrder, RowOrder[Delivery]] = {
    SubscriptionOrder.TOPIC: RowOrder(
        lambda each: (each.subscription.topic, each.id), tuple[str, str]
    ),
    SubscriptionOrder.TROUBLE: RowOrder(
        lambda each: (_STATE_ORDER[each.state], each.behind_since or _NEVER, each.id),
        tuple[int, datetime, str],
    ),
}


class RowPage(Struct, Generic[T], frozen=True):
    """A page; `total` counts the rows on all pages, and `next` is the `after` of the next page."""

    rows: list[T]
    total: int
    next: str | None


class PagePart(Struct, Generic[T], frozen=True):
    """What one node has of a page: its first rows with their keys, and the number of all."""

    rows: list[tuple[str, T]]
    total: int


def part_of(
    keys: Iterable[U], rows: Iterable[T], page: RowPage[U], order: RowOrder[U]
) -> PagePart[T]:
    """Return the part of a page of what was found, as other rows."""
    keyed = [(_encode(order.key(key)), row) for key, row in zip(keys, rows, strict=True)]
    return PagePart(keyed, page.total)


def merged_page(parts: Iterable[PagePart[T]], order: RowOrder[Any], limit: int) -> RowPage[T]:
    """Return a page of the parts of all nodes, which were made with one row more than the page."""
    parts = list(parts)
    rows = [
        (msgspec.json.decode(key, type=order.type), row) for part in parts for key, row in part.rows
    ]
    rows.sort(key=lambda pair: pair[0], reverse=order.descending)
    following = _encode(rows[limit - 1][0]) if len(rows) > limit else None
    page = [row for _, row in rows[:limit]]
    return RowPage(page, sum(part.total for part in parts), following)


def page_of(
    rows: Iterable[T], order: RowOrder[T], query: PageQuery, *, more: int = 0
) -> RowPage[T]:
    """Return a page of rows, with some more than the query wants."""
    limit = query.limit + more
    keyed = [(order.key(row), row) for row in rows]
    first = nlargest if order.descending else nsmallest
    found = first(limit + 1, _after(keyed, order, query.after))
    page = found[:limit]
    following = _encode(page[-1][0]) if len(found) > len(page) else None
    return RowPage([row for _, row in page], len(keyed), following)


def _after(
    keyed: list[tuple[tuple[Any, ...], T]], order: RowOrder[T], after: str
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
