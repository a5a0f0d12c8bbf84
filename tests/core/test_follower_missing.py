"""A resource is listed, its server says 404, and a Change List is read meanwhile.

The Change List may be read at any point: while the resource is fetched, while it is removed from
the copy, before it is fetched again, or while it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rsnotify.errors import MalformedDocument, NotFound, RsnotifyError, Unavailable
from rsnotify.format.coverage import Change, CheckMethod
from rsnotify.format.model import Capability, ChangeType, Document, Resource
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import Action, Apply, DocumentKind, Fetch
from tests.core.source import EPOCH, at
from tests.core.wire import Wire
from tests.core.world import PACE

URI = "http://example.com/b"
LISTED = Resource(URI, hash="md5:1")
GONE_AFTER = 600.0
NO_CHANGES = Document(Capability.CHANGE_LIST, from_=EPOCH, until=at(100))
POINTS = ["fetched", "removed", "waiting", "fetched again"]


def change_list(kind: ChangeType, **fields: str) -> Document:
    entry = Resource(URI, change=kind, datetime=at(51), **fields)
    return Document(Capability.CHANGE_LIST, (entry,), from_=EPOCH)


def listing(*resources: Resource, seconds: int = 100) -> Document:
    return Document(Capability.RESOURCE_LIST, resources, at=at(seconds))


class MissingResource:
    """A Destination that has compared a Resource List as of 100 s, and read the Change List."""

    def __init__(self) -> None:
        self.wire = Wire(Offer(resource_list="r", change_list="c"), gone_after=GONE_AFTER)
        self.follower = self.wire.follower
        self.in_flight: list[Change] = []
        self._requested: Fetch | None = None
        self.wire.answer(listing(LISTED))
        self.follower.differing((LISTED,), 0.0)
        self._begin(self.follower.unlisted((), self.wire.now))
        self.read(NO_CHANGES)

    def _begin(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Apply):
                self.in_flight += action.changes
            elif isinstance(action, Fetch):
                self._requested = action

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
        """Answer the request for the Change List, or the next one."""
        while self._requested is None:
            assert self.follower.wakeup is not None
            self.wait(max(0.0, self.follower.wakeup - self.wire.now))
        fetch, self._requested = self._requested, None
        self._begin(self.follower.fetched(fetch, document, self.wire.now))

    def compare(self, wait: float, *listed: Resource) -> None:
        """Wait, and compare everything with a Resource List, by default one without resources."""
        self.wire.now += wait
        self.wire.actions = self.follower.tick(self.wire.now)
        self._begin(self.wire.actions)
        assert self.wire.requested() == [DocumentKind.RESOURCE_LIST]
        seconds = 200 + int(self.wire.now)
        self.wire.answer(listing(*listed, seconds=seconds))
        self._begin(self.follower.differing((), self.wire.now, absent=listed))
        self._begin(self.follower.unlisted((), self.wire.now))
        self.read(Document(Capability.CHANGE_LIST, from_=EPOCH, until=at(seconds)))

    def answer(self) -> None:
        """Answer a GET with 404; a deletion is applied, or found to be right."""
        if self.in_flight[0].change is ChangeType.DELETED:
            self.applied()
        else:
            self._answer_404()

    def applied(self) -> None:
        """Answer a GET with the resource."""
        self._begin(self.follower.applied([self.in_flight.pop(0)], self.wire.now))

    def _answer_404(self) -> None:
        self.fail(NotFound(URI, "404"))

    def fail(self, error: RsnotifyError) -> None:
        change = self.in_flight.pop(0)
        self._begin(self.follower.failed(change, error, self.wire.now))

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
    offer = Offer(resource_list="r", resource_list_archive="a")
    wire = Wire(offer, gone_after=GONE_AFTER, baseline_after=1)
    members = (Resource("one"), Resource("two"))
    wire.answer(Document(Capability.RESOURCE_LIST, members, index=True, at=at(100)))
    wire.answer(listing(LISTED))
    wire.actions = wire.follower.differing((LISTED,), wire.now)
    wire.answer(MalformedDocument("truncated", source="two"))
    for _ in range(PACE.give_up):
        (apply,) = [action for action in wire.actions if isinstance(action, Apply)]
        error = NotFound(URI, "404")
        wire.actions = wire.follower.failed(apply.changes[0], error, wire.now)
        if fetches := [action for action in wire.actions if isinstance(action, Fetch)]:
            archive = fetches
        wire.now += PACE.retry.most
        wire.actions = wire.follower.tick(wire.now)
    wire.actions = list(archive)
    wire.answer(Document(Capability.RESOURCE_LIST_ARCHIVE, (Resource("one"),)))
    wire.answer(listing(LISTED))
    wire.follower.differing((LISTED,), wire.now)
    wire.follower.unlisted((), wire.now)
    assert not wire.follower.level
    progress = wire.follower.progress
    assert progress is not None
    assert [one.uri for one in progress.missing] == [URI]


@pytest.mark.parametrize("point", ["removed", "fetched again"])
def test_a_missing_resource_is_no_doubt_once_a_resource_list_read_meanwhile_lacks_it(
    missing: MissingResource, point: str
) -> None:
    missing.until(point)
    missing.read(NO_CHANGES)
    missing.compare(wait=GONE_AFTER)
    assert not missing.follower.level
    missing.answer()
    assert missing.follower.level, missing.follower.doubts


def test_a_resource_that_a_list_lacks_and_its_server_has_again_needs_another_comparison(
    missing: MissingResource,
) -> None:
    missing.until("waiting")
    missing.read(NO_CHANGES)
    missing.compare(wait=GONE_AFTER)
    missing.applied()
    missing.compare(wait=PACE.repair)
    assert missing.follower.level, missing.follower.doubts


def test_a_resource_that_a_later_list_has_again_stays_a_doubt(missing: MissingResource) -> None:
    missing.until("waiting")
    missing.read(NO_CHANGES)
    missing.compare(wait=GONE_AFTER)
    missing.fail(Unavailable(URI, "500"))
    missing.compare(PACE.repair, LISTED)
    while missing.in_flight:
        missing.answer()
    missing.wait(2 * GONE_AFTER)
    while missing.in_flight:
        missing.answer()
    assert not missing.follower.level
