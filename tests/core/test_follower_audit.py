"""The continuous audit: differences are reported at once, and repaired."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rsnotify.format.datetimes import MICROSECOND
from rsnotify.format.hashes import COUNT, DIGEST, HASH, SetSum
from rsnotify.format.model import Capability, Document, Link, Rel, Resource
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import Apply, DocumentKind, LogNote
from rsnotify.sync.follower import Follower
from rsnotify.sync.progress import Progress
from tests.core.histories import history, play
from tests.core.test_follower import names
from tests.core.wire import Wire
from tests.core.world import BASE, EPOCH, OFFER, PACE, Destination, Source
from tests.examples_count import examples

#: The time between two fragments or heartbeats: longer than lists may lag.
BEAT = timedelta(seconds=PACE.poll + 1)
#: The weight of each step: mostly push, with many messages in flight.
WEIGHTS = {
    "change": 12, "emit": 10, "deliver": 10, "double": 2, "lose": 1, "work": 8,
    "wait": 4, "list_resources": 2, "rotate": 1, "poll": 1, "crash": 1,
}  # fmt: skip


@pytest.fixture
def source() -> Source:
    source = Source(audits=True)
    for name in "abc":
        source.change(name)
    source.list_resources()
    source.emitted = len(source.history)
    return source


@pytest.fixture
def destination(source: Source) -> Destination:
    destination = Destination(source, Random(1))
    destination.verifies = True
    destination.settle()
    destination.push_up()
    destination.fetches.clear()
    return destination


def beat(source: Source, destination: Destination) -> None:
    """Deliver a heartbeat, and do everything that follows from it."""
    source.clock += BEAT
    destination.now += BEAT.total_seconds()
    destination.push(source.fragment(1))
    destination.work()


def withhold(source: Source, destination: Destination) -> None:
    """Withhold a change at the hub, and hide that in the interval of the next."""
    destination.lied_to = True
    joint = source.history[-1].at
    source.change("withheld")
    source.emitted = len(source.history)
    source.change("announced")
    destination.push(replace(source.fragment(1), from_=joint))
    destination.work()


@settings(max_examples=examples(75), suppress_health_check=[HealthCheck.too_slow])
@given(
    per_list=st.integers(1, 5),
    kept=st.sampled_from([1, 3, 100]),
    broken=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 2**32),
)
def test_lost_duplicate_and_late_fragments_raise_no_false_alarm(
    per_list: int, kept: int, broken: float, seed: int
) -> None:
    source = Source(MICROSECOND, per_list, kept, audits=True)
    random = Random(seed)
    destination = Destination(source, random)
    destination.verifies = True
    destination.pace = replace(PACE, gone_after=1_000)  # made-up 404s do not mean deletions
    destination.restart()
    destination.broken = broken
    wire: list[Document] = []
    for step in history(random, WEIGHTS, 80):
        play(step, source, destination, wire)
    destination.broken = 0.0
    source.finish(OFFER)
    for fragment in wire:
        destination.push(fragment)
    destination.settle()
    destination.poll()
    source.emitted = len(source.history)
    source.clock += timedelta(seconds=5)
    destination.push(source.fragment(1))
    destination.settle()
    assert destination.follower.in_step is True


def test_without_statements_of_the_source_the_audit_has_no_result(destination: Destination) -> None:
    destination.source.audits = False
    beat(destination.source, destination)
    assert destination.follower.in_step is None
    assert destination.follower.difference == ""


def test_a_heartbeat_proves_that_the_copy_is_complete(
    source: Source, destination: Destination
) -> None:
    beat(source, destination)
    assert destination.follower.in_step is True
    assert destination.fetches == []


def test_a_change_that_a_hub_withheld_is_reported_and_read_from_the_change_list(
    source: Source, destination: Destination
) -> None:
    withhold(source, destination)
    assert destination.follower.in_step is True, "the very fragment that hid it has the digest"
    assert any("Source has 5 resources, but the copy has 4" in note for note in destination.notes)
    assert names(destination.fetches) == ["changelist.xml"]
    assert destination.content == source.state


def test_subscribers_of_a_hub_that_withheld_a_change_do_not_all_poll_at_once(
    source: Source, destination: Destination
) -> None:
    source.audits = False
    withhold(source, destination)
    source.audits = True
    destination.follower.audience(200)
    destination.push(source.fragment(1))
    began = destination.now
    assert destination.follower.in_step is False
    assert not destination.follower.level
    assert destination.pending == []
    destination.tick()
    assert began < destination.now <= began + PACE.spread_among(200)
    destination.work()
    assert names(destination.fetches) == ["changelist.xml"]
    while not destination.follower.level:
        destination.tick()
        destination.work()
    assert destination.follower.in_step is True
    assert destination.content == source.state


def test_while_the_change_list_lags_it_is_only_read_again(
    source: Source, destination: Destination
) -> None:
    late = source.document(BASE + "changelist.xml")
    original, source.document = source.document, lambda uri: late  # type: ignore[method-assign]
    withhold(source, destination)
    assert destination.follower.in_step is False
    assert names(destination.fetches) == ["changelist.xml"]
    source.document = original  # type: ignore[method-assign]
    source.clock += timedelta(seconds=PACE.poll / 2)
    destination.now += PACE.poll / 2
    destination.push(source.fragment(1))
    destination.work()
    assert destination.follower.in_step is True
    assert names(destination.fetches) == ["changelist.xml"] * 2


@pytest.mark.parametrize("damage", ["lost", "changed", "too much"])
def test_a_difference_that_no_change_list_has_is_found_in_the_resource_list(
    source: Source, destination: Destination, damage: str
) -> None:
    destination.lied_to = True
    if damage == "lost":
        del destination.content[BASE + "a"], destination.records[BASE + "a"]
    elif damage == "changed":
        destination.content[BASE + "a"] = "sha-256:" + "0" * 64
    else:
        destination.content[BASE + "x"] = "sha-256:" + "0" * 64
    beat(source, destination)
    assert destination.follower.in_step is False
    assert "resourcelist.xml" not in names(destination.fetches)
    source.list_resources()
    beat(source, destination)
    beat(source, destination)
    assert destination.content == source.state
    assert destination.follower.in_step is True
    assert destination.follower.difference == ""
    assert names(destination.fetches).count("resourcelist.xml") == 1


def test_a_digest_that_no_list_explains_is_reported_once_and_checked_less_and_less_often(
    source: Source, destination: Destination
) -> None:
    destination.lied_to = True
    source._digest = lambda until: Source()._digest(until)  # type: ignore[method-assign]
    for _ in range(2_000):
        beat(source, destination)
    hours = 2_000 * BEAT.total_seconds() / 3_600
    compared = names(destination.fetches).count("resourcelist.xml")
    assert 2 <= compared <= 4 + hours
    warnings = [note for note in destination.notes if "but the digests still differ" in note]
    assert len(warnings) == compared
    assert "nothing differed from the Source's list" in warnings[0]
    assert destination.follower.level
    assert destination.follower.in_step is False


def test_a_listed_resource_that_is_missing_does_not_hold_up_the_others(
    source: Source, destination: Destination
) -> None:
    destination.lied_to = True
    destination.content[BASE + "a"] = "sha-256:" + "0" * 64
    del source.state[BASE + "a"]  # so that a GET of it fails, though every list has it
    for _ in range(3):
        beat(source, destination)
    assert destination.follower.pending == 1
    assert BASE + "a" in destination.content, "a 404 may be a mistake"
    began = destination.now
    while BASE + "a" in destination.content:
        destination.tick()
        destination.work()
    assert destination.now - began < PACE.gone_after
    assert destination.follower.in_step is False
    (doubt,) = destination.follower.doubts
    assert doubt.startswith(BASE + "a")


@pytest.mark.parametrize(
    "attributes",
    [
        ((COUNT, "3"), (HASH, "sha-256")),
        ((COUNT, "three"), (HASH, "sha-256"), (DIGEST, "0" * 32)),
        ((COUNT, "3"), (HASH, "sha-512"), (DIGEST, "0" * 32)),
    ],
)
def test_an_unusable_digest_is_reported_once_and_the_fragment_is_applied(
    source: Source, destination: Destination, attributes: tuple[tuple[str, str], ...]
) -> None:
    for name in "xyz":
        source.change(name)
        destination.push(replace(source.fragment(1), attributes=attributes))
        destination.work()
    assert destination.content == source.state
    assert destination.follower.in_step is None
    assert len([note for note in destination.notes if "cannot be audited" in note]) == 1


def test_a_selection_is_not_compared_with_the_whole_set(
    source: Source, destination: Destination
) -> None:
    reason = "only a selection of the set is followed"
    destination.follower = Follower(
        OFFER, destination.progress, pace=PACE, random=Random(1), incomparable=reason
    )
    destination._begin(destination.follower.start(destination.now))
    destination.settle()
    for _ in range(3):
        beat(source, destination)
    assert destination.follower.in_step is None
    assert destination.follower.difference == reason
    assert len([note for note in destination.notes if reason in note]) == 1


#: A digest that is not that of an empty set, which is what the copies below are taken for.
OTHER = ((COUNT, "3"), (HASH, "sha-256"), (DIGEST, "0" * 32))
NO_CHANGES = Document(Capability.CHANGE_LIST, from_=EPOCH)
LISTS = replace(OFFER, change_list_archive=None)


def leveled(offer: Offer = LISTS) -> Wire:
    """Return a follower that has read a Change List without entries."""
    wire = Wire(offer, Progress(EPOCH, EPOCH))
    wire.answer(NO_CHANGES)
    return wire


def state_digest(wire: Wire) -> None:
    """Push a heartbeat with a digest that differs from that of the copy."""
    wire.now += BEAT.total_seconds()
    known = wire.follower.known
    assert known is not None
    heartbeat = Document(
        Capability.CHANGE_NOTIFICATION, from_=known, until=known + BEAT, attributes=OTHER
    )
    wire.follower.fragment(heartbeat, wire.now)


def find_difference(wire: Wire) -> str:
    """Compare a copy with a digest that differs, and return what is logged."""
    state_digest(wire)
    assert wire.follower.audit_due
    wire.actions = wire.follower.audited(SetSum(), EPOCH, wire.now)
    return "\n".join(action.text for action in wire.actions if isinstance(action, LogNote))


def test_a_difference_that_a_comparison_does_not_explain_is_logged_with_what_it_found() -> None:
    wire = leveled()
    find_difference(wire)
    wire.answer(NO_CHANGES)
    find_difference(wire)
    assert wire.requested() == [DocumentKind.RESOURCE_LIST]
    first, second, *others = (Resource(BASE + name) for name in "abcde")
    page = Document(Capability.RESOURCE_LIST, at=wire.follower.known)
    wire.answer(replace(page, links=(Link(Rel.NEXT, BASE + "page-2.xml"),)))
    wire.actions = wire.follower.differing([first], wire.now, absent=[second])
    wire.answer(page)
    third, *unlisted = others
    wire.follower.differing([third], wire.now)
    wire.actions = wire.follower.unlisted([one.uri for one in unlisted], wire.now)
    wire.answer(NO_CHANGES)
    while applied := [action for action in wire.actions if isinstance(action, Apply)]:
        wire.actions = wire.follower.applied(applied[0].changes, wire.now)
    assert "5 resources differed from the Source's list" in find_difference(wire)


def test_without_a_list_of_all_resources_a_difference_leads_to_reads_of_the_changes() -> None:
    wire = leveled(Offer(change_list=OFFER.change_list))
    find_difference(wire)
    wire.answer(NO_CHANGES)
    assert "the Source has no list of all its resources" in find_difference(wire)
    assert wire.requested() == [DocumentKind.CHANGE_LIST]


def test_a_digest_is_not_compared_if_the_list_behind_the_copy_may_be_later() -> None:
    wire = Wire(LISTS)
    later = EPOCH + 2 * BEAT
    wire.answer(Document(Capability.RESOURCE_LIST, at=EPOCH, completed=later))
    wire.follower.differing([], wire.now)
    wire.actions = wire.follower.unlisted([], wire.now)
    wire.answer(NO_CHANGES)
    find_difference(wire)
    assert wire.follower.in_step is None


@pytest.mark.parametrize("attributes", [(), OTHER], ids=["no digest", "a digest"])
def test_a_fragment_without_an_interval_ends_the_last_statement_and_makes_none(
    attributes: tuple[tuple[str, str], ...],
) -> None:
    wire = leveled()
    state_digest(wire)
    assert wire.follower.audit_due
    known = wire.follower.known
    fragment = Document(Capability.CHANGE_NOTIFICATION, until=known, attributes=attributes)
    wire.follower.fragment(fragment, wire.now)
    assert not wire.follower.audit_due
