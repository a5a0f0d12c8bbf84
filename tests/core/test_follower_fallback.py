"""Which documents a Destination reads to catch up, and in which order."""

from __future__ import annotations

import re
from datetime import timedelta
from random import Random

import pytest

from rsnotify.format.datetimes import MICROSECOND
from rsnotify.format.offer import Offer
from tests.core.world import BASE, EVERYTHING, Destination, Source


@pytest.fixture
def source() -> Source:
    source = Source(per_list=2)
    for name in "abcde":
        source.change(name)
    source.pack(1)
    source.clock += MICROSECOND
    source.list_resources()
    source.dump_resources()
    return source


def follow(source: Source, *offered: str) -> Destination:
    """Follow a part of the documents, until level."""
    named = {name: getattr(EVERYTHING, name) for name in offered}
    destination = Destination(source, Random(1), Offer(**named))
    destination.settle()
    return destination


def read(destination: Destination) -> list[str]:
    return [re.sub(r"-\d.*", "", uri.removeprefix(BASE)) for uri in destination.fetches]


def poll(destination: Destination) -> list[str]:
    """Poll once, and return the documents read."""
    destination.fetches.clear()
    destination.poll()
    assert destination.content == destination.source.state
    return read(destination)


def lose_lists(source: Source) -> None:
    """Make the Change Lists reach no further back than now."""
    source.kept = 0
    source.rotate(1)
    source.kept = 100


def test_a_first_copy_comes_in_packages_and_costs_no_get(source: Source) -> None:
    destination = follow(source, "resource_list", "resource_dump", "change_list")
    assert read(destination) == [
        "resourcedump.xml", *["resources"] * 3, "changelist.xml", "changelist-archive.xml",
        "resourcelist.xml", "changelist.xml", "changelist-archive.xml",
    ]  # fmt: skip
    assert destination.content == source.state
    assert (destination.gets, destination.unpacked) == (0, 5)


def test_a_later_baseline_compares_the_resource_list_and_fetches_little(source: Source) -> None:
    destination = follow(source, "resource_list", "resource_dump", "change_list")
    source.change("f")
    source.change("a", deleted=True)
    lose_lists(source)
    source.finish(EVERYTHING)
    assert poll(destination) == [
        "changelist.xml", "changelist-archive.xml", "changelist.xml",
        "resourcelist.xml", "changelist.xml", "changelist-archive.xml",
    ]  # fmt: skip
    assert destination.gets == 1


def test_the_change_dump_is_read_if_the_change_lists_do_not_reach_back(
    source: Source,
) -> None:
    offered = ("resource_list", "change_list", "change_list_archive", "change_dump")
    destination = follow(source, *offered)
    destination.gets = 0
    for name in "fgff":
        source.change(name)
    source.pack()
    lose_lists(source)
    source.change("h")
    assert poll(destination) == [
        "changelist.xml", "changelist-archive.xml", "changelist.xml",
        "changedump.xml", "changes", "changes", "changelist.xml",
    ]  # fmt: skip
    assert (destination.gets, destination.unpacked) == (1, 3)
    assert destination.notes[-5:] == [
        f"continuing with the Change Dump {EVERYTHING.change_dump}",
        "2 changes from the Change Dump " + destination.fetches[4],
        "2 changes from the Change Dump " + destination.fetches[5],
        f"continuing with the Change List {EVERYTHING.change_list}",
        f"1 change from the Change List {EVERYTHING.change_list}",
    ]


def test_closed_change_dumps_are_read_from_their_archive(source: Source) -> None:
    destination = follow(source, "resource_list", "change_dump", "change_dump_archive")
    for name in "fghi":
        source.change(name)
    source.pack()
    source.archive()
    source.change("j")
    source.pack(1)
    assert poll(destination)[:3] == [
        "changedump.xml", "changedump-archive.xml", "changedump",
    ]  # fmt: skip
    assert any("Change Dump Archive" in note for note in destination.notes)


@pytest.mark.parametrize("restarted", [False, True])
def test_the_packages_of_a_source_with_only_a_dump_are_requested_once(
    source: Source, restarted: bool
) -> None:
    destination = follow(source, "resource_dump")
    assert destination.content == source.state
    if restarted:
        destination.restart()
        destination.settle()
    assert poll(destination) == ["resourcedump.xml"]
    source.change("a", deleted=True)
    source.dump_resources()
    assert poll(destination) == ["resourcedump.xml", "resources", "resources"]


def test_without_change_lists_the_resource_list_supplements_an_old_dump(
    source: Source,
) -> None:
    source.change("f")
    source.list_resources()
    destination = follow(source, "resource_list", "resource_dump")
    assert read(destination)[-1] == "resourcelist.xml"
    assert destination.content == source.state


def test_a_gap_is_closed_by_a_dump_younger_than_the_list(source: Source) -> None:
    destination = follow(source, "resource_list", "resource_dump", "change_list")
    source.change("f")
    lose_lists(source)
    source.dump_resources()
    source.change("g")
    destination.poll()
    assert destination.content == source.state
    assert destination.follower.level


def test_a_list_dated_ahead_closes_a_gap_once_that_time_has_come(source: Source) -> None:
    destination = follow(source, "resource_list", "change_list")
    source.change("f")
    lose_lists(source)
    source.list_resources()
    source.change("g")
    source.read_later = -timedelta(hours=1)
    work_for_a_while(destination)
    assert not destination.follower.level
    source.read_later = timedelta()
    destination.poll()
    assert destination.content == source.state
    assert destination.follower.level


@pytest.mark.parametrize("offered", ["change_list", "change_dump"])
def test_without_a_list_of_resources_a_gap_remains_and_t_waits_before_it(
    source: Source, offered: str
) -> None:
    destination = follow(source, offered)
    assert destination.follower.level
    before = destination.follower.progress
    assert before is not None
    source.kept = 0
    for name in "fgh":
        source.change(name)
    source.rotate(1)
    source.pack(1)
    source.change("i")
    source.pack(1)
    for _ in range(2):
        work_for_a_while(destination)
        follower = destination.follower
        assert (follower.level, follower.is_stuck(destination.now)) == (False, True)
        assert follower.progress is not None
        assert follower.progress.through == before.through
        assert any("no document covers the changes from" in note for note in destination.notes)
        assert BASE + "i" in destination.content
        destination.notes.clear()
        destination.restart()
    source.clock += MICROSECOND
    source.list_resources()
    destination.offer = Offer(
        resource_list=EVERYTHING.resource_list, **{offered: getattr(EVERYTHING, offered)}
    )
    destination.restart()
    destination.settle()
    assert destination.content == source.state


def work_for_a_while(destination: Destination) -> None:
    """Run a Destination that cannot become level for some polls."""
    for _ in range(10):
        while destination.pending:
            destination.step()
        destination.tick()
    while destination.pending:
        destination.step()


def test_it_stays_level_while_it_polls_until_there_is_something_new(source: Source) -> None:
    for offered in (("resource_list", "change_list"), ("resource_list",), ("resource_dump",)):
        destination = follow(source, *offered)
        destination.tick()
        assert destination.pending
        assert destination.follower.level
        destination.settle()
        source.change("f")
        source.list_resources()
        source.dump_resources()
        destination.tick()
        while destination.pending and destination.follower.level:
            destination.step()
        assert not destination.follower.level
        destination.settle()
        assert destination.content == source.state


def test_it_is_not_level_while_something_is_known_to_be_missing(source: Source) -> None:
    destination = follow(source, "resource_list", "change_list", "change_dump")
    destination.follower.push_gap(destination.now)
    assert not destination.follower.level
    destination.restart()
    destination.settle()
    source.change("f")
    source.pack()
    lose_lists(source)
    destination.tick()
    destination.step()
    assert destination.notes[-1].startswith("continuing with the Change List Archive")
    assert not destination.follower.level


def test_no_change_is_missed_of_a_second_that_was_still_running() -> None:
    source = Source(granularity=timedelta(seconds=1), per_list=1)
    destination = follow(source, "resource_list", "change_list", "change_list_archive")
    source.change("a")
    poll(destination)
    source.change("b", same_instant=True)
    source.change("c")
    source.rotate()
    poll(destination)
