"""Requests that all subscribers have a reason for at once are spread over time."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest
from msgspec.structs import replace

from rsnotify.format.model import Capability, ChangeType, Document, Link, Rel, Resource
from rsnotify.sync.actions import Action, Apply
from rsnotify.sync.follower import Follower
from rsnotify.sync.pace import Pace
from rsnotify.sync.progress import Progress
from tests.core.source import EPOCH, at
from tests.core.world import BASE, OFFER

NOW = 1000.0


def fragment(
    second: int,
    name: str = "a",
    *links: Link,
    change: ChangeType = ChangeType.UPDATED,
    joins: bool = True,
) -> Document:
    entry = Resource(BASE + name, change=change, datetime=at(second), links=links)
    from_ = at(second - 1 if joins else second) - timedelta(milliseconds=not joins)
    return Document(Capability.CHANGE_NOTIFICATION, (entry,), from_=from_, until=at(second))


def follower(pace: Pace, seed: int = 1) -> Follower:
    made = Follower(OFFER, Progress(EPOCH, EPOCH), pace=pace, random=Random(seed))
    made.push_up(NOW)
    return made


def uris(actions: list[Action]) -> list[str]:
    return [
        change.uri.removeprefix(BASE)
        for action in actions
        if isinstance(action, Apply)
        for change in action.changes
    ]


def test_the_resources_of_a_fragment_are_fetched_within_the_spread() -> None:
    dues = []
    for seed in range(200):
        subject = follower(Pace(spread=10.0), seed)
        assert uris(subject.fragment(fragment(1), NOW)) == []
        due = subject.wakeup
        assert due is not None
        assert uris(subject.tick(due)) == ["a"]
        dues.append(due - NOW)
    assert 0 <= min(dues) < 1
    assert 9 < max(dues) <= 10
    assert 4 < sum(dues) / len(dues) < 6


@pytest.mark.parametrize(
    "document",
    [
        *(fragment(1, "a", Link(rel, "data:,x")) for rel in (Rel.DUPLICATE, Rel.PATCH)),
        fragment(1, "a", Link(Rel.ALTERNATE, "data:,x")),
        fragment(1, change=ChangeType.DELETED),
    ],
    ids=["inline content", "an inline patch", "an inline alternate", "a deletion"],
)
def test_what_needs_no_request_is_applied_at_once(document: Document) -> None:
    assert uris(follower(Pace(spread=10.0)).fragment(document, NOW)) == ["a"]


def test_a_change_with_inline_content_does_not_wait_for_others_of_its_fragment() -> None:
    (fetched,) = fragment(2, "a").resources
    inline = fragment(2, "b", Link(Rel.DUPLICATE, "data:,x"))
    both = replace(inline, resources=(fetched, *inline.resources))
    assert uris(follower(Pace(spread=10.0)).fragment(replace(both, from_=EPOCH), NOW)) == ["b"]


def test_a_resource_that_changes_all_the_time_is_not_postponed_each_time() -> None:
    subject = follower(Pace(spread=10.0))
    subject.fragment(fragment(1), NOW)
    for second in range(2, 12):
        if applied := uris(subject.fragment(fragment(second), NOW + second - 1)):
            break
    assert applied == ["a"]


def test_t_waits_for_postponed_changes() -> None:
    subject = follower(Pace(spread=10.0))
    subject.fragment(fragment(1), NOW)
    assert subject.progress is not None
    assert EPOCH <= subject.progress.through < at(1)
    assert not subject.level


def test_postponed_changes_do_not_count_as_in_flight() -> None:
    subject = follower(Pace(spread=10.0, in_flight=2))
    for second in range(1, 6):
        assert uris(subject.fragment(fragment(second, f"a{second}"), NOW)) == []
    inline = Link(Rel.DUPLICATE, "data:,x")
    assert uris(subject.fragment(fragment(6, "b", inline), NOW)) == ["b"]


@pytest.mark.parametrize(
    "document",
    [
        fragment(5, joins=False),
        replace(fragment(5), from_=at(6), until=at(5)),
        replace(fragment(5, "a", Link(Rel.DUPLICATE, "data:,x")), from_=None),
    ],
    ids=["gap", "unreadable", "no interval"],
)
def test_polls_after_a_bad_fragment_are_spread(
    document: Document,
) -> None:
    dues = set()
    for seed in range(20):
        subject = follower(Pace(spread=10.0, gap_grace=0.5), seed)
        subject.fragment(document, NOW)
        due = subject.wakeup
        assert due is not None
        assert NOW + 0.5 <= due <= NOW + 10.5
        dues.add(due)
    assert len(dues) == 20


def test_later_fragments_beyond_a_gap_do_not_postpone_the_poll_that_closes_it() -> None:
    subject = follower(Pace(spread=0.0, gap_grace=0.5))
    subject.fragment(fragment(5, joins=False), NOW)
    subject.fragment(fragment(9, joins=False), NOW + 0.25)
    assert subject.wakeup == NOW + 0.5


@pytest.mark.parametrize(
    ("listeners", "seconds"), [(0, 0), (100, 0), (200, 1), (1000, 5), (10**6, 30)]
)
def test_the_spread_depends_on_the_number_of_listeners_if_known(
    listeners: int, seconds: float
) -> None:
    assert Pace().spread_among(listeners) == seconds
    assert Pace(spread=2.5).spread_among(listeners) == 2.5
    assert Pace(spread=0.0).spread_among(listeners) == 0.0


def test_requests_of_few_listeners_are_not_spread() -> None:
    few, many = follower(Pace()), follower(Pace())
    few.audience(100)
    many.audience(10_000)
    assert uris(few.fragment(fragment(1), NOW)) == ["a"]
    assert uris(many.fragment(fragment(1), NOW)) == []
