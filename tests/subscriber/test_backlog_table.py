"""What the backlog gives back, from SQLite and from PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from rsnotify.format.coverage import EARLIEST, Change, CheckMethod
from rsnotify.format.datetimes import Instant
from rsnotify.format.model import ChangeType, Link, Resource
from rsnotify.sync.actions import (
    ActionList,
    BacklogExtent,
    ClearBacklog,
    StoreBacklog,
    TakeBacklog,
)
from rsnotify.sync.pending_changes import UNWAITED, PendingChanges
from rsnotify.sync.retry import Retry
from rsnotify_subscriber import PostgreSQLState
from rsnotify_subscriber.storage.backlog_table import BacklogTable
from rsnotify_subscriber.storage.destination_state import DestinationState
from tests.core.source import EPOCH


@pytest.fixture(params=["a folder", "PostgreSQL"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BacklogTable]:
    place: Path | PostgreSQLState = tmp_path / "state"
    if request.param == "PostgreSQL":
        place = PostgreSQLState(request.getfixturevalue("postgresql"))
    with closing(DestinationState(place)) as state:
        yield state.backlog


def at(seconds: int) -> Instant:
    return EPOCH + timedelta(seconds=seconds)


def change(name: str, seconds: int, check: CheckMethod = CheckMethod.DATE) -> Change:
    entry = Resource(name, change=ChangeType.UPDATED, datetime=at(seconds), hash=f"md5:{seconds}")
    return Change(name, ChangeType.UPDATED, at(seconds), entry, check=check)


def store(*changes: Change) -> StoreBacklog:
    return StoreBacklog(tuple((one, one.at) for one in changes))


def test_the_resources_with_the_earliest_changes_are_taken_first(table: BacklogTable) -> None:
    changes = [change("a", 3), change("b", 1), change("c", 2), change("b", 9)]
    assert table.use(store(*changes)) == (BacklogExtent(3, at(1)), [])
    extent, taken = table.use(TakeBacklog(2))
    assert taken == [(change("b", 9), at(1)), (change("c", 2), at(2))]
    assert extent == BacklogExtent(1, at(3))
    assert table.use(TakeBacklog(2)) == (BacklogExtent(), [(change("a", 3), at(3))])


def test_the_changes_of_named_resources_are_taken_and_no_others(table: BacklogTable) -> None:
    table.use(store(change("a", 1), change("b", 2)))
    taken = table.use(TakeBacklog(9, ("b", "unknown")))
    assert taken == (BacklogExtent(1, at(1)), [(change("b", 2), at(2))])
    assert table.use(ClearBacklog()) == (BacklogExtent(), [])
    assert table.use(TakeBacklog(9, ("a",))) == (BacklogExtent(), [])
    assert table.use(store(change("c", 4)))[0] == BacklogExtent(1, at(4)), "it is made again"


def test_an_earlier_change_that_comes_later_holds_up_t(table: BacklogTable) -> None:
    table.use(store(change("a", 5)))
    assert table.use(StoreBacklog(((change("a", 6), EARLIEST),)))[0].since == EARLIEST
    assert table.use(TakeBacklog(1))[1] == [(change("a", 6), EARLIEST)]


def test_every_part_of_a_change_is_kept_and_coarse_datetimes_stay_coarse(
    table: BacklogTable,
) -> None:
    day = at(0).replace(fold=1)
    links = Link("alternate", "b", modified=day), Link("alternate", "c", modified=at(1))
    entry = Resource(
        "a", lastmod=day, change=ChangeType.CREATED, datetime=day, length=3, links=links
    )
    coarse = Change("A", ChangeType.CREATED, day, entry, check=CheckMethod.COMPARE)
    table.use(StoreBacklog(((coarse, UNWAITED), (change("b", 1), at(1)))))
    (found, since), (exact, _) = sorted(table.use(TakeBacklog(2))[1], key=lambda one: one[0].uri)
    assert (found, since) == (coarse, UNWAITED)
    modified = [link.modified for link in found.resource.links]
    moments = [found.at, found.resource.datetime, found.resource.lastmod, *modified]
    assert [one.fold for one in moments if one is not None] == [1, 1, 1, 1, 0]
    assert exact.at.fold == 0


def test_resources_with_the_same_hash_are_taken_together_and_not_merged(
    table: BacklogTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.hash", lambda _: 7)
    table.use(store(change("a", 1), change("b", 2), change("a", 3)))
    extent, taken = table.use(TakeBacklog(9, ("b",)))
    monkeypatch.undo()
    assert taken == [(change("a", 3), at(1)), (change("b", 2), at(1))]
    assert extent == BacklogExtent()


@pytest.mark.parametrize("seed", range(20))
def test_changes_that_were_in_the_backlog_are_merged_like_those_in_memory(
    tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    direct, later = (PendingChanges(Retry(), Random(1), ActionList(), 0) for _ in range(2))
    with closing(DestinationState(tmp_path / "state")) as state:
        for _ in range(30):
            check = random.choice([*CheckMethod, CheckMethod.DATE, CheckMethod.COMPARE])
            one = change(random.choice("abcd"), random.randrange(6), check)
            if random.random() < 0.3:
                entry = Resource(one.uri, hash=one.resource.hash)
                one = Change(one.uri, ChangeType.UPDATED, one.at, entry, check=check)
            elif random.random() < 0.3:
                one = Change(one.uri, ChangeType.DELETED, one.at, one.resource, check=check)
            since = random.choice((one.at, EARLIEST))
            direct.add(one, since)
            state.backlog.use(StoreBacklog(((one, since),)))
        for one, since in state.backlog.use(TakeBacklog(9))[1]:
            later.add(one, since)
    assert later.low_water() == direct.low_water()
    by_uri = [sorted(each.dispatch(9, 0), key=lambda one: one.uri) for each in (direct, later)]
    assert by_uri[0] == by_uri[1]
