from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from rsnotify_hub.admin.paging import Page, cut, subscription_key, topic_key
from rsnotify_hub.admin.shapes import PageQuery, SubscriptionOrder, TopicOrder
from rsnotify_hub.log.store import LogState
from rsnotify_hub.subscriptions import Subscription
from rsnotify_hub.websub.delivery import Delivery, Failure, State
from tests.hub.helpers import at

names = st.sets(st.text(min_size=1, max_size=4), max_size=30)


def pages(rows: set[str], limit: int) -> list[Page[str]]:
    found = [cut(rows, str, PageQuery(limit=limit))]
    while (after := found[-1].next) is not None:
        found.append(cut(rows, str, PageQuery(limit=limit, after=after)))
    return found


@given(names, st.integers(1, 7))
def test_pages_together_have_every_row_once_and_in_order(rows: set[str], limit: int):
    found = pages(rows, limit)
    assert [row for page in found for row in page.rows] == sorted(rows)
    assert all(len(page.rows) == limit for page in found[:-1])
    assert all(page.total == len(rows) for page in found)


@given(names, names, names, st.integers(1, 7))
def test_rows_that_stay_come_once_while_others_come_and_go(
    stay: set[str], go: set[str], come: set[str], limit: int
):
    first = cut(stay | go, str, PageQuery(limit=limit))
    seen, after = list(first.rows), first.next
    while after is not None:
        page = cut(stay | come, str, PageQuery(limit=limit, after=after))
        seen, after = seen + page.rows, page.next
    assert [row for row in seen if row in stay] == sorted(stay)


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
    page = cut(rows, topic_key(TopicOrder.RECEIVED), PageQuery())
    assert [row.topic[-1] for row in page.rows] == ["b", "c", "d", "a"]


def delivery(name: str, *, behind: float | None = None, state: State = State.ACTIVE) -> Delivery:
    found = Delivery(
        Subscription(
            "https://a.example/",
            f"https://b.example/{name}",
            None,
            at(0) + timedelta(days=1),
            0,
            suspended=state is State.SUSPENDED,
        )
    )
    found.behind_since = None if behind is None else at(behind)
    if state in (State.RETRYING, State.GIVEN_UP):
        found.failures = 1
        found.last_failure = Failure(at(0), 500, "answers 500", b"")
    if state is State.GIVEN_UP:
        found.given_up_since = at(5)
    assert found.state is state
    return found


def test_subscriptions_in_trouble_come_first_and_the_longest_lag_among_them():
    rows = {
        "level": delivery("level"),
        "slow": delivery("slow", behind=4),
        "held": delivery("held", behind=1, state=State.SUSPENDED),
        "newly failing": delivery("new", behind=3, state=State.RETRYING),
        "failing": delivery("old", behind=2, state=State.RETRYING),
        "dead": delivery("dead", behind=4, state=State.GIVEN_UP),
    }
    page = cut(
        rows.items(), lambda row: subscription_key(SubscriptionOrder.TROUBLE)(row[1]), PageQuery()
    )
    assert [name for name, _ in page.rows] == [
        "dead", "failing", "newly failing", "held", "slow", "level",
    ]  # fmt: skip


def test_subscriptions_of_one_topic_stand_together():
    rows = [delivery(str(number)) for number in range(5)]
    page = cut(rows, subscription_key(SubscriptionOrder.TOPIC), PageQuery())
    assert [row.id for row in page.rows] == sorted(row.id for row in rows)
