"""The set of resources is described by another Capability List than before."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from rsnotify.format.model import Capability, Document
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import DocumentKind, FindUnlisted
from tests.core.wire import Wire
from tests.core.world import EPOCH

OFFER = Offer(resource_dump="dump", change_list="changes", capability_list="one")
CHANGES = Document(Capability.CHANGE_LIST, from_=EPOCH, until=EPOCH + timedelta(seconds=200))
DUMP = Document(Capability.RESOURCE_DUMP, at=EPOCH + timedelta(seconds=100))


def test_an_unchanged_dump_is_compared_once_more_after_a_move() -> None:
    wire = Wire(OFFER)
    compare(wire)
    assert wire.follower.level
    moved = replace(OFFER, capability_list="two")
    wire.actions = wire.follower.offered(moved, wire.now)
    assert not wire.follower.level
    wire.wait()
    compare(wire, "old")
    assert [change.uri for action in wire.actions for change in getattr(action, "changes", ())] == [
        "old"
    ]


def compare(wire: Wire, *unlisted: str) -> None:
    """Answer the dump, name what it lacks, and answer the Change List."""
    assert wire.requested() == [DocumentKind.RESOURCE_DUMP]
    wire.answer(DUMP)
    assert any(isinstance(action, FindUnlisted) for action in wire.actions)
    wire.actions = wire.follower.unlisted(unlisted, wire.now)
    removals = [action for action in wire.actions if hasattr(action, "changes")]
    wire.answer(CHANGES)
    wire.actions = [*removals, *wire.actions]
