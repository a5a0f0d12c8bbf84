"""What a Destination does if a Source's datetimes go back, or are far ahead."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rsnotify.format.model import Capability, Document, Resource
from rsnotify.format.offer import Offer
from tests.core.jumping import OFFER, JumpingSource
from tests.core.world import BASE, EPOCH, PACE, PATIENT, Destination
from tests.examples_count import examples

HOUR, DAY, YEARS = timedelta(hours=1), timedelta(days=1), timedelta(days=30_000)
#: Nearly the end of the calendar, as Sources may write "never".
NEVER = datetime(9999, 12, 31, 23, 59, tzinfo=UTC) - EPOCH


@pytest.fixture
def source() -> JumpingSource:
    source = JumpingSource()
    for name in "abcd":
        source.change(name)
    source.list_resources()
    source.change("a")
    return source


def copy_of(source: JumpingSource, offer: Offer = OFFER) -> Destination:
    destination = Destination(source, Random(1), offer)
    destination.lied_to = True  # by the datetimes
    destination.settle()
    return destination


@pytest.fixture
def destination(source: JumpingSource) -> Destination:
    return copy_of(source)


def check_right(
    source: JumpingSource, destination: Destination, steps_back: int | None = None
) -> None:
    """Check the copy, and how often it was found that the clock has gone back."""
    assert destination.content == source.state
    assert steps_back in (None, destination.steps_back)
    assert through(destination) <= source.today


def wait(destination: Destination, seconds: float) -> None:
    """Advance the time, and poll the lists meanwhile."""
    end = destination.now + seconds
    while destination.now < end:
        wakeup = destination.follower.wakeup
        destination.tick(min(end, max(wakeup or end, destination.now)) - destination.now)
        destination.work()


def through(destination: Destination) -> datetime:
    progress = destination.follower.progress
    assert progress is not None
    return progress.through


def make_dated_ahead(source: JumpingSource, destination: Destination, by: timedelta) -> None:
    """Date one change wrongly, and let it be read."""
    source.error = by
    source.change("a")
    destination.poll()
    source.error = timedelta()


@pytest.fixture(params=[HOUR, YEARS, NEVER], ids=["an hour", "years", "never"])
def by(request: pytest.FixtureRequest) -> timedelta:
    """How far ahead a date is."""
    return request.param


@pytest.fixture
def misled(source: JumpingSource, destination: Destination, by: timedelta) -> Destination:
    """A Destination that has read a change which was dated ahead."""
    make_dated_ahead(source, destination, by)
    return destination


def test_changes_after_an_entry_with_a_wrong_date_reveal_it_at_once(
    source: JumpingSource, misled: Destination
) -> None:
    assert through(misled) > source.today
    source.change("b")
    source.change("a")
    misled.poll()
    check_right(source, misled, steps_back=1)
    source.change("c")
    source.change("a", deleted=True)
    misled.poll()
    check_right(source, misled, steps_back=1)


def test_if_an_entry_with_a_wrong_date_was_rotated_away_everything_is_compared(
    source: JumpingSource, misled: Destination
) -> None:
    source.change("b")
    source.rotate()  # b is in no list any more
    source.change("c")
    wait(misled, PACE.poll)
    assert misled.content[BASE + "c"] == source.state[BASE + "c"]
    source.change("a")
    source.list_resources()
    wait(misled, 3 * PACE.stale)
    check_right(source, misled, steps_back=1)
    assert misled.follower.level
    assert any("clock of the Source has gone back" in note for note in misled.notes)


def test_a_list_that_begins_with_a_wrong_date_reveals_it(
    source: JumpingSource, misled: Destination
) -> None:
    source.rotate()
    for name in "bc":
        source.change(name)
        wait(misled, PACE.poll)
        assert misled.content[BASE + name] == source.state[BASE + name]
    source.list_resources()
    wait(misled, 3 * PACE.stale)
    check_right(source, misled)


@pytest.mark.parametrize("crashes", [False, True])
def test_a_run_that_only_catches_up_needs_no_second_poll_whether_or_not_it_crashes(
    source: JumpingSource, misled: Destination, crashes: bool
) -> None:
    source.change("b")
    source.rotate()
    source.change("c")
    source.list_resources()
    misled.restart()
    if crashes:  # during the comparison
        while not misled.steps_back:
            misled.step()
        assert not misled.follower.level
        misled.restart()
    misled.settle()
    check_right(source, misled)


def test_the_date_of_a_resource_list_is_not_trusted_beyond_the_time_it_was_sent(
    source: JumpingSource, by: timedelta
) -> None:
    source.error = by
    source.list_resources()
    source.error = timedelta()
    destination = copy_of(source)
    assert through(destination) <= source.today
    for name in "abac":
        source.change(name)
        destination.poll()
        check_right(source, destination, steps_back=0)


def restore_what_was_followed(source: JumpingSource, destination: Destination) -> None:
    """Restore a Source without two changes that a Destination has, and make another."""
    kept = source.keep()
    source.change("b")
    source.change("e")
    destination.poll()
    source.restore(kept)
    source.change("c")
    source.list_resources()
    destination.poll()


def test_a_source_restored_from_a_backup_is_compared_and_again_after_the_shortest_interval(
    source: JumpingSource, destination: Destination
) -> None:
    restore_what_was_followed(source, destination)
    assert destination.content == source.state
    assert destination.steps_back == 1
    began = destination.now
    restore_what_was_followed(source, destination)  # it is not level before it was compared
    assert destination.steps_back == 2
    assert destination.now >= began + PACE.repair / 2
    assert destination.content == source.state


class SplitSource(JumpingSource):
    """A Source whose Change List is split after its first rotation: only then is it an index."""

    def _list_changes(self, found: dict[str, Document]) -> None:
        super()._list_changes(found)
        assert OFFER.change_list is not None
        if self._begins:
            found[BASE + "open.xml"] = found[OFFER.change_list]
            entries = (Resource(BASE + "open.xml", from_=self.open_from),)
            found[OFFER.change_list] = Document(
                Capability.CHANGE_LIST, entries, index=True, from_=EPOCH
            )

    def restore(self, kept: tuple[int, dict[str, str]]) -> None:
        super().restore(kept)
        self.open_from, self._begins = EPOCH, 0


def test_a_source_restored_to_before_its_first_rotation_is_compared() -> None:
    source = SplitSource()
    source.change("a")
    source.list_resources()
    destination = copy_of(source)
    kept = source.keep()
    source.change("b")
    destination.poll()
    source.rotate()
    source.change("a")
    destination.poll()
    source.restore(kept)
    source.list_resources()
    destination.read_lists()  # the list ends before the last change, like an old copy
    source.change("a")
    destination.poll()
    check_right(source, destination, steps_back=1)


def test_without_a_resource_list_a_source_is_followed_from_its_new_time_on(
    source: JumpingSource,
) -> None:
    destination = copy_of(source, replace(OFFER, resource_list=None))
    make_dated_ahead(source, destination, YEARS)
    source.rotate()
    for name in "bcb":
        source.change(name)
        wait(destination, PACE.stale)
    check_right(source, destination, steps_back=1)


def test_an_older_list_does_not_remove_changes_applied_while_t_waited_for_days(
    source: JumpingSource,
) -> None:
    source.list_resources()
    destination = Destination(source, Random(1), OFFER, PATIENT)
    destination.lied_to = True
    destination.settle()
    source.change("a")
    del source.state[BASE + "a"]  # T waits for it
    source.pass_time(3 * DAY)
    source.change("e")
    wait(destination, PACE.poll)
    assert destination.content[BASE + "e"] == source.state[BASE + "e"]
    source.rotate()
    source.change("b")
    destination.restart()
    wait(destination, PACE.poll)
    assert source.lists[-1].at < source.history[-2].at
    assert destination.content[BASE + "e"] == source.state[BASE + "e"]
    assert destination.content[BASE + "b"] == source.state[BASE + "b"]


class Replicas(JumpingSource):
    """A Source with two replicas; one of them is late."""

    def __init__(self) -> None:
        super().__init__()
        self.old: list[Document] = []
        self.is_old = False

    def document(self, uri: str) -> Document:
        document = super().document(uri)
        if uri == OFFER.change_list:
            self.old.append(document)
            if self.is_old:
                return self.old.pop(0)
        return document


@pytest.fixture
def replicas() -> tuple[Replicas, Destination]:
    source = Replicas()
    for name in "ab":
        source.change(name)
    source.list_resources()
    return source, copy_of(source)


@pytest.mark.parametrize("restarts", [False, True])
def test_an_old_copy_of_a_list_leads_to_no_comparison(
    replicas: tuple[Replicas, Destination], restarts: bool
) -> None:
    source, destination = replicas
    for name in "abc" if restarts else "abab":
        source.change(name)
        destination.poll()
    source.is_old = True
    at = through(destination)
    if restarts:
        destination.restart()
        destination.settle()
        assert destination.steps_back == 0
    else:
        for _ in range(4):
            destination.poll()
    source.is_old = False
    destination.poll()
    assert destination.content == source.state
    assert destination.steps_back == 0
    assert through(destination) == at


def test_replicas_that_alternate_do_not_repeat_old_changes(
    replicas: tuple[Replicas, Destination],
) -> None:
    source, destination = replicas
    before = len(destination.notes)
    for number in range(20):
        source.change("abcd"[number % 4])
        source.is_old = number % 2 == 1
        wait(destination, PACE.poll)
    source.is_old = False
    destination.poll()
    assert destination.content == source.state
    listed = [note for note in destination.notes[before:] if "from the Change List" in note]
    assert sum(int(note.split()[0]) for note in listed) == 20


def test_a_change_list_that_ends_before_the_resource_list_is_no_regression(
    source: JumpingSource,
) -> None:
    source.list_resources()  # later than the last change
    destination = copy_of(source)
    looked_up = len(destination.notes)
    wait(destination, 10 * PACE.stale)
    assert destination.steps_back == 0
    assert len(destination.notes) == looked_up


def test_comparisons_are_limited_however_often_the_clock_goes_back(
    source: JumpingSource, destination: Destination
) -> None:
    for _ in range(20):
        source.rotate()
        make_dated_ahead(source, destination, YEARS)
        for name in "bcd":
            source.change(name)
        source.list_resources()
        wait(destination, 2 * PACE.poll)
    assert destination.now < PACE.repair
    assert destination.steps_back == 1
    wait(destination, PACE.repair)
    assert destination.content == source.state
    assert destination.steps_back == 2


# Push


def emitted(source: JumpingSource) -> Document:
    source.emitted = len(source.history) - 1
    before, last = source.history[-2:]
    kind = Capability.CHANGE_NOTIFICATION
    return Document(kind, (last.resource,), from_=before.at, until=last.at)


def push(source: JumpingSource, destination: Destination, name: str) -> None:
    source.change(name)
    destination.push(emitted(source))
    destination.work()


def test_a_source_that_is_always_years_ahead_is_followed_like_any_other() -> None:
    source = JumpingSource()
    source.error = YEARS
    source.change("a")
    source.list_resources()
    source.change("b")
    destination = copy_of(source)
    read = len(destination.fetches)
    for name in "abc":
        push(source, destination, name)
        assert destination.content == source.state
        assert through(destination) == source.history[-1].at
    assert len(destination.fetches) == read
    destination.poll()
    source.rotate()
    source.change("a")
    destination.poll()
    assert destination.content == source.state
    assert destination.steps_back == 0


def test_a_fragment_dated_years_ahead_is_trusted_only_if_the_lists_confirm_it(
    source: JumpingSource, destination: Destination
) -> None:
    source.error = YEARS  # its clock goes on from there
    push(source, destination, "b")
    assert through(destination) < source.today
    destination.settle()
    assert destination.content == source.state
    assert through(destination) == source.history[-1].at
    read = len(destination.fetches)
    push(source, destination, "c")
    assert destination.content == source.state
    assert len(destination.fetches) == read


@pytest.mark.parametrize("forge", [lambda one: one, lambda one: replace(one, resources=())])
def test_a_forged_fragment_years_ahead_does_not_block_other_fragments(
    source: JumpingSource, destination: Destination, forge: Callable[[Document], Document]
) -> None:
    source.change("b")
    last = emitted(source)
    at = last.until + YEARS if last.until else None
    entry = replace(last.resources[0], datetime=at, lastmod=at)
    destination.push(forge(replace(last, resources=(entry,), until=at)))
    destination.work()
    destination.push(last)
    for name in "cab":
        push(source, destination, name)
        assert destination.content == source.state
        assert through(destination) == source.history[-1].at
    destination.settle()
    destination.poll()
    assert destination.content == source.state
    assert through(destination) == source.history[-1].at


def test_a_change_after_days_of_silence_is_applied_at_once(
    source: JumpingSource, destination: Destination
) -> None:
    source.pass_time(10 * DAY)
    read = len(destination.fetches)
    push(source, destination, "b")
    assert destination.content == source.state
    assert len(destination.fetches) == read


# Any history

STEPS = st.one_of(
    st.tuples(st.just("change"), st.sampled_from("abc"), st.booleans()),
    st.tuples(st.just("change"), st.sampled_from("abc"), st.booleans()),
    st.tuples(st.just("clock"), st.sampled_from([False, False, True])),
    st.tuples(st.just("rotate")),
    st.tuples(st.just("poll"), st.sampled_from([0.1, 1.0, 3.0])),
    st.tuples(st.just("crash")),
)


@settings(
    max_examples=examples(100), derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    steps=st.lists(STEPS, max_size=25),
    by=st.sampled_from([HOUR, YEARS]),
    seed=st.integers(0, 2**16),
)
def test_whatever_the_clock_of_a_source_did_the_copy_converges(
    steps: list[tuple], by: timedelta, seed: int
) -> None:
    source = JumpingSource()
    source.list_resources()
    destination = Destination(source, Random(seed), OFFER, replace(PACE, stale=1.0, repair=0.0))
    destination.lied_to = True
    for step in steps:
        match step:
            case "change", name, deleted:
                source.change(name, deleted)
            case "clock", is_wrong:
                source.error = by if is_wrong else timedelta()
            case ("rotate",):
                source.rotate()
            case "poll", seconds:
                wait(destination, seconds)
            case ("crash",) if by > DAY:  # less than a day may stay unnoticed after a crash
                destination.restart()
    source.error = timedelta()
    for name in "wxyz":
        source.change(name)
        source.list_resources()
        wait(destination, PACE.stale)
        if name == "x":
            source.rotate()
    assert destination.content == source.state
