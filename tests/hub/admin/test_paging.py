from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify_hub.admin.hub_operations import (
    SUBSCRIPTION_ORDERS,
    TOPIC_ORDERS,
    RowOrder,
    RowPage,
    page_of,
)
from rsnotify_hub.admin.schemas import PageQuery, SubscriptionOrder, TopicOrder
from rsnotify_hub.refusals import Refusal
from rsnotify_hub.store.interface import LogState
from rsnotify_hub.websub.callback_subscriber import CallbackSubscriber, DeliveryAttempt
from rsnotify_hub.websub_subscription import DeliveryState, Subscription
from tests.hub.helpers import at

names = st.sets(st.text(min_size=1, max_size=4), max_size=30)
orders = st.booleans().map(lambda down: RowOrder(lambda row: (row,), tuple[str], descending=down))


def pages(rows: set[str], order: RowOrder[str], limit: int) -> list[RowPage[str]]:
    found = [page_of(rows, order, PageQuery(limit=limit))]
    while (after := found[-1].next) is not None:
        found.append(page_of(rows, order, PageQuery(limit=limit, after=after)))
    return found


@given(names, orders, st.integers(1, 7))
def test_pages_together_have_every_row_once_and_in_order(
    rows: set[str], order: RowOrder[str], limit: int
):
    found = pages(rows, order, limit)
    expected = sorted(rows, reverse=order.descending)
    assert [row for page in found for row in page.rows] == expected
    assert all(len(page.rows) == limit for page in found[:-1])
    assert all(page.total == len(rows) for page in found)


@given(names, names, names, orders, st.integers(1, 7))
def test_rows_that_stay_are_on_one_page_while_others_come_and_go(
    stay: set[str], go: set[str], come: set[str], order: RowOrder[str], limit: int
):
    first = page_of(stay | go, order, PageQuery(limit=limit))
    seen, after = list(first.rows), first.next
    while after is not None:
        page = page_of(stay | come, order, PageQuery(limit=limit, after=after))
        seen, after = seen + page.rows, page.next
    assert [row for row in seen if row in stay] == sorted(stay, reverse=order.descending)


@given(st.text(min_size=1))
def test_an_invalid_cursor_is_refused(after: str):
    query = PageQuery(after=after)
    with pytest.raises(Refusal, match="after"):
        page_of([log("a", 1)], TOPIC_ORDERS[TopicOrder.RECEIVED], query)


def log(name: str, received: float) -> LogState:
    return LogState(
        topic=f"https://a.example/{name}",
        first=1,
        position=1,
        begins=at(0),
        through=at(1),
        received=at(received),
        kept=1,
        size=1,
        heartbeat=None,
    )


def test_topics_that_changed_last_come_first():
    rows = [log("a", 1), log("b", 3), log("c", 3), log("d", 2.5)]
    page = page_of(rows, TOPIC_ORDERS[TopicOrder.RECEIVED], PageQuery())
    assert [row.topic[-1] for row in page.rows] == ["c", "b", "d", "a"]


def delivery(
    name: str, *, behind: float | None = None, state: DeliveryState = DeliveryState.ACTIVE
) -> CallbackSubscriber:
    suspended, url = state is DeliveryState.SUSPENDED, f"https://b.example/{name}"
    found = CallbackSubscriber(
        Subscription("https://a.example/", url, None, at(86_400), 0, suspended)
    )
    found.behind_since = None if behind is None else at(behind)
    if state in (DeliveryState.RETRYING, DeliveryState.GIVEN_UP):
        found.failures = 1
        found.failed = [DeliveryAttempt(at(0), 500, "returned 500")]
    if state is DeliveryState.GIVEN_UP:
        found.given_up_since = at(5)
    assert found.state is state
    return found


def test_subscriptions_in_trouble_come_first_and_the_longest_lag_among_them():
    rows = [
        delivery("level"),
        delivery("slow", behind=4),
        delivery("held", behind=1, state=DeliveryState.SUSPENDED),
        delivery("newly failing", behind=3, state=DeliveryState.RETRYING),
        delivery("failing", behind=2, state=DeliveryState.RETRYING),
        delivery("dead", behind=4, state=DeliveryState.GIVEN_UP),
    ]
    order = SUBSCRIPTION_ORDERS[SubscriptionOrder.TROUBLE]
    found, after = [], ""
    while after is not None:
        page = page_of(rows, order, PageQuery(limit=2, after=after))
        found += [row.subscription.callback.rpartition("/")[2] for row in page.rows]
        after = page.next
    assert found == ["dead", "failing", "newly failing", "held", "slow", "level"]


def test_subscriptions_of_one_topic_are_adjacent():
    rows = [delivery(str(number)) for number in range(5)]
    page = page_of(rows, SUBSCRIPTION_ORDERS[SubscriptionOrder.TOPIC], PageQuery())
    assert [row.id for row in page.rows] == sorted(row.id for row in rows)
