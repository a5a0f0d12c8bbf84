"""What everybody hears at once is not asked for by everybody at once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from msgspec.structs import replace

from rsnotify.format.model import Document, Link, Resource
from rsnotify.format.vocabulary import Capability, ChangeType, Rel
from rsnotify.sync.actions import Action, Apply, Progress
from rsnotify.sync.follower import Follower
from rsnotify.sync.pace import Pace
from tests.core.world import BASE, OFFER

START = datetime(2026, 1, 1, tzinfo=UTC)
NOW = 1000.0


def at(second: int) -> datetime:
    return START + timedelta(seconds=second)


def fragment(
    second: int,
    name: str = "a",
    *links: Link,
    change: ChangeType = ChangeType.UPDATED,
    joins: bool = True,
) -> Document:
    entry = Resource(BASE + name, change=change, datetime=at(second), links=links)
    return Document(
        Capability.CHANGE_NOTIFICATION,
        (entry,),
        from_=at(second - 1 if joins else second) - timedelta(milliseconds=not joins),
        until=at(second),
    )


def follower(pace: Pace, seed: int = 1) -> Follower:
    made = Follower(OFFER, Progress(START, START), pace=pace, random=Random(seed))
    made.push_up(NOW)
    return made


def uris(actions: list[Action]) -> list[str]:
    return [
        change.uri.removeprefix(BASE)
        for action in actions
        if isinstance(action, Apply)
        for change in action.changes
    ]


def test_what_a_fragment_names_is_asked_for_within_the_spread() -> None:
    dues = []
    for seed in range(200):
        one = follower(Pace(spread=10.0), seed)
        assert uris(one.fragment(fragment(1), NOW)) == []
        due = one.wakeup
        assert due is not None
        assert uris(one.tick(due)) == ["a"]
        dues.append(due - NOW)
    assert 0 <= min(dues) < 1
    assert 9 < max(dues) <= 10
    assert 4 < sum(dues) / len(dues) < 6


@pytest.mark.parametrize("rel", [Rel.DUPLICATE, Rel.PATCH, Rel.ALTERNATE])
def test_what_came_with_its_content_waits_for_nothing(rel: str) -> None:
    one = follower(Pace(spread=10.0))
    assert uris(one.fragment(fragment(1, "a", Link(rel, "data:,x")), NOW)) == ["a"]


def test_a_deletion_waits_for_nothing() -> None:
    one = follower(Pace(spread=10.0))
    assert uris(one.fragment(fragment(1, change=ChangeType.DELETED), NOW)) == ["a"]


def test_what_changes_all_the_time_is_not_put_off_again_and_again() -> None:
    one = follower(Pace(spread=10.0))
    one.fragment(fragment(1), NOW)
    for second in range(2, 12):
        if asked := uris(one.fragment(fragment(second), NOW + second - 1)):
            break
    assert asked == ["a"]


def test_t_waits_before_what_waits_to_be_asked_for() -> None:
    one = follower(Pace(spread=10.0))
    one.fragment(fragment(1), NOW)
    assert one.progress is not None
    assert START <= one.progress.through < at(1)
    assert not one.level


def test_more_changes_than_may_be_in_flight_wait_without_holding_a_place() -> None:
    one = follower(Pace(spread=10.0, in_flight=2))
    for second in range(1, 6):
        assert uris(one.fragment(fragment(second, f"a{second}"), NOW)) == []
    inline = Link(Rel.DUPLICATE, "data:,x")
    assert uris(one.fragment(fragment(6, "b", inline), NOW)) == ["b"]


@pytest.mark.parametrize(
    "document",
    [fragment(5, joins=False), replace(fragment(5), from_=at(6), until=at(5))],
    ids=["gap", "unreadable"],
)
def test_what_everybody_sees_to_be_amiss_is_not_looked_into_by_everybody_at_once(
    document: Document,
) -> None:
    dues = set()
    for seed in range(20):
        one = follower(Pace(spread=10.0, gap_grace=0.5), seed)
        one.fragment(document, NOW)
        due = one.wakeup
        assert due is not None
        assert NOW + 0.5 <= due <= NOW + 10.5
        dues.add(due)
    assert len(dues) == 20


@pytest.mark.parametrize(
    ("listeners", "seconds"), [(0, 0), (100, 0), (200, 1), (1000, 5), (10**6, 30)]
)
def test_how_long_goes_by_how_many_listen_where_that_is_told(
    listeners: int, seconds: float
) -> None:
    assert Pace().spread_among(listeners) == seconds
    assert Pace(spread=2.5).spread_among(listeners) == 2.5
    assert Pace(spread=0.0).spread_among(listeners) == 0.0


def test_few_listeners_wait_for_nothing_and_many_do() -> None:
    few, many = follower(Pace()), follower(Pace())
    few.audience(100)
    many.audience(10_000)
    assert uris(few.fragment(fragment(1), NOW)) == ["a"]
    assert uris(many.fragment(fragment(1), NOW)) == []
