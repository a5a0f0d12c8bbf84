"""How changes wait in the backlog until all lists are read, event by event."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from rsnotify.errors import MalformedDocument, NotFound, Unavailable
from rsnotify.format.coverage import EARLIEST, Change, CheckMethod
from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Capability, ChangeType, Document, Resource
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import (
    Action,
    Apply,
    BacklogExtent,
    ClearBacklog,
    DocumentKind,
    Fetch,
    StoreBacklog,
    TakeBacklog,
)
from rsnotify.sync.progress import MissingResource, Progress
from tests.core.source import EPOCH, at
from tests.core.wire import Wire

LISTS = Offer(change_list="changes", resource_list="resources")
#: An index of two closed lists and the open one.
MEMBERS = (
    Resource("one", from_=EPOCH, until=at(10)),
    Resource("two", from_=at(10), until=at(20)),
    Resource("open", from_=at(20)),
)
INDEX = Document(Capability.CHANGE_LIST, MEMBERS, index=True, from_=EPOCH)


def entry(name: str, seconds: float) -> Resource:
    return Resource(
        name, change=ChangeType.UPDATED, datetime=at(seconds), hash=f"md5:{name}{seconds}"
    )


def listing(from_: float, until: float | None, *resources: Resource) -> Document:
    ends = None if until is None else at(until)
    return Document(Capability.CHANGE_LIST, resources, from_=at(from_), until=ends)


class Backlogged(Wire):
    """A Follower with a backlog that is kept here, and answered by `answer_backlog`."""

    def __init__(self, offer: Offer, progress: Progress | None = None, **pace: float) -> None:
        self.rows: list[tuple[Change, Instant]] = []
        super().__init__(offer, progress, parked=0, **pace)

    def of(self, kind: type[Action]) -> list[Action]:
        return [action for action in self.actions if isinstance(action, kind)]

    def applying(self) -> list[tuple[str, str | None]]:
        found = [action for action in self.actions if isinstance(action, Apply)]
        return [(one.uri, one.resource.hash) for each in found for one in each.changes]

    def answer_backlog(self) -> None:
        """Answer the actions on the backlog until there is none; keep all other actions."""
        actions, waiting = [], list(self.actions)
        while waiting:
            action = waiting.pop(0)
            if isinstance(action, ClearBacklog):
                self.rows.clear()
            elif isinstance(action, StoreBacklog):
                self.rows += action.changes
                waiting += self._done(action, [])
            elif isinstance(action, TakeBacklog):
                waiting += self._take(action)
            else:
                actions.append(action)
        self.actions = actions

    def _take(self, action: TakeBacklog) -> list[Action]:
        ordered = [change.uri for change, _ in sorted(self.rows, key=lambda row: row[1])]
        uris = action.uris or list(dict.fromkeys(ordered))[: action.most]
        taken = [row for row in self.rows if row[0].uri in uris]
        self.rows = [row for row in self.rows if row[0].uri not in uris]
        return self._done(action, taken)

    def _done(
        self, action: StoreBacklog | TakeBacklog, taken: Sequence[tuple[Change, Instant]]
    ) -> list[Action]:
        extent = BacklogExtent(
            len({change.uri for change, _ in self.rows}),
            min((since for _, since in self.rows), default=None),
        )
        return self.follower.backlog_done(action, extent, taken, self.now)


def reading(**pace: float) -> Backlogged:
    """Return a follower that has read the first of the lists, which has a and b."""
    wire = Backlogged(LISTS, Progress(EPOCH, EPOCH), **pace)
    wire.answer(INDEX)
    wire.answer(listing(0, 10, entry("a", 1), entry("b", 2)))
    return wire


def test_a_resource_is_fetched_once_and_only_when_all_lists_are_read() -> None:
    wire = reading()
    assert wire.requested() == [], "the changes of a list are stored before the next is read"
    wire.answer_backlog()
    wire.answer(listing(10, 20, entry("a", 11)))
    wire.answer_backlog()
    assert wire.follower.pending == 2
    assert wire.follower.state.pending.is_holding
    wire.answer(listing(20, None, entry("b", 21)))
    wire.answer_backlog()
    assert sorted(wire.applying()) == [("a", "md5:a11"), ("b", "md5:b21")]
    assert not wire.follower.state.pending.is_holding


def test_t_waits_for_the_earliest_change_in_the_backlog() -> None:
    wire = reading(in_flight=1)
    wire.answer_backlog()
    wire.answer(listing(10, 20, entry("c", 11), entry("d", 12)))
    wire.answer_backlog()
    wire.answer(listing(20, None))
    while True:
        wire.answer_backlog()
        applied = [one for each in wire.of(Apply) for one in each.changes]  # type: ignore[attr-defined]
        progress = wire.follower.progress
        assert progress is not None
        if not applied:
            break
        assert progress.through < applied[0].at
        foreseen = wire.follower.progress_after(applied)
        assert foreseen is not None
        assert all(foreseen.through < since for _, since in wire.rows)
        wire.actions = wire.follower.applied(applied, wire.now)
    assert progress.through == at(20)
    assert wire.follower.level


def test_what_is_being_stored_holds_up_t_before_that_is_answered() -> None:
    wire = reading()
    assert wire.follower.progress is not None
    assert wire.follower.progress.through < at(1)
    assert wire.follower.pending == 2


@pytest.mark.parametrize("spread", [0.0, 5.0])
def test_a_pushed_change_takes_the_earlier_ones_of_its_resource_with_it(spread: float) -> None:
    wire = reading(spread=spread)
    wire.answer_backlog()
    fragment = Document(
        Capability.CHANGE_NOTIFICATION, (entry("b", 15),), from_=at(10), until=at(15)
    )
    wire.actions = wire.follower.fragment(fragment, wire.now)
    takes = [action for action in wire.actions if isinstance(action, TakeBacklog)]
    assert [take.uris for take in takes] == [("b",)]
    wire.answer_backlog()
    if spread:
        assert wire.applying() == []
        wire.wait()
    assert wire.applying() == [("b", "md5:b15")]
    assert [change.uri for change, _ in wire.rows] == ["a"], "it waits for the other lists"
    assert wire.follower.progress is not None
    assert wire.follower.progress.through < at(1)


def test_a_run_that_fails_lets_go_of_what_it_has_read() -> None:
    wire = reading()
    wire.answer_backlog()
    wire.answer(MalformedDocument("truncated", source="two"))
    wire.answer_backlog()
    assert sorted(wire.applying()) == [("a", "md5:a1"), ("b", "md5:b2")]


def test_a_list_of_all_resources_is_copied_after_the_change_list_was_read() -> None:
    wire = Backlogged(LISTS)
    resources = [Resource(name, hash=f"md5:{name}1") for name in "abc"]
    wire.answer(Document(Capability.RESOURCE_LIST, tuple(resources), at=at(5)))
    wire.actions = wire.follower.differing((), wire.now, resources)
    assert wire.requested() == []
    wire.answer_backlog()
    wire.actions = wire.follower.unlisted((), wire.now)
    wire.answer_backlog()
    assert (wire.requested(), wire.applying()) == ([DocumentKind.CHANGE_LIST], [])
    wire.answer(listing(0, None, entry("b", 6)))
    wire.answer_backlog()
    assert sorted(wire.applying()) == [("a", "md5:a1"), ("b", "md5:b6"), ("c", "md5:c1")]
    assert wire.follower.progress is None


def test_a_baseline_begins_once_the_backlog_of_the_last_one_is_empty() -> None:
    wire = Backlogged(Offer(resource_list="resources"), in_flight=1)
    index = Document(
        Capability.RESOURCE_LIST, (Resource("one"), Resource("two")), index=True, at=at(5)
    )
    wire.answer(index)
    resources = [Resource(name) for name in "abcdef"]
    wire.answer(Document(Capability.RESOURCE_LIST, tuple(resources), at=at(5)))
    wire.actions = wire.follower.differing((), wire.now, resources)
    wire.answer_backlog()
    wire.answer(MalformedDocument("truncated", source="two"))
    wire.answer_backlog()
    copied = 0
    wire.now += 100
    actions = wire.actions + wire.follower.tick(wire.now)
    while copied < len(resources):
        wire.actions = actions
        wire.answer_backlog()
        if wire.rows:
            assert wire.requested() == [], "its list may lack what is still to be copied"
        (apply,) = wire.of(Apply)
        assert isinstance(apply, Apply)
        copied += len(apply.changes)
        actions = [one for one in wire.actions if isinstance(one, Fetch)]
        actions += wire.follower.applied(apply.changes, wire.now)
    wire.actions = actions
    assert wire.requested() == [DocumentKind.RESOURCE_LIST]


def test_a_new_dump_takes_the_place_of_the_backlog_of_a_first_copy() -> None:
    wire = Backlogged(LISTS, in_flight=1)
    resources = [Resource(str(number)) for number in range(9)]
    wire.answer(Document(Capability.RESOURCE_LIST, tuple(resources), at=at(5)))
    wire.actions = wire.follower.differing((), wire.now, resources)
    wire.answer_backlog()
    wire.actions = wire.follower.unlisted((), wire.now)
    wire.answer_backlog()
    wire.answer(listing(0, None))
    (take,) = wire.of(TakeBacklog)
    assert wire.follower.offered(LISTS, wire.now) == [], "it is the same offer"
    offer = Offer(change_list="changes", resource_list="resources", resource_dump="dump")
    wire.actions = wire.follower.offered(offer, wire.now)
    assert wire.of(ClearBacklog)
    assert wire.requested() == [DocumentKind.RESOURCE_DUMP]
    assert isinstance(take, TakeBacklog)
    late = [(Change("0", ChangeType.UPDATED, at(5), resources[0]), EARLIEST)]
    extent = BacklogExtent(8, EARLIEST)
    assert wire.follower.backlog_done(take, extent, late, wire.now) == [], "it was cleared since"
    assert wire.follower.pending == 0
    wire.answer(Unavailable("dump", "busy"))
    assert wire.requested() == [], "with backoff"


def test_a_pushed_change_in_the_backlog_is_verified_if_everything_is_compared_meanwhile() -> None:
    wire = Backlogged(Offer(resource_list="resources"), Progress(at(10), at(10)), compare=0.0)
    wire.answer(Document(Capability.RESOURCE_LIST, (Resource("a"),), at=at(20)))
    wire.actions = wire.follower.differing((), wire.now, [Resource("a")])
    wire.answer_backlog()
    fragment = Document(
        Capability.CHANGE_NOTIFICATION, (entry("b", 15),), from_=at(10), until=at(15)
    )
    wire.actions = wire.follower.fragment(fragment, wire.now)
    wire.actions += wire.follower.unlisted((), wire.now)
    checks = []
    for _ in range(2):
        wire.answer_backlog()
        applied = [one for each in wire.of(Apply) for one in each.changes]  # type: ignore[attr-defined]
        checks += [(one.uri, one.check) for one in applied]
        wire.actions = wire.follower.applied(applied, wire.now)
    assert checks[0] == ("b", CheckMethod.DATE)
    assert checks[-1] == ("b", CheckMethod.FETCH), "the list does not have it"


def test_a_missing_resource_is_remembered_until_its_deletion_from_the_backlog_is_applied() -> None:
    announced = MissingResource("gone", at(10), entry("gone", 10), at(10))
    wire = Backlogged(LISTS, Progress(at(20), at(20), missing=(announced,)))
    (retry,) = [action for action in wire.actions if isinstance(action, Apply)]
    wire.answer(listing(25, None))
    wire.follower.failed(retry.changes[0], NotFound("gone", "404"), wire.now)
    wire.answer(Document(Capability.RESOURCE_LIST, at=at(30)))
    wire.actions = wire.follower.differing([], wire.now)
    wire.actions = wire.follower.unlisted(["other", announced.uri], wire.now)
    assert wire.follower.progress.missing == (announced,)
    wire.answer_backlog()
    (apply,) = [action for action in wire.actions if isinstance(action, Apply)]
    assert [(one.uri, one.change) for one in apply.changes] == [("gone", ChangeType.DELETED)]
    wire.follower.applied(apply.changes, wire.now)
    assert wire.follower.progress.missing == ()


def test_lost_resources_are_fetched_again_once_there_is_no_backlog() -> None:
    """It may have their entries, and the comparison would take the resources for unlisted."""
    wire = reading()
    lost = Change("z", ChangeType.UPDATED, EPOCH - timedelta(1), Resource("z", hash="md5:z"))
    wire.actions += wire.follower.verify([lost], wire.now)
    wire.answer_backlog()
    assert {change.uri for change, _ in wire.rows} == {"a", "b"}
    assert "z" not in wire.follower.state.pending
