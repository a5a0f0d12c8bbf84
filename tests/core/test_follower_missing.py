"""A resource is listed, its server says 404, and a Change List is read meanwhile.

The Change List may be read at any point: while the resource is fetched, while it is removed from
the copy, before it is fetched again, or while it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rsnotify.errors import NotFound
from rsnotify.format.coverage import Change, CheckMethod
from rsnotify.format.model import Capability, ChangeType, Document, Resource
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import Action, Apply, DocumentKind
from tests.core.source import EPOCH, at
from tests.core.wire import Wire
from tests.core.world import PACE

URI = "http://example.com/b"
LISTED = Resource(URI, hash="md5:1")
GONE_AFTER = 600.0
POINTS = ["fetched", "removed", "waiting", "fetched again"]


def change_list(kind: ChangeType, **fields: str) -> Document:
    entry = Resource(URI, change=kind, datetime=at(51), **fields)
    return Document(Capability.CHANGE_LIST, (entry,), from_=EPOCH)


class MissingResource:
    """A Destination that has compared a Resource List as of 100 s and waits for the Change List.

    Unless the comparison `ends` at once, it ends later.
    """

    def __init__(self, *, ends: bool = True) -> None:
        self.wire = Wire(Offer(resource_list="r", change_list="c"), gone_after=GONE_AFTER)
        self.follower = self.wire.follower
        self.wire.answer(Document(Capability.RESOURCE_LIST, (LISTED,), at=at(100)))
        self.in_flight: list[Change] = []
        self._begin(self.follower.differing((LISTED,), 0.0))
        if ends:
            self.end()

    def end(self) -> None:
        self.requested = self.follower.unlisted((), self.wire.now)

    def _begin(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Apply):
                self.in_flight += action.changes

    def until(self, point: str) -> None:
        """Answer 404 until the follower has come to a point."""
        if point == "fetched":
            return
        self._answer_404()
        self.wait(GONE_AFTER)
        self._answer_404()
        assert self.in_flight[0].change is ChangeType.DELETED
        if point == "removed":
            return
        self.answer()
        assert not self.in_flight
        if point == "fetched again":
            self.wait(GONE_AFTER)
            assert self.in_flight[0].check is CheckMethod.FETCH

    def read(self, document: Document) -> None:
        self.wire.actions = self.requested
        self.wire.answer(document)
        self._begin(self.wire.actions)

    def compare(self, wait: float) -> None:
        """Wait, and compare everything with a Resource List that lacks the resource."""
        self.wire.now += wait
        self.wire.actions = self.follower.tick(self.wire.now)
        self._begin(self.wire.actions)
        assert self.wire.requested() == [DocumentKind.RESOURCE_LIST]
        seconds = 200 + int(self.wire.now)
        self.wire.answer(Document(Capability.RESOURCE_LIST, at=at(seconds)))
        self._begin(self.follower.differing((), self.wire.now))
        self.wire.actions = self.follower.unlisted((), self.wire.now)
        self._begin(self.wire.actions)
        self.wire.answer(Document(Capability.CHANGE_LIST, from_=EPOCH, until=at(seconds)))

    def answer(self) -> None:
        """Answer a GET with 404; a deletion is applied, or found to be right."""
        if self.in_flight[0].change is ChangeType.DELETED:
            self._begin(self.follower.applied([self.in_flight.pop(0)], self.wire.now))
        else:
            self._answer_404()

    def _answer_404(self) -> None:
        change = self.in_flight.pop(0)
        self._begin(self.follower.failed(change, NotFound(URI, "404"), self.wire.now))

    def wait(self, seconds: float) -> None:
        self.wire.now += seconds
        self._begin(self.follower.tick(self.wire.now))


@pytest.fixture
def missing() -> MissingResource:
    return MissingResource()


@pytest.mark.parametrize("point", POINTS)
def test_a_missing_resource_is_no_doubt_once_a_list_says_that_it_is_deleted(
    missing: MissingResource, point: str
) -> None:
    missing.until(point)
    missing.read(change_list(ChangeType.DELETED))
    while missing.in_flight:
        missing.answer()
    assert missing.follower.level, missing.follower.doubts
    progress = missing.follower.progress
    assert progress is not None
    assert (progress.through, progress.missing) == (at(100), ())


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("hash", ["md5:1", "md5:2"], ids=["the same", "other content"])
def test_a_missing_resource_stays_a_doubt_if_a_list_says_that_it_was_updated(
    missing: MissingResource, point: str, hash: str
) -> None:
    missing.until(point)
    missing.read(change_list(ChangeType.UPDATED, hash=hash))
    while missing.in_flight:
        missing.answer()
    assert not missing.follower.level


@pytest.mark.parametrize("point", POINTS)
def test_a_deletion_in_a_list_is_verified_by_one_more_request(
    missing: MissingResource, point: str
) -> None:
    missing.until(point)
    missing.read(change_list(ChangeType.DELETED))
    if point != "waiting":
        missing.answer()
    assert missing.in_flight[-1].check is CheckMethod.FETCH


def test_a_resource_given_up_before_the_comparison_that_listed_it_ends_stays_a_doubt() -> None:
    missing = MissingResource(ends=False)
    missing.answer()
    for _ in range(PACE.give_up - 1):
        missing.wait(PACE.retry.most)
        missing.answer()
    missing.end()
    missing.read(Document(Capability.CHANGE_LIST, from_=EPOCH, until=at(100)))
    assert not missing.follower.level
    progress = missing.follower.progress
    assert progress is not None
    assert [one.uri for one in progress.missing] == [URI]


def test_a_resource_list_read_during_the_next_attempt_is_read_once_more(
    missing: MissingResource,
) -> None:
    missing.until("waiting")
    missing.read(Document(Capability.CHANGE_LIST, from_=EPOCH, until=at(100)))
    missing.compare(wait=GONE_AFTER)
    assert missing.in_flight
    missing.answer()
    assert not missing.follower.level
    missing.compare(wait=PACE.repair)
    assert missing.follower.level, missing.follower.doubts
