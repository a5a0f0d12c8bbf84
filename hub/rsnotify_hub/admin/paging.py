"""Pages of rows that come and go, and change, while the pages are read.

The key of a row is a string that says its place. A page begins after the last key of the page
before, so a row that stays as it is comes exactly once, whatever happens to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import nsmallest
from typing import Generic, TypeVar

from msgspec import Struct

from rsnotify.datetimes import to_microseconds
from rsnotify_hub.admin.shapes import PageQuery, SubscriptionOrder, TopicOrder
from rsnotify_hub.log.store import LogState
from rsnotify_hub.websub.delivery import Delivery, State

T = TypeVar("T")

#: Beyond every count of microseconds since 1970.
_MOST = 10**17
_TROUBLE = {State.GIVEN_UP: 0, State.RETRYING: 1, State.SUSPENDED: 2, State.ACTIVE: 3}


class Page(Struct, Generic[T], frozen=True):
    """A page.

    Args:
        rows: What is on it.
        total: How many rows there are on all pages.
        next: The key to go on after; None when nothing is behind it.
    """

    rows: list[T]
    total: int
    next: str | None


def cut(rows: Iterable[T], key: Callable[[T], str], query: PageQuery) -> Page[T]:
    """Cut a page out of all rows.

    Args:
        rows: All rows, in any order.
        key: Their place; no two share it.
        query: Which page.
    """
    keyed = [(key(row), row) for row in rows]
    behind = (pair for pair in keyed if pair[0] > query.after)
    found = nsmallest(query.limit + 1, behind, key=lambda pair: pair[0])
    page = found[: query.limit]
    return Page([row for _, row in page], len(keyed), page[-1][0] if found[len(page) :] else None)


def topic_key(order: TopicOrder) -> Callable[[LogState], str]:
    """Return the place of topics in an order."""
    if order is TopicOrder.TOPIC:
        return lambda state: state.topic
    return lambda state: f"{_MOST - to_microseconds(state.received):018} {state.topic}"


def subscription_key(order: SubscriptionOrder) -> Callable[[Delivery], str]:
    """Return the place of subscriptions in an order."""
    if order is SubscriptionOrder.TOPIC:  # a topic has no space
        return lambda each: f"{each.subscription.topic} {each.id}"
    return lambda each: f"{_TROUBLE[each.state]} {_since(each):018} {each.id}"


def _since(delivery: Delivery) -> int:
    # Not the lag itself, which would be another on the next page.
    return _MOST if delivery.behind_since is None else to_microseconds(delivery.behind_since)
