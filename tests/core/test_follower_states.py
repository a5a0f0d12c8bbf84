"""What a follower reports about itself: whether it is stuck, and how much it has read."""

from __future__ import annotations

from msgspec.structs import replace

from rsnotify.errors import Unavailable
from rsnotify.format.coverage import CheckMethod
from rsnotify.format.model import Capability, ChangeType, Document, Resource
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import Apply
from rsnotify.sync.progress import Progress
from tests.core.source import EPOCH, at
from tests.core.wire import Wire
from tests.core.world import PACE

BEGUN = Progress(EPOCH, EPOCH)
LISTS = Offer(change_list="changes")
ALL = Offer(change_list="changes", resource_list="resources")
PATIENCE = PACE.patience


def changes(*seconds: float) -> Document:
    listed = [
        Resource(f"{second}", change=ChangeType.UPDATED, datetime=at(second)) for second in seconds
    ]
    return Document(Capability.CHANGE_LIST, tuple(listed), from_=EPOCH)


def is_stuck_from(wire: Wire, begin: float) -> bool:
    """Return whether a follower is stuck after its patience has ended, and not before."""
    ends = begin + PATIENCE
    return wire.follower.is_stuck(ends) and not wire.follower.is_stuck(ends - 0.001)


def test_a_follower_is_not_stuck_while_it_reads() -> None:
    wire = Wire(LISTS, BEGUN)
    assert wire.requested()
    assert not wire.follower.is_stuck(9 * PATIENCE)


def test_a_follower_does_not_wake_up_for_its_next_read_while_it_reads() -> None:
    wire = Wire(LISTS, BEGUN)
    wire.follower.push_gap(wire.now)
    assert wire.follower.wakeup is None


def test_a_follower_is_stuck_if_nothing_has_been_new_for_long() -> None:
    wire = Wire(LISTS, BEGUN)
    wire.answer(changes())
    wire.wait()
    wire.answer(changes(1))
    (apply,) = [action for action in wire.actions if isinstance(action, Apply)]
    wire.follower.applied(apply.changes, wire.now + 1)
    assert wire.follower.level
    assert is_stuck_from(wire, wire.now + 1)
    verified = [replace(change, check=CheckMethod.FETCH) for change in apply.changes]
    wire.follower.applied(verified, wire.now + 2)
    assert is_stuck_from(wire, wire.now + 1), "a verification is not news"


def test_a_follower_is_stuck_if_its_lists_have_been_unreadable_for_long() -> None:
    wire = Wire(LISTS, BEGUN)
    wire.answer(changes())
    wire.wait()
    began = wire.now
    wire.answer(Unavailable("changes", "out of reach"))
    assert began > 0
    assert is_stuck_from(wire, began)


def test_the_share_of_the_lists_that_a_baseline_has_read_is_known() -> None:
    wire = Wire(ALL)
    assert wire.follower.share_listed is None
    parts = tuple(map(Resource, ("one", "two")))
    wire.answer(Document(Capability.RESOURCE_LIST, parts, at=EPOCH, index=True))
    wire.answer(Document(Capability.RESOURCE_LIST, (), at=EPOCH))
    assert wire.follower.share_listed == 0.5
    wire.follower.differing([], wire.now)
    settled = Wire(LISTS, BEGUN)
    assert settled.follower.share_listed is None
