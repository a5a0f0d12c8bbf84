"""A copy is right, or the follower says why it may not be, whatever documents and hubs contain.

Faults of the Source's documents last; a hub's lies, old answers of caches and failures end before
the copy is checked. Lists may lag behind push for a while (`Pace.poll`), so more time than that
passes before each check.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rsnotify.format.model import ChangeType, Document
from rsnotify.format.offer import Offer
from rsnotify.sync.pace import Pace
from tests.core.faulty import Faults, FaultySource, Liar
from tests.core.source import EVERYTHING, OFFER
from tests.core.world import PACE, Destination
from tests.examples_count import examples

#: Everything is compared where documents contradict each other, and perhaps as a matter of routine.
HONEST = replace(PACE, compare=1e9, repair=1.0)
ROUTINE = replace(HONEST, compare=7.0)
AHEAD = st.sampled_from([timedelta(), timedelta(seconds=12), timedelta(hours=1)])
#: After so many polls a difference is noticed, and after so many it is repaired.
GLANCE, LONG = 2.5, 20.0
NAMES = st.sampled_from("abcd")
SEVERAL = st.lists(NAMES, min_size=1, max_size=3)
CHANGES = [st.tuples(st.just("change"), NAMES, st.booleans())] * 3
CHECKS = [
    st.tuples(st.just("check"), st.sampled_from([GLANCE, GLANCE, LONG])),
    st.tuples(st.just("work"), st.integers(1, 6)),
    st.tuples(st.just("wait"), st.sampled_from([0.3, 2.0])),
    st.tuples(st.just("crash")),
]
ROTATE, LIST = st.tuples(st.just("rotate")), st.tuples(st.just("list_resources"))
LATE = [
    st.tuples(st.just("move_here"), NAMES),
    st.tuples(st.just("begin_transaction"), NAMES, st.booleans()),
    st.tuples(st.just("commit")),
    ROTATE,
]
PUSHED = [
    st.tuples(st.just("emit")),
    st.tuples(st.just("deliver"), st.integers(0, 5)),
]
KINDS = st.sampled_from([ChangeType.DELETED, ChangeType.UPDATED])
LIES = [
    st.tuples(st.just("invent"), NAMES, KINDS, AHEAD, st.booleans()),
    st.tuples(st.just("withhold"), st.integers(0, 2)),
]
BACKUPS = [
    st.tuples(st.just("back_up")),
    st.tuples(st.just("restore")),
    st.tuples(st.just("be_restored"), SEVERAL, SEVERAL),
]
CACHES = [st.tuples(st.just("spoil"), *[st.sampled_from([0.0, 0.3])] * 2)]
SERVER = [
    st.tuples(st.just("lose"), NAMES),
    st.tuples(st.just("find")),
    st.tuples(st.just("lose_for_long"), NAMES),
]
SLOWLY = st.tuples(st.just("list_slowly"), SEVERAL)

RIGHT = st.just(Faults())
ORDERS = st.sampled_from(["as it came", "newest first", "shuffled"])
DISORDER = st.builds(Faults, order=ORDERS, rotates=st.booleans())
#: The first copy is made at any time. If lists are closed, it is made first: after a Resource List
#: of unknown time, no document shows which lists were closed since.
CLOCKS = st.builds(
    Faults,
    at_ahead=AHEAD,
    at_end=st.booleans(),
    dateless=st.booleans(),
    until_ahead=st.none() | AHEAD,
    rotates=st.just(False),
)
COARSE = st.builds(
    Faults,
    order=st.sampled_from(["as it came", "as it is dated"]),
    coarse=st.sampled_from(["updates", "deletions", "some"]),
    rotates=st.booleans(),
)
ALIASES = st.builds(Faults, aliases=st.just(True), rotates=st.booleans())
ROTATED = st.builds(Faults, at_ahead=AHEAD, until_ahead=st.none() | AHEAD)

BOTH = st.sampled_from([HONEST, ROUTINE])
#: No document shows that a new Resource List lacks a change that is dated before its `at`, was
#: made later, and is in a closed list.
NO_ROUTINE = st.just(HONEST)

USUAL, INDEX = "a Resource List, a Change List and its archive", "a Change List Index"
#: What the Sources offer.
OFFERS = {
    USUAL: OFFER,
    INDEX: OFFER,
    "everything": EVERYTHING,
    "only a Resource List": Offer(resource_list=EVERYTHING.resource_list),
    "only a Resource Dump": Offer(resource_dump=EVERYTHING.resource_dump),
}

LISTED_ANEW = "with a new Resource List"

#: Families of faults, finally all of them: the pace, the faults of the documents, the steps that
#: may occur besides changes and checks, and whether the documents suffice for a right copy, or do
#: once there is a new Resource List.
FAMILIES = {
    "a Resource List that is dated ahead or at its end": (BOTH, CLOCKS, [LIST, SLOWLY], True),
    "lists that are dated ahead and closed": (BOTH, ROTATED, [ROTATE], True),
    "late entries, old dates and any order": (BOTH, DISORDER, LATE, True),
    "late entries and new Resource Lists": (NO_ROUTINE, DISORDER, [*LATE, LIST], True),
    "coarse datetimes": (BOTH, COARSE, [*PUSHED, ROTATE, LIST], True),
    "URIs in several spellings": (BOTH, ALIASES, [*PUSHED, ROTATE, LIST], True),
    "a hub that lies": (BOTH, RIGHT, [*PUSHED, *LIES, ROTATE], True),
    "a Source that is restored": (BOTH, RIGHT, [*BACKUPS, *PUSHED, ROTATE, LIST], LISTED_ANEW),
    "caches": (BOTH, DISORDER, [*CACHES, *PUSHED, ROTATE], True),
    "a server that lacks what is listed": (BOTH, RIGHT, [*SERVER, *PUSHED, ROTATE, LIST], False),
    "everything but late entries": (BOTH, st.one_of(CLOCKS, DISORDER),
        [ROTATE, LIST, *PUSHED, *LIES, *BACKUPS, *CACHES], False),
    "everything but new Resource Lists": (BOTH, st.one_of(CLOCKS, DISORDER),
        [*LATE, *PUSHED, *LIES, *BACKUPS, *CACHES], False),
}  # fmt: skip


class Play:
    """One history of a Source, a hub and a Destination."""

    def __init__(self, faults: Faults, seed: int, pace: Pace, offer: str = USUAL) -> None:
        self.source = FaultySource(faults, index=offer == INDEX)
        self.offer = OFFERS[offer]
        self.pace = pace
        self.is_restored = False
        self.destination = Destination(self.source, Random(seed), self.offer, pace, verifies=True)
        self.destination.lied_to = True
        self.hub = Liar(self.source, self.destination)
        self.wire: list[Document] = []

    def steps(self, *steps: tuple) -> None:
        for step in steps:
            self.step(step)

    def is_right(self) -> bool:
        """Return whether the copy is level at once, or after some more time."""
        return self.check() or self.check()

    def step(self, step: tuple) -> None:
        destination = self.destination
        match step:
            case ("emit",):
                self.wire.append(self.source.fragment(3))
            case "deliver", place if self.wire:
                destination.push(self.wire.pop(place % len(self.wire)))
            case "deliver", _:
                pass
            case (("invent" | "withhold" as lie), *details):
                getattr(self.hub, lie)(*details)
            case "spoil", broken, stale:
                destination.broken, destination.stale = broken, stale
            case "work", count:
                for _ in range(count):
                    destination.step()
            case "wait", seconds:
                destination.tick(seconds)
            case ("crash",):
                destination.restart()
            case "check", polls:
                self.check(polls)
            case "list_slowly", names:
                self.source.list_resources()
                self._change(names)
                self.source.list_resources()
            case "be_restored", names, others:
                self.source.back_up()
                self._change(names)
                self.check(GLANCE)
                self.step(("restore",))
                self._change(others)
            case ("restore",):
                self.source.restore()
                self.is_restored = True
            case "lose_for_long", name:
                self.source.lose(name)
                self._change(name)
                self.check(LONG)
                destination.restart()
            case what, *details:
                getattr(self.source, what)(*details)

    def _change(self, names: Iterable[str]) -> None:
        for name in names:
            self.source.change(name)

    def list_if_nothing_else_does(self) -> None:
        """Write a Resource List, and a Resource Dump, if there is no Change List."""
        if self.offer.change_list is None:
            self.source.list_all()

    def check(self, polls: float = LONG) -> bool:
        """Advance the time without faults; return whether the copy is level."""
        destination, follower = self.destination, self.destination.follower
        if self.is_restored and self.pace is ROUTINE:
            # An older Resource List may be all that shows what the Source has lost.
            polls = max(polls, 1.5 * ROUTINE.compare)
        self.list_if_nothing_else_does()
        destination.broken = destination.stale = 0.0
        ends = destination.now + polls * PACE.poll
        while destination.now < ends:
            wakeup = follower.wakeup or ends
            destination.tick(min(PACE.poll / 2, max(0.0, wakeup - destination.now)))
            destination.work()
        # As a program does every second.
        destination.progress = follower.progress or destination.progress
        assert follower.level or follower.doubts
        if follower.level:
            assert destination.content == self.source.state, destination.notes[-8:]
        return follower.level


CHANGE_A, CHANGE_B = ("change", "a", False), ("change", "b", False)
RESTORED = ("be_restored", ["a"], ["a"])


def test_a_routine_comparison_does_not_hide_that_the_source_was_restored() -> None:
    play = Play(Faults(), 0, ROUTINE)
    play.check()
    play.steps(RESTORED, RESTORED, ("list_resources",), ("crash",), ("work", 1))
    play.step(("be_restored", ["b", "a"], ["a"]))
    assert play.is_right()


def test_a_run_that_ends_leaves_it_to_the_next_to_detect_what_a_list_has_lost() -> None:
    """The list is closed in between, and nothing in the next one shows the loss."""
    play = Play(Faults(), 0, HONEST)
    play.step(("check", GLANCE))
    play.step(("invent", "a", ChangeType.UPDATED, timedelta(), True))
    play.step(("be_restored", ["b"], ["a", "a"]))
    play.steps(("wait", 0.3), ("work", 6), ("rotate",), ("crash",))
    assert play.is_right()


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_routine_comparison_keeps_what_was_dated_by_the_minute_after_its_list(
    is_deleted: bool,
) -> None:
    play = Play(Faults(coarse="updates"), 0, ROUTINE)
    play.check()
    play.steps(CHANGE_A, ("change", "a", is_deleted), ("list_resources",))
    play.steps(CHANGE_A, CHANGE_A, ("rotate",))
    assert play.is_right()


def test_a_routine_comparison_does_not_hide_a_deletion_before_the_end_of_its_list() -> None:
    faults = Faults(at_ahead=timedelta(seconds=12), at_end=True, rotates=False)
    play = Play(faults, 0, ROUTINE)
    play.step(("change", "a", False))
    play.step(("change", "d", False))
    play.step(("check", GLANCE))
    play.step(("list_slowly", ["d"]))
    play.step(("check", LONG))
    play.step(("change", "d", True))
    assert play.check() or play.check()


def test_a_copy_is_in_doubt_after_a_comparison_until_the_change_list_was_read_again() -> None:
    play = Play(Faults(at_ahead=timedelta(seconds=12)), 0, ROUTINE, "everything")
    assert play.check()
    play.steps(CHANGE_A, ("check", 2.5))
    assert play.is_right()


@pytest.mark.parametrize("steps", [1, 3])
def test_a_resource_list_older_than_the_last_one_is_a_reason_for_doubt(steps: int) -> None:
    play = Play(Faults(), 0, ROUTINE)
    play.check()
    play.steps(("back_up",), CHANGE_A, ("list_resources",), ("crash",))
    play.steps(("work", steps), ("restore",))
    for _ in range(2):
        assert not play.check()
        assert any("older" in doubt for doubt in play.destination.follower.doubts)
        play.step(("crash",))
    play.step(("list_resources",))
    assert play.check()


def test_a_comparison_with_a_list_dated_too_late_keeps_what_a_closed_list_announced() -> None:
    play = Play(Faults(at_ahead=timedelta(seconds=12)), 0, ROUTINE)
    play.check()
    play.steps(CHANGE_A, CHANGE_B, ("rotate",))
    assert play.is_right()


def test_a_resource_that_its_server_lacks_stays_a_doubt_while_a_resource_list_has_it() -> None:
    play = Play(Faults(), 0, HONEST)
    play.check()
    play.steps(("lose_for_long", "a"), ("list_resources",), CHANGE_B)
    assert not play.check()
    play.step(("find",))
    assert play.check()


def test_an_invented_resource_that_is_being_verified_is_removed_though_it_is_dated_later() -> None:
    play = Play(Faults(), 4, HONEST)
    play.check()
    play.step(("list_resources",))
    play.steps(*(("invent", name, ChangeType.UPDATED, timedelta(), True) for name in "ab"))
    assert play.is_right()


def test_a_copy_is_in_doubt_after_a_restart_until_the_lists_were_read() -> None:
    play = Play(Faults(), 0, HONEST)
    assert play.check()
    play.steps(CHANGE_A, ("crash",))
    assert not play.destination.follower.level
    assert play.check()


@pytest.mark.parametrize("ahead", [timedelta(), timedelta(hours=1)])
@pytest.mark.parametrize("is_listed", [False, True])
def test_an_invented_resource_that_is_missing_is_forgotten_after_a_restart_unless_it_is_listed(
    is_listed: bool, ahead: timedelta
) -> None:
    play = Play(Faults(), 0, ROUTINE)
    if is_listed:
        play.steps(CHANGE_A, ("list_resources",))
    assert play.check()
    play.steps(("lose", "a"), ("invent", "a", ChangeType.UPDATED, ahead, False))
    play.steps(*[("wait", 0.15), ("work", 6)] * 17)
    destination = play.destination
    destination.progress = destination.follower.progress
    assert destination.progress is not None
    assert destination.progress.missing
    play.step(("crash",))
    assert play.check()


def test_an_invented_deletion_is_verified_after_a_restart() -> None:
    play = Play(Faults(), 0, HONEST)
    play.step(CHANGE_A)
    assert play.check()
    play.step(("invent", "a", ChangeType.DELETED, timedelta(hours=1), False))
    play.steps(("work", 6), ("crash",))
    assert play.is_right()


def test_an_invented_deletion_dated_ahead_hides_nothing_after_an_invented_update() -> None:
    play = Play(Faults(rotates=False), 0, HONEST)
    play.step(("invent", "a", ChangeType.DELETED, timedelta(hours=1), False))
    play.step(("check", GLANCE))
    play.step(("invent", "a", ChangeType.UPDATED, timedelta(), False))
    play.steps(("check", LONG), CHANGE_A)
    assert play.is_right()


@pytest.mark.parametrize("kind", [ChangeType.UPDATED, ChangeType.DELETED])
@pytest.mark.parametrize("ahead", [timedelta(), timedelta(hours=1)])
@pytest.mark.parametrize("offer", ["only a Resource List", "only a Resource Dump"])
def test_an_invented_change_is_verified_where_the_source_has_no_change_list(
    kind: ChangeType, ahead: timedelta, offer: str
) -> None:
    play = Play(Faults(), 0, HONEST, offer)
    play.step(CHANGE_A)
    assert play.check()
    play.steps(("invent", "a", kind, ahead, False), ("work", 6), CHANGE_B)
    assert play.is_right()


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), seed=st.integers(0, 2**16))
def test_a_level_copy_equals_the_source(family: str, data: st.DataObject, seed: int) -> None:
    play(family, data, seed)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=1_000, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), seed=st.integers(0, 2**16))
def test_a_level_copy_equals_the_source_in_many_more_histories(
    family: str, data: st.DataObject, seed: int
) -> None:
    play(family, data, seed)


def play(family: str, data: st.DataObject, seed: int) -> None:
    """Play a history, and check the copy during it, after it, and once the Source is healed."""
    pace, faults, happens, suffices = FAMILIES[family]
    play = Play(data.draw(faults), seed, data.draw(pace), data.draw(st.sampled_from([*OFFERS])))
    if play.source.faults.rotates:
        play.check()
    play.steps(*data.draw(st.lists(st.one_of(*CHANGES, *happens, *CHECKS), max_size=25)))
    is_level = play.is_right()
    if suffices == LISTED_ANEW and not is_level:
        play.source.list_resources()
        is_level = play.check()
    assert is_level or not suffices, play.destination.follower.doubts
    play.source.heal()
    play.list_if_nothing_else_does()
    play.destination.settle()
    play.check()
    assert play.check(), play.destination.follower.doubts
