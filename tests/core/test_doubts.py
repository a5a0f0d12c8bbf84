"""A copy is level only without any doubt, and each doubt is stated."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random

import pytest
from msgspec.structs import replace

from rsnotify.errors import Unavailable
from rsnotify.format.coverage import Change, CheckMethod, Coverage
from rsnotify.format.hashes import SetSum
from rsnotify.format.model import Capability, ChangeType, Document, Resource
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import ActionList, LogNote
from rsnotify.sync.catch_up import CatchUp
from rsnotify.sync.doubts import (
    BEHIND,
    OLDER_LIST,
    ContinuousAudit,
    DoubtKind,
    Remedy,
    describe_undated,
    has_doubts,
    list_doubts,
)
from rsnotify.sync.pace import Pace
from rsnotify.sync.progress import ComparedList, Progress
from rsnotify.sync.sync_state import SyncState
from tests.core.source import EPOCH, at

OFFER = Offer(change_list="http://a.example/changes.xml", resource_list="http://a.example/list.xml")


def change(name: str) -> Change:
    uri = f"http://u:secret@a.example/{name}"
    return Change(uri, ChangeType.UPDATED, at(1), Resource(uri))


def unsettle(state: SyncState, catch_up: CatchUp) -> None:
    state.settled = False


def fail(state: SyncState, catch_up: CatchUp) -> None:
    state.settled = False
    catch_up.failures.record(Unavailable("http://a.example/changes.xml", "out of reach"), 0.0)


def compare(state: SyncState, catch_up: CatchUp) -> None:
    catch_up.check(0, 0, everything=True)


def add(state: SyncState, catch_up: CatchUp) -> None:
    state.pending.add(change("a"))
    state.pending.add(change("b"))


def add_one(state: SyncState, catch_up: CatchUp) -> None:
    state.pending.add(change("a"))


def fail_to_apply(state: SyncState, catch_up: CatchUp) -> None:
    add(state, catch_up)
    (first, _) = state.pending.dispatch(9, 0)
    state.pending.failed(first, 0)


def miss(names: str, state: SyncState, catch_up: CatchUp) -> None:
    for name in names:
        state.pending.watch(replace(change(name), check=CheckMethod.FETCH), 0)


def push_beyond_a_gap(state: SyncState, catch_up: CatchUp) -> None:
    state.frontiers.push(Coverage(at(5), at(6), True, True, (replace(change("a"), at=at(6)),)))


def leave_a_gap(state: SyncState, catch_up: CatchUp) -> None:
    state.frontiers.skip_gap(at(5))


def leave_a_curable_gap(state: SyncState, catch_up: CatchUp) -> None:
    state.frontiers.skip_gap(at(5), "mend it")


def withhold(state: SyncState, catch_up: CatchUp) -> None:
    state.unconfirmed.add([change("a")], 0)
    state.unconfirmed.end_of_lists(EPOCH, requested=99, now=99, sent=None)


def list_older(state: SyncState, catch_up: CatchUp) -> None:
    state.frontiers.last_list = ComparedList(None, EPOCH, is_older=True)


def go_back(state: SyncState, catch_up: CatchUp) -> None:
    catch_up._intake.clock.check_closed(
        Coverage(EPOCH, EPOCH, True, True, ()), state.frontiers.frontier, has_lost=True
    )


@pytest.mark.parametrize(
    ("happen", "doubt"),
    [
        (unsettle, "the Source's lists have not been read completely yet"),
        (fail, "the Source's documents could not be read: .*out of reach"),
        (compare, "the copy is being compared with the Source's whole set"),
        (add, "2 resources have changes that are not applied yet"),
        (add_one, "1 resource has changes that are not applied yet"),
        (fail_to_apply, "http://a.example/a: could not be fetched or applied yet"),
        (partial(miss, "a"), "http://a.example/a: announced, but not available from its server"),
        (
            partial(miss, "ab"),
            "http://a.example/a and 1 more: announced, but not available from its server",
        ),
        (push_beyond_a_gap, "the Source's lists do not contain all pushed changes yet"),
        (leave_a_gap, "no document covers the changes from 2026-01-01T00:00:00.0*Z to .*:05.0*Z"),
        (
            leave_a_curable_gap,
            "no document covers the changes from 2026-01-01T00:00:00.0*Z to .*:05.0*Z; mend it",
        ),
        (
            withhold,
            "1 pushed change should be in the Source's lists by now, "
            "but the lists do not contain all of them",
        ),
        (list_older, OLDER_LIST),
        (go_back, BEHIND),
    ],
)
def test_a_doubt_is_stated_and_the_copy_is_not_level(
    happen: Callable[[SyncState, CatchUp], None], doubt: str
) -> None:
    state = SyncState(Progress(EPOCH, EPOCH), Pace(poll=1, spread=0), Random(1))
    catch_up = CatchUp(OFFER, state, compared=0)
    state.settled = True
    assert not has_doubts(state, catch_up)
    assert not list(list_doubts(state, catch_up))
    happen(state, catch_up)
    assert has_doubts(state, catch_up)
    ((kind, stated),) = list_doubts(state, catch_up)
    assert kind in DoubtKind
    assert re.fullmatch(doubt, stated)


@pytest.mark.parametrize(
    ("count", "entries", "are_dates_kept", "text"),
    [
        (1, 1, True, "1 of 1 entry has no date and no hash"),
        (1000, 2000, True, "1,000 of 2,000 entries have no date and no hash"),
        (1, 2, False, "1 of 2 entries have no hash, and no date that is kept"),
    ],
)
def test_entries_that_do_not_show_changes_are_counted(
    count: int, entries: int, are_dates_kept: bool, text: str
) -> None:
    assert describe_undated(count, entries, are_dates_kept=are_dates_kept) == text


# When the copy is compared with the Source's statement, and which remedies follow.


UNTIL = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
PACE = Pace(poll=10, repair=100)


def total(*names: str) -> SetSum:
    made = SetSum()
    made.add((name, "sha-256:" + "0" * 64) for name in names)
    return made


def notes(log: ActionList) -> list[LogNote]:
    return [action for action in log if isinstance(action, LogNote)]


def heartbeat(*names: str) -> Document:
    digest = total(*names).digest()
    assert digest is not None
    return Document(Capability.CHANGE_NOTIFICATION, attributes=digest.attributes)


@pytest.fixture
def audit() -> ContinuousAudit:
    return ContinuousAudit(PACE, ActionList())


def compared(audit: ContinuousAudit, document: Document, *held: str, now: float = 0.0) -> Remedy:
    audit.read_fragment(document, UNTIL, UNTIL)
    assert audit.is_due(UNTIL)
    return audit.compare(total(*held), UNTIL, now)


def test_a_statement_is_compared_at_its_own_instant_only(audit: ContinuousAudit) -> None:
    audit.read_fragment(heartbeat("a"), UNTIL, UNTIL - SECOND)
    instants = (UNTIL - SECOND, UNTIL, UNTIL + SECOND)
    assert [audit.is_due(one) for one in instants] == [False, True, False]


def test_a_statement_about_the_past_is_ignored_and_no_interval_invalidates_one(
    audit: ContinuousAudit,
) -> None:
    audit.read_fragment(heartbeat("a"), UNTIL, UNTIL + SECOND)
    assert not audit.is_due(UNTIL)
    audit.read_fragment(heartbeat("a"), UNTIL, UNTIL)
    assert audit.is_due(UNTIL)
    audit.read_fragment(Document(Capability.CHANGE_NOTIFICATION), None, UNTIL)
    assert not audit.is_due(UNTIL)


def test_nothing_is_compared_while_the_copy_has_something_later(audit: ContinuousAudit) -> None:
    audit.read_fragment(heartbeat("a"), UNTIL, UNTIL)
    assert audit.compare(total("a", "b"), UNTIL + SECOND, 0.0) is Remedy.NOTHING
    assert audit.in_step is None


@pytest.mark.parametrize("name", ["at", "completed"])
def test_nothing_is_compared_before_the_end_of_a_list_that_was_read(
    audit: ContinuousAudit, name: str
) -> None:
    listed = Document(Capability.RESOURCE_LIST, at=UNTIL - SECOND)
    audit.read_list(replace(listed, **{name: UNTIL + SECOND}))
    assert compared(audit, heartbeat("a"), "a", "b") is Remedy.NOTHING
    assert audit.in_step is None


def test_remedies_become_more_expensive_and_rarer(audit: ContinuousAudit) -> None:
    def remedy(now: float) -> Remedy:
        return compared(audit, heartbeat("a", "b"), "a", now=now)

    assert remedy(0) is Remedy.PULL
    assert audit.in_step is False
    assert remedy(PACE.poll / 2) is Remedy.PULL, "lists may lag"
    assert remedy(PACE.poll) is Remedy.COMPARE
    dear = [now for now in range(20, 2_000, 10) if remedy(now) is Remedy.COMPARE]
    assert dear == [110, 310, 710, 1510]
    assert compared(audit, heartbeat("a"), "a", now=2_000) is Remedy.NOTHING
    assert audit.in_step is True


def test_each_step_of_a_repair_is_logged_once() -> None:
    log = ActionList()
    audit = ContinuousAudit(PACE, log)
    logged = []

    def check(*held: str, now: float) -> str:
        compared(audit, heartbeat("a", "b"), *held, now=now)
        logged.append(len(log))
        return notes(log)[-1].text if log else ""

    assert (audit.repairing, audit.reason) == (False, "")
    check("a", "b", now=0)
    assert check("a", now=1_000).endswith("; reading the Change Lists")
    assert not audit.repairing
    check("a", now=1_009)
    assert check("a", now=1_010).endswith("; comparing all resources")
    assert audit.repairing
    assert audit.differences == 0
    audit.differences = 3
    assert check("a", now=1_020).startswith("3 resources differed from the Source's list, but")
    assert "comparison is in 90 s at the earliest" in notes(log)[-1].text
    check("a", now=1_030)
    assert check("a", now=1_110).endswith("; comparing all resources")
    assert check("a", now=1_120).startswith("nothing differed")
    assert check("a", "b", now=1_130).startswith("the copy matches")
    assert (audit.repairing, audit.reason) == (False, "")
    check("a", "b", now=1_140)
    assert logged == [0, 1, 1, 2, 3, 3, 4, 5, 6, 6]
    assert [note.warning for note in notes(log)] == [True, False, True, False, True, False]


def test_without_a_resource_list_the_change_lists_are_read_less_and_less_often() -> None:
    log = ActionList()
    audit = ContinuousAudit(PACE, log)
    pulled = []
    for now in range(0, 2_000, 10):
        audit.read_fragment(heartbeat("a", "b"), UNTIL, UNTIL)
        remedy = audit.compare(total("a"), UNTIL, now, can_list=False)
        assert remedy is not Remedy.COMPARE
        pulled += [now] if remedy is Remedy.PULL else []
    assert pulled == [0, 10, 110, 310, 710, 1510]
    assert (
        len([note for note in notes(log) if "has no list of all its resources" in note.text]) == 5
    )


def test_a_statement_is_compared_once_more_after_a_remedy(
    audit: ContinuousAudit,
) -> None:
    assert compared(audit, heartbeat("a", "b"), "a") is Remedy.PULL
    assert audit.is_due(UNTIL)
    assert audit.compare(total("a"), UNTIL, 1.0) is Remedy.NOTHING
    assert not audit.is_due(UNTIL)


def test_a_copy_of_resources_without_hashes_cannot_be_compared(
    audit: ContinuousAudit,
) -> None:
    audit.read_fragment(heartbeat("a"), UNTIL, UNTIL)
    held = total("a")
    held.add([("b", "md5:" + "0" * 32)])
    assert audit.compare(held, UNTIL, 0.0) is Remedy.NOTHING
    assert audit.in_step is None
    assert audit.reason == "a resource in the copy has no SHA-256 hash"


@pytest.mark.parametrize("wanted", [True, False])
def test_a_copy_that_cannot_be_audited_is_a_warning_unless_it_is_wanted(wanted: bool) -> None:
    log = ActionList()
    audit = ContinuousAudit(PACE, log, "only some resources are copied" if wanted else "")
    audit.read_fragment(heartbeat("a"), UNTIL, UNTIL)
    if not wanted:
        unhashed = SetSum()
        unhashed.add([("a", None)])
        assert audit.compare(unhashed, UNTIL, 0.0) is Remedy.NOTHING
    assert [note.warning for note in notes(log)] == [not wanted]
    assert audit.in_step is None
    assert audit.reason
