"""A copy is level only without any doubt, and each doubt is stated."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

import pytest
from msgspec.structs import replace

from rsnotify.errors import Unavailable
from rsnotify.format.coverage import Change, CheckMethod, Coverage
from rsnotify.format.model import ChangeType, Resource
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import ComparedList, Progress
from rsnotify.sync.catch_up import CatchUp
from rsnotify.sync.doubts import has_doubts, list_doubts
from rsnotify.sync.follower_state import SyncState
from rsnotify.sync.pace import Pace
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


def fail_to_apply(state: SyncState, catch_up: CatchUp) -> None:
    add(state, catch_up)
    (first, _) = state.pending.dispatch(9, 0)
    state.pending.failed(first, 0)


def miss(state: SyncState, catch_up: CatchUp) -> None:
    for name in "abc":
        state.pending.watch(replace(change(name), check=CheckMethod.FETCH), 0)


def push_beyond_a_gap(state: SyncState, catch_up: CatchUp) -> None:
    state.frontiers.push(Coverage(at(5), at(6), True, True, (replace(change("a"), at=at(6)),)))


def leave_a_gap(state: SyncState, catch_up: CatchUp) -> None:
    state.frontiers.skip_gap(at(5))


def withhold(state: SyncState, catch_up: CatchUp) -> None:
    state.unconfirmed.add([change("a")], 0)
    state.unconfirmed.end_of_lists(EPOCH, requested=99, now=99)


def list_older(state: SyncState, catch_up: CatchUp) -> None:
    state.frontiers.last_list = ComparedList(None, EPOCH, is_older=True)


def go_back(state: SyncState, catch_up: CatchUp) -> None:
    catch_up._intake.clock.check_closed(
        Coverage(EPOCH, EPOCH, True, True, ()), state.frontiers.frontier, has_lost=True
    )


@pytest.mark.parametrize(
    ("happen", "doubt"),
    [
        (unsettle, "have not been read to their end"),
        (fail, "could not be read: .*out of reach"),
        (compare, "is being compared with the Source's whole set"),
        (add, "2 resources have changes that are not applied yet"),
        (fail_to_apply, "^http://a.example/a: could not be fetched or applied yet"),
        (miss, "^http://a.example/a and 2 more: listed by the Source"),
        (push_beyond_a_gap, "that the Source's lists do not reach yet"),
        (leave_a_gap, "no document covers the changes from 2026-01-01T00:00:00.0*Z to .*:05.0*Z"),
        (withhold, "^1 pushed change should be in the Source's lists by now"),
        (
            list_older,
            "the Resource List or Resource Dump is older than one that was compared before",
        ),
        (go_back, "the Change List lacks changes that it listed earlier"),
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
    (stated,) = list_doubts(state, catch_up)
    assert re.search(doubt, stated)
    assert "secret" not in stated
