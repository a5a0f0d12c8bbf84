"""What a comparison with the whole set applies and requests, event by event."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from rsnotify.errors import ContentMismatch, NotFound, RsnotifyError, Unavailable
from rsnotify.format.coverage import Change, CheckMethod
from rsnotify.format.datetimes import Instant
from rsnotify.format.model import Capability, ChangeType, Document, Resource
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import Apply, Compare, DocumentKind, Fetch, FindUnlisted
from rsnotify.sync.progress import ComparedList, MissingResource, Progress
from tests.core.wire import Wire
from tests.core.world import EPOCH, PACE

LIST = Offer(change_list="changes", resource_list="resources")
DUMP = Offer(change_list="changes", resource_dump="dump")
BOTH = Offer(change_list="changes", resource_list="resources", resource_dump="dump")
A = Resource("a")


def at(seconds: float) -> Instant:
    return EPOCH + timedelta(seconds=seconds)


def known(seconds: float) -> Progress:
    return Progress(at(seconds), at(seconds))


def listing(seconds: float, *resources: Resource) -> Document:
    return Document(Capability.RESOURCE_LIST, resources, at=at(seconds))


def index(seconds: float, *names: str) -> Document:
    members = tuple(map(Resource, names))
    return Document(Capability.RESOURCE_LIST, members, at=at(seconds), index=True)


def dump(seconds: float, *names: str) -> Document:
    return Document(Capability.RESOURCE_DUMP, tuple(map(Resource, names)), at=at(seconds))


def manifest(seconds: float, *resources: Resource) -> Document:
    return Document(Capability.RESOURCE_DUMP_MANIFEST, resources, at=at(seconds))


def no_changes(seconds: float) -> Document:
    return Document(Capability.CHANGE_LIST, from_=EPOCH, until=at(seconds))


def applying(wire: Wire) -> list[Change]:
    return [one for each in wire.actions if isinstance(each, Apply) for one in each.changes]


def comparing(wire: Wire) -> list[Compare]:
    return [action for action in wire.actions if isinstance(action, Compare)]


def requested_uris(wire: Wire) -> list[str]:
    return [action.uri for action in wire.actions if isinstance(action, Fetch)]


@pytest.mark.parametrize(
    ("seconds", "kind", "check"),
    [
        (4, ChangeType.DELETED, CheckMethod.FETCH),
        (5, ChangeType.UPDATED, CheckMethod.DATE),
        (6, ChangeType.UPDATED, CheckMethod.DATE),
    ],
)
@pytest.mark.parametrize("is_routine", [True, False], ids=["routine", "an audit found differences"])
def test_a_resource_that_is_not_stored_may_be_deleted_since_an_older_list(
    seconds: float, kind: ChangeType, check: CheckMethod, is_routine: bool
) -> None:
    wire = Wire(LIST, known(5), compare=0.0 if is_routine else 1e9)
    if not is_routine:
        while wire.requested() != [DocumentKind.CHANGE_LIST]:
            wire.answer(listing(5))
            wire.follower.differing([], wire.now)
            wire.actions = wire.follower.unlisted([], wire.now)
        wire.answer(no_changes(5))
        wire.follower.catch_up.check(wire.now, wire.now, everything=True)
        wire.wait()
    wire.answer(listing(seconds, A))
    wire.follower.differing([], wire.now, [A])
    wire.actions = wire.follower.unlisted([], wire.now)
    assert not applying(wire), "the Change List may have a later change"
    wire.answer(no_changes(7))
    (change,) = applying(wire)
    assert (change.change, change.check) == (kind, check)


@pytest.mark.parametrize(("seconds", "package"), [(4, None), (5, "package"), (6, "package")])
def test_the_content_of_a_dump_is_used_if_no_later_change_is_known(
    seconds: float, package: str | None
) -> None:
    wire = Wire(DUMP, known(5), compare=0.0)
    wire.answer(dump(6, "package"))
    wire.answer(manifest(seconds, A))
    wire.actions = wire.follower.differing([A], wire.now)
    (change,) = applying(wire)
    assert change.package == package


def test_content_of_a_package_is_compared_as_of_the_time_that_its_change_will_have() -> None:
    """Otherwise each comparison would find what is not applied, as the copy is later."""
    wire = Wire(DUMP, known(3), compare=0.0)
    wire.answer(dump(4, "package"))
    wire.answer(manifest(6, A))
    assert comparing(wire) == [Compare((A,), at(4), lost=True, packaged=True)]


@pytest.mark.parametrize("offer", [Offer(resource_list="list"), Offer(resource_dump="dump")])
@pytest.mark.parametrize(("seconds", "is_level"), [(4, False), (5, True), (6, True)])
def test_after_another_selection_a_list_older_than_the_copy_is_a_doubt(
    offer: Offer, seconds: float, is_level: bool
) -> None:
    """The clock of the Source went back: what the copy has of a later time is left alone."""
    wire = Wire(offer, last_list=ComparedList(at=at(5)))
    wire.answer(listing(seconds) if offer.resource_list else dump(seconds))
    wire.actions = wire.follower.unlisted([], wire.now)
    assert wire.follower.level is is_level
    progress = wire.follower.progress
    assert progress is not None
    assert progress.last_list is not None
    assert progress.last_list.at == at(max(seconds, 5))


@pytest.mark.parametrize(("sent", "is_level"), [(6, True), (None, True), (3, False)])
def test_a_list_that_was_sent_before_what_the_copy_has_is_a_doubt_where_no_changes_are_listed(
    sent: float | None, is_level: bool
) -> None:
    wire = Wire(Offer(resource_list="list"), known(5))
    (fetch,) = [each for each in wire.actions if isinstance(each, Fetch)]
    date = None if sent is None else at(sent)
    wire.actions = wire.follower.fetched(fetch, listing(4), wire.now, date)
    wire.actions = wire.follower.differing([], wire.now)
    wire.actions = wire.follower.unlisted([], wire.now)
    assert wire.follower.level is is_level


@pytest.mark.parametrize(
    ("resource", "check"),
    [
        (Resource("a", hash="md5:1"), CheckMethod.FETCH),
        (Resource("a", lastmod=EPOCH), CheckMethod.FETCH),
        (A, CheckMethod.DATE),
    ],
)
def test_what_differs_from_the_list_that_was_compared_before_is_fetched(
    resource: Resource, check: CheckMethod
) -> None:
    wire = Wire(LIST, known(5), compare=0.0)
    wire.answer(listing(6, resource))
    assert comparing(wire) == [Compare((resource,), at(6), lost=True)]
    wire.follower.differing([resource], wire.now)
    wire.actions = wire.follower.unlisted([], wire.now)
    wire.answer(no_changes(7))
    (first,) = applying(wire)
    assert first.check is CheckMethod.DATE, "the list is new"
    wire.follower.applied([first], wire.now)
    wire.wait()
    wire.answer(listing(6, resource))
    assert comparing(wire) == [Compare((resource,), at(6))]
    is_unproven = resource == A
    wire.follower.differing(
        [] if is_unproven else [resource],
        wire.now,
        [Resource("missing")],
        [resource] if is_unproven else [],
    )
    wire.actions = wire.follower.unlisted([], wire.now)
    wire.answer(no_changes(7))
    assert [(change.uri, change.check) for change in applying(wire)] == [("a", check)]


def test_the_resources_of_a_document_are_compared_once() -> None:
    wire = Wire(LIST, known(5), compare=0.0)
    wire.answer(index(6, "one", "two"))
    wire.answer(listing(6))
    wire.actions = wire.follower.differing([], wire.now)
    assert requested_uris(wire) == ["two"]
    assert wire.follower.differing([], wire.now) == []


def test_the_copy_is_as_old_as_before_until_unlisted_resources_are_removed() -> None:
    wire = Wire(LIST, known(5), compare=0.0)
    wire.answer(listing(9))
    wire.follower.differing([], wire.now)
    wire.actions = wire.follower.unlisted(["a"], wire.now)
    wire.answer(no_changes(9))
    (deletion,) = applying(wire)
    assert wire.follower.progress is not None
    assert wire.follower.progress.through == at(5)
    wire.follower.applied([deletion], wire.now)
    assert wire.follower.progress.through == at(9)


def test_a_lost_resource_that_fails_while_all_is_compared_keeps_the_hash_it_must_have() -> None:
    wire = Wire(Offer(resource_list="resources"), known(5), compare=0.0)
    listed = replace(A, hash="md5:1")
    wire.answer(listing(9, listed))
    wire.follower.differing([], wire.now)  # it was not lost yet when it was compared
    lost = Change("a", ChangeType.UPDATED, at(1), listed, check=CheckMethod.FETCH)
    wire.actions = wire.follower.verify([lost], wire.now)
    (fetched,) = applying(wire)
    wire.follower.failed(fetched, ContentMismatch("a", "it is another one"), wire.now)
    wire.actions = wire.follower.unlisted([], wire.now)
    assert applying(wire) == []
    assert wire.follower.state.pending.holds(lost)


@pytest.mark.parametrize(("content", "is_superseded"), [("md5:1", False), ("md5:2", True)])
def test_a_failing_change_is_superseded_by_a_later_list_with_other_content(
    content: str, is_superseded: bool
) -> None:
    wire = Wire(LIST, known(5), compare=0.0)
    entry = Resource("a", change=ChangeType.UPDATED, datetime=at(4), hash="md5:1")
    change = Change("a", ChangeType.UPDATED, at(4), entry)
    wire.follower.state.pending.announce(change)
    (failing,) = wire.follower.state.pending.dispatch(1, wire.now)
    wire.follower.failed(failing, ContentMismatch("a", "it has changed since"), wire.now)
    wire.answer(listing(9, replace(A, hash=content)))
    wire.actions = wire.follower.differing([], wire.now)
    assert [change.resource.hash for change in applying(wire)] == [content] * is_superseded


@pytest.mark.parametrize(
    ("deleted", "lastmod", "kind", "check"),
    [
        (4, 6, ChangeType.UPDATED, CheckMethod.DATE),
        (4, 3, ChangeType.UPDATED, CheckMethod.FETCH),
        (12, 3, ChangeType.DELETED, CheckMethod.FETCH),
    ],
    ids=["changed since", "listed since", "a list from before the deletion"],
)
def test_a_deletion_that_is_not_applied_yet_is_superseded_by_a_list_that_has_the_resource(
    deleted: int, lastmod: int, kind: ChangeType, check: CheckMethod
) -> None:
    """The copy still has the resource, so the comparison finds no difference."""
    wire = Wire(LIST, known(5), compare=0.0)
    deletion = Resource("a", change=ChangeType.DELETED, datetime=at(deleted))
    wire.follower.state.pending.announce(Change("a", ChangeType.DELETED, at(deleted), deletion))
    wire.answer(listing(9, Resource("a", lastmod=at(lastmod))))
    deleting = applying(wire)
    wire.follower.differing([], wire.now)
    wire.actions = wire.follower.applied(deleting, wire.now)
    found = [(change.change, change.check) for change in applying(wire)]
    assert found == [(kind, check)]


def test_a_resource_that_an_unreadable_dump_had_and_the_list_read_next_lacks_is_dropped() -> None:
    wire = Wire(BOTH)
    wire.answer(dump(5, "one", "two"))
    wire.answer(manifest(5, A))
    wire.actions = wire.follower.differing([], wire.now, [A])
    (change,) = applying(wire)
    wire.follower.failed(change, NotFound("a", "404"), wire.now)
    assert requested_uris(wire) == ["two"]
    wire.answer(NotFound("two", "404"))
    wire.answer(listing(6))
    wire.actions = wire.follower.differing([], wire.now)
    wire.actions = wire.follower.unlisted([], wire.now)
    assert wire.follower.pending == 0


@pytest.mark.parametrize("found", ["nothing", "unproven", "different", "absent", "unlisted"])
def test_polls_come_sooner_after_a_comparison_that_found_something(found: str) -> None:
    wire = Wire(LIST, known(5), compare=0.0, poll=100.0)
    listed = replace(A, hash="md5:1")
    wire.answer(listing(6, listed))
    different, absent, unproven = (
        [listed] * (found == kind) for kind in ("different", "absent", "unproven")
    )
    wire.actions = wire.follower.differing(different, wire.now, absent, unproven)
    wire.actions = wire.follower.unlisted(["b"] * (found == "unlisted"), wire.now)
    wire.answer(no_changes(7))
    begun = applying(wire)
    wire.follower.applied(begun, wire.now)
    assert (wire.wait() < 100.0) is (found not in ("nothing", "unproven"))


def test_a_package_is_no_routine() -> None:
    wire = Wire(DUMP, known(5), compare=10.0)
    wire.answer(no_changes(5))
    while wire.requested() != [DocumentKind.RESOURCE_DUMP]:
        wire.wait()
        if wire.requested() == [DocumentKind.CHANGE_LIST]:
            wire.answer(no_changes(5))
    assert wire.follower.level
    wire.answer(dump(6, "package"))
    assert requested_uris(wire) == ["package"]
    assert not wire.follower.level


def answer_all(wire: Wire, **documents: Document | RsnotifyError) -> list[str]:
    """Answer all requests in turn, and return their URIs; nothing differs."""
    uris = []
    while requested := requested_uris(wire):
        uris += requested
        wire.answer(documents[uris[-1]])
        if comparing(wire):
            wire.actions = wire.follower.differing([], wire.now)
        if any(isinstance(action, FindUnlisted) for action in wire.actions):
            wire.actions = wire.follower.unlisted([], wire.now)
    return uris


@pytest.mark.parametrize(
    ("offer", "uris"),
    [
        (BOTH, ["dump", "changes", "resources", "changes"]),
        (LIST, ["resources", "changes"]),
        (DUMP, ["dump", "changes"]),
    ],
)
def test_a_first_copy_made_from_a_dump_is_compared_with_the_list_at_once(
    offer: Offer, uris: list[str]
) -> None:
    wire = Wire(offer)
    found = answer_all(wire, dump=dump(5), resources=listing(5), changes=no_changes(5))
    assert found == uris
    assert wire.follower.level


def test_the_list_is_awaited_for_a_first_copy_made_from_a_dump() -> None:
    wire = Wire(BOTH)
    busy = Unavailable("resources", "busy")
    found = answer_all(wire, dump=dump(5), resources=busy, changes=no_changes(5))
    assert found == ["dump", "changes", "resources"]
    assert not wire.follower.level
    wire.wait()
    assert requested_uris(wire) == ["resources"]


@pytest.mark.parametrize(
    ("lists", "check"),
    [
        ((4,), CheckMethod.FETCH),
        ((5,), CheckMethod.FETCH),
        ((5, 5), CheckMethod.FETCH),
        ((6,), CheckMethod.DATE),
        ((6, 5), CheckMethod.DATE),
    ],
)
def test_what_only_the_dump_has_is_fetched_until_a_later_list_was_compared(
    lists: tuple[float, ...], check: CheckMethod
) -> None:
    wire = Wire(BOTH, compare=0.0)
    wire.answer(dump(5))
    wire.actions = wire.follower.unlisted([], wire.now)
    wire.answer(no_changes(7))
    for number, seconds in enumerate(lists, 1):
        while requested_uris(wire) != ["resources"]:
            wire.wait()
        wire.answer(listing(seconds, *[A] * number))
        wire.follower.differing([], wire.now)
        is_last = number == len(lists)
        wire.actions = wire.follower.unlisted(["only in the dump"] * is_last, wire.now)
        wire.answer(no_changes(7))
    (deletion,) = applying(wire)
    assert (deletion.change, deletion.check) == (ChangeType.DELETED, check)


def compare_because(reason: str, wire: Wire) -> None:
    """Have everything compared, and answer the requests that come before."""
    if reason == "something is lost":
        wire.actions = wire.follower.compare_lost(wire.now)
    elif reason == "the Source has moved":
        moved = replace(wire.follower.catch_up.offer, capability_list="moved")
        wire.actions = wire.follower.offered(moved, wire.now)
    begins = 50 if reason == "a gap" else 0
    while requested_uris(wire) in ([], ["changes"]):
        if requested_uris(wire):
            wire.answer(replace(no_changes(60), from_=at(begins)))
        else:
            wire.wait()


@pytest.mark.parametrize(
    ("reason", "is_forced"),
    [("something is lost", False), ("the Source has moved", True), ("a gap", True)],
)
def test_what_a_list_cannot_prove_is_requested_if_more_than_routine_is_the_reason(
    reason: str, is_forced: bool
) -> None:
    wire = Wire(LIST, known(5))
    wire.answer(no_changes(7))
    compare_because("something is lost", wire)  # the first comparison of a run requests it
    answer_all(wire, resources=listing(6), changes=no_changes(7))
    compare_because(reason, wire)
    wire.answer(listing(6))
    assert comparing(wire) == [Compare((), at(6), lost=True)], "although it is the same list"
    wire.follower.differing([], wire.now, [], [A])
    wire.actions = wire.follower.unlisted([], wire.now)
    wire.answer(no_changes(80))
    assert [change.uri for change in applying(wire)] == ["a"] * is_forced


@pytest.mark.parametrize(
    ("reason", "is_compared"),
    [("it is due", False), ("something is lost", True), ("the Source has moved", True)],
)
def test_a_dump_older_than_the_copy_is_compared_for_a_reason(
    reason: str, is_compared: bool
) -> None:
    wire = Wire(DUMP, known(5), compare=1.0)
    wire.answer(no_changes(5))
    compare_because(reason, wire)
    wire.answer(dump(4))
    assert any(isinstance(action, FindUnlisted) for action in wire.actions) is is_compared


def test_a_resource_that_failed_before_stays_pending_while_a_list_does_not_show_its_version() -> (
    None
):
    wire = Wire(LIST, known(5))
    wire.answer(no_changes(7))
    for seconds in (6, 9):
        compare_because("something is lost", wire)
        wire.answer(listing(seconds, A))
        wire.follower.differing([], wire.now, [], [A])
        wire.actions = wire.follower.unlisted([], wire.now)
        wire.answer(no_changes(9))
        for change in applying(wire):  # only the first comparison requests it
            wire.follower.failed(change, Unavailable("a", "busy"), wire.now)
    assert wire.follower.pending == 1


@pytest.mark.parametrize(
    ("announced", "listed", "is_missing"),
    [
        (None, [Resource("a", hash="md5:1")], True),
        (Resource("a", hash="md5:1"), [Resource("a", hash="md5:1")], True),
        (Resource("a", hash="md5:1"), [A], True),
        (Resource("a", hash="md5:1"), [Resource("a", hash="md5:2")], False),
        (None, [], False),
    ],
)
def test_a_missing_resource_is_expected_while_a_list_announces_it_as_before(
    announced: Resource | None, listed: list[Resource], is_missing: bool
) -> None:
    missing = MissingResource("a", at(1), announced, at(1))
    wire = Wire(LIST, replace(known(5), missing=(missing,)), compare=0.0)
    (change,) = applying(wire)
    wire.follower.failed(change, NotFound("a", "404"), wire.now)
    wire.answer(index(6, "one", "two"))
    for resources in ([Resource("b"), *listed], []):
        wire.answer(listing(6, *resources))
        wire.actions = wire.follower.differing([], wire.now)
    wire.actions = wire.follower.unlisted([], wire.now)
    wire.follower.applied(applying(wire), wire.now)
    wire.answer(no_changes(7))
    assert wire.follower.progress is not None
    assert bool(wire.follower.progress.missing) is is_missing


def test_a_missing_resource_is_no_less_expected_if_an_older_list_has_it() -> None:
    """The copy lacks it because its server does, and not because it was deleted."""
    missing = MissingResource("a", at(1))
    wire = Wire(LIST, replace(known(5), missing=(missing,)), compare=0.0)
    (change,) = applying(wire)
    wire.follower.failed(change, NotFound("a", "404"), wire.now)
    wire.answer(listing(4, A))
    wire.follower.differing([], wire.now, [A])
    wire.actions = wire.follower.unlisted([], wire.now)
    wire.answer(no_changes(7))
    assert wire.follower.progress is not None
    assert wire.follower.progress.missing == (missing,)


def test_a_list_is_compared_again_if_a_resource_that_it_lacks_was_being_fetched() -> None:
    missing = MissingResource("a", at(1))
    wire = Wire(LIST, replace(known(5), missing=(missing,)), compare=0.0)
    answer_all(wire, resources=listing(6), changes=no_changes(7))
    assert wire.follower.progress is not None
    assert wire.follower.progress.last_list == ComparedList(None, at(6))


@pytest.mark.parametrize(
    ("offer", "last_list"),
    [
        (DUMP, ComparedList(None, at(4))),
        (Offer(resource_dump="dump"), ComparedList(None, at(9))),  # it stands in for a list
    ],
)
def test_a_compared_dump_does_not_show_that_the_next_list_is_the_last_one(
    offer: Offer, last_list: ComparedList
) -> None:
    before = ComparedList(b"list", at(4), is_older=True)
    wire = Wire(offer, replace(known(5), last_list=before), compare=0.0)
    wire.answer(dump(9, "package"))
    wire.answer(manifest(6))
    wire.follower.differing([], wire.now)
    wire.actions = wire.follower.unlisted([], wire.now)
    assert wire.follower.progress is not None
    assert wire.follower.progress.last_list == last_list


def test_a_list_dated_ahead_is_the_same_until_that_time_has_come() -> None:
    wire = Wire(LIST, known(5), compare=0.0)
    lost = []
    for sent in (6, 9, 12):
        (fetch,) = [action for action in wire.actions if isinstance(action, Fetch)]
        wire.actions = wire.follower.fetched(fetch, listing(12, A), wire.now, at(sent))
        lost += [compare.lost for compare in comparing(wire)]
        wire.follower.differing([A] * (sent == 9), wire.now)
        wire.actions = wire.follower.unlisted([], wire.now)
        wire.answer(no_changes(7))
        for change in applying(wire):
            assert (change.check, change.at) == (CheckMethod.FETCH, at(7)), "as the copy is later"
            wire.follower.applied([change], wire.now)
        wire.wait()
    assert lost == [True, False, True]


def test_a_new_dump_is_not_read_before_the_last_answer_to_a_question_about_the_copy() -> None:
    wire = Wire(Offer(resource_list="resources"))
    resources = [Resource(f"{number}") for number in range(PACE.in_flight + 1)]
    wire.answer(listing(6, *resources))
    wire.actions = wire.follower.differing(resources, wire.now)
    assert FindUnlisted(at(6)) in wire.actions
    wire.actions = wire.follower.offered(
        Offer(resource_list="resources", resource_dump="dump"), wire.now
    )
    assert requested_uris(wire) == [], "its answer would be about the dump"


def test_all_of_a_broken_dump_is_applied_before_the_list_is_read() -> None:
    wire = Wire(Offer(resource_list="resources", resource_dump="dump"))
    wire.answer(dump(6, "one", "two"))
    wire.answer(manifest(6, A))
    wire.actions = wire.follower.differing([A], wire.now)
    assert requested_uris(wire) == ["two"], "packages are read ahead"
    (change,) = applying(wire)
    wire.answer(NotFound("two", "404"))
    assert requested_uris(wire) == []
    wire.actions = wire.follower.applied([change], wire.now)
    assert requested_uris(wire) == ["resources"]


@pytest.mark.parametrize(
    ("progress", "most", "following"),
    [
        (None, 0, "two"),
        (None, 1, "dump"),
        (known(5), 1, "two"),
    ],
)
def test_a_new_dump_replaces_the_list_of_an_empty_copy_if_much_is_to_be_fetched(
    progress: Progress | None, most: int, following: str
) -> None:
    offer = Offer(resource_list="resources")
    wire = Wire(offer, progress, compare=0.0)
    wire.answer(index(6, "one", "two"))
    resources = [Resource(f"{number}") for number in range(PACE.in_flight + most)]
    wire.answer(listing(6, *resources))
    wire.follower.offered(Offer(resource_list="resources", resource_dump="dump"), wire.now)
    wire.actions = wire.follower.differing(resources, wire.now)
    assert requested_uris(wire) == [following]


def test_without_an_unlisted_resource_a_copy_is_level_once_changes_are_read() -> None:
    """The list may be from before the change, as if the Source's clock had been set back."""
    missing = MissingResource("a", at(1), Resource("a", hash="md5:1"), at(1))
    wire = Wire(LIST, replace(known(5), missing=(missing,)), compare=9.0)

    def wait_for(kind: DocumentKind) -> None:
        while wire.requested() != [kind]:
            for change in applying(wire):
                wire.follower.failed(change, ContentMismatch("a", "wrong"), wire.now)
            if wire.requested():
                wire.answer(no_changes(5))
            wire.wait()

    wait_for(DocumentKind.RESOURCE_LIST)
    wire.answer(listing(6))
    wire.follower.differing([], wire.now)
    wire.actions = wire.follower.unlisted([], wire.now)
    assert not wire.follower.level
    wire.answer(no_changes(7))
    assert wire.follower.level
