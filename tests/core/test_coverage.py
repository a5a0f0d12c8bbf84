"""What a change document proves, and what of it is new."""

from __future__ import annotations

import re
from datetime import datetime

import pytest

from rsnotify.errors import InvalidDocument, WrongDocument
from rsnotify.format.coverage import (
    Coverage,
    Frontier,
    change_list_coverage,
    fragment_coverage,
)
from rsnotify.format.datetimes import parse_datetime
from rsnotify.format.model import Capability, ChangeType, Document, Resource
from tests.core.source import EPOCH, at


def change(name: str, when: datetime | None, **fields: object) -> Resource:
    return Resource(f"http://a/{name}", change=ChangeType.UPDATED, datetime=when, **fields)


def moment(text: str) -> datetime:
    """Parse a datetime; `T10Z` stands for `T10:00:00Z`."""
    return parse_datetime(re.sub(r"(T\d\d)Z", r"\1:00:00Z", text))


def listed(*resources: Resource, **fields: object) -> Document:
    return Document(Capability.CHANGE_LIST, resources, **fields)


@pytest.mark.parametrize(
    ("document", "from_", "until", "closed"),
    [
        (listed(change("a", at(1)), change("b", at(3)), from_=at(0)), 0, 3, False),
        (listed(from_=at(5)), 5, 5, False),
        (listed(change("a", at(1)), from_=at(0), until=at(9)), 0, 9, True),
    ],
    ids=["open: up to its last entry", "empty: until it began", "closed: all until its until"],
)
def test_a_list_proves_what_happened_in_an_interval(
    document: Document, from_: int, until: int, closed: bool
) -> None:
    coverage = change_list_coverage(document)
    found = (coverage.from_, coverage.until, coverage.closed)
    assert found == (at(from_), at(until), closed)


@pytest.mark.parametrize(
    ("document", "sent", "reaches"),
    [
        (listed(change("a", at(4)), until=at(9)), None, 4),  # without from
        (listed(), None, None),
        (listed(change("a", at(-99)), from_=at(5)), None, 5),  # an entry with an older date
        (listed(change("a", at(-99)), from_=at(5)), at(9), 5),
        (listed(change("a", at(-99)), from_=at(5)), at(5), 5),  # the clock was not ahead
        (listed(change("a", at(4.5)), from_=at(5)), at(9), 4.5),  # from is rounded
        (listed(change("a", at(4)), from_=at(5)), at(9), 5),
    ],
)
def test_a_list_reaches_back_to_its_from_or_to_its_first_entry(
    document: Document, sent: datetime | None, reaches: float | None
) -> None:
    coverage = change_list_coverage(document, sent)
    if reaches is None:
        assert not coverage.reaches(at(100))
    else:
        assert coverage.reaches(at(reaches))
        assert not coverage.reaches(at(reaches - 1))


def test_list_order_decides_where_there_is_no_datetime() -> None:
    coverage = change_list_coverage(
        listed(change("a", None), change("b", at(2)), change("c", None), from_=at(0))
    )
    assert [c.at for c in coverage.changes] == [at(0), at(2), at(2)]
    assert coverage.ordered


@pytest.mark.parametrize(
    ("from_", "entries", "dated"),
    [
        ("2026-01-01", ["2026-01-05T10Z", "2026-01-05"], ["2026-01-05T10Z", "2026-01-05T10Z"]),
        (None, ["2026-01-05T10Z", "2026-01-05"], ["2026-01-05T10Z", "2026-01-05T10Z"]),
        ("2026-01-05T12Z", ["2026-01-05", "2026-01-06"], ["2026-01-05T12Z", "2026-01-06"]),
        ("2026-01-05", ["2026-01-05T10Z", "2026-01-03"], None),
    ],
)
def test_list_order_decides_which_time_of_its_day_a_date_denotes(
    from_: str | None, entries: list[str], dated: list[str] | None
) -> None:
    resources = [change("a", moment(entry)) for entry in entries]
    begin = None if from_ is None else moment(from_)
    coverage = change_list_coverage(listed(*resources, from_=begin))
    if dated is None:
        assert (coverage.ordered, coverage.contradictory) == (False, True)
    else:
        assert [one.at for one in coverage.changes] == [moment(each) for each in dated]
        assert (coverage.ordered, coverage.contradictory) == (True, False)


def test_a_list_that_begins_with_a_day_and_ends_with_its_date_goes_on_all_day() -> None:
    day = moment("2026-01-05")
    entry = change("a", day)
    coverage = change_list_coverage(
        listed(entry, from_=day.replace(fold=0)), moment("2026-01-05T12Z")
    )
    assert coverage.running


@pytest.mark.parametrize(
    ("reached", "entry", "undecided"),
    [
        ("2026-01-05T12Z", "2026-01-05", True),
        ("2026-01-05T12Z", "2026-01-03", False),
        ("2026-01-05T12Z", "2026-01-05T00:00:00Z", False),
        ("2026-01-05", "2026-01-05T12Z", False),
        ("2026-01-05T00:00:00Z", "2026-01-05", False),
    ],
)
def test_only_a_date_of_the_day_of_the_frontier_may_be_after_it_although_it_is_before(
    reached: str, entry: str, undecided: bool
) -> None:
    coverage = change_list_coverage(listed(change("a", moment(entry)), from_=at(0)))
    found = Frontier.at(moment(reached)).undecided(coverage)
    assert found == (list(coverage.changes) if undecided else [])


def test_lastmod_is_the_datetime_of_a_change_in_1_0_and_datetime_in_1_1() -> None:
    coverage = change_list_coverage(
        listed(
            Resource("http://a/", change=ChangeType.CREATED, lastmod=at(1)),
            Resource("http://b/", change=ChangeType.CREATED, lastmod=at(0.5), datetime=at(2)),
            from_=at(0),
        )
    )
    assert [c.at for c in coverage.changes] == [at(1), at(2)]


@pytest.mark.parametrize(
    ("document", "error"),
    [
        (Document(Capability.RESOURCE_LIST), WrongDocument),
        (Document(None), WrongDocument),
        (Document("moonlist"), WrongDocument),
        (listed(Resource("http://a/", lastmod=EPOCH)), InvalidDocument),
        (listed(change("a", None)), InvalidDocument),
    ],
)
def test_an_unusable_change_list_is_refused(document: Document, error: type[Exception]) -> None:
    with pytest.raises(error):
        change_list_coverage(document)


def test_of_a_list_out_of_order_no_entry_is_passed_over_as_old() -> None:
    coverage = change_list_coverage(listed(change("b", at(3)), change("a", at(1)), from_=at(0)))
    assert not coverage.ordered
    assert [c.uri for c in Frontier.at(at(2)).fresh(coverage)] == ["http://a/b", "http://a/a"]
    assert coverage.until == at(3)


@pytest.mark.parametrize(
    ("told", "sent", "dated"),
    [
        ([1, 2, 900, 3, 4], 5, [1, 2, 3, 3, 4]),  # one entry has a wrong date
        ([900, 901, 1, 2], 5, [1, 1, 1, 2]),  # a clock was ahead, and was set
        ([1, 2, 900, 3, 4], 1000, None),  # perhaps it is right, and the list not in order
        ([1, 2, 900, 3, 4], None, None),
        ([1, 3, 2, 900, 4], 5, None),
        ([4, 3, 2, 1], 5, None),  # newest first
    ],
)
def test_entries_dated_later_than_their_list_was_sent_are_dated_by_their_place(
    told: list[int], sent: int | None, dated: list[int] | None
) -> None:
    entries = [change(str(place), at(second)) for place, second in enumerate(told)]
    coverage = change_list_coverage(
        listed(*entries, from_=at(0)), None if sent is None else at(sent)
    )
    assert coverage.ordered is (dated is not None)
    assert [one.at for one in coverage.changes] == [at(second) for second in dated or told]


def test_a_list_in_the_order_of_its_uris_keeps_no_change_back() -> None:
    a, b, c, d, e = (change(name, at(60 * place)) for place, name in enumerate("abcde", 1))
    later = change("c", at(900))
    frontier = Frontier.at(at(0))
    frontier.learn(change_list_coverage(listed(a, b, c, d, e, from_=at(0)), at(301)))
    new = change_list_coverage(listed(a, b, later, d, e, from_=at(0)), at(901))
    assert later in {one.resource for one in frontier.fresh(new)}


def test_a_list_that_begins_later_than_it_was_sent_reaches_back_to_its_first_entry() -> None:
    coverage = change_list_coverage(listed(change("a", at(1)), from_=at(900)), at(9))
    assert (coverage.from_, coverage.until) == (at(1), at(1))


@pytest.mark.parametrize("capability", ["change-notification", "changelist-notification", None])
def test_a_fragment_may_call_itself_by_any_of_its_names(capability: str | None) -> None:
    document = Document(capability, (change("a", at(1)),), from_=at(0), until=at(1))
    assert fragment_coverage(document).until == at(1)


def test_a_heartbeat_proves_that_there_were_no_changes() -> None:
    coverage = fragment_coverage(Document("change-notification", from_=at(1), until=at(9)))
    assert coverage.changes == ()
    assert (coverage.from_, coverage.until) == (at(1), at(9))


@pytest.mark.parametrize(
    "document",
    [
        Document("change-notification", from_=at(2), until=at(1)),
        Document("change-notification", (change("a", at(1)),), from_=at(2), until=at(3)),
        Document("change-notification", (change("a", at(4)),), from_=at(2), until=at(3)),
        Document("change-notification", (change("a", at(2)), change("b", at(1))), from_=at(0)),
    ],
)
def test_a_fragment_that_contradicts_itself_is_refused(document: Document) -> None:
    with pytest.raises(InvalidDocument):
        fragment_coverage(document)


def test_at_the_frontier_entries_are_compared_and_not_only_times() -> None:
    frontier = Frontier.at(EPOCH)
    first = change_list_coverage(listed(change("a", at(1)), from_=EPOCH))
    frontier.advance(first.until, first.changes)
    later = change_list_coverage(
        listed(change("a", at(1)), change("b", at(1)), change("a", at(1)), from_=EPOCH)
    )
    assert [c.uri for c in frontier.fresh(later)] == ["http://a/b", "http://a/a"]
    frontier.advance(later.until, later.changes)
    assert frontier.fresh(later) == []


def test_changes_seen_at_the_frontier_are_kept_when_another_list_repeats_some() -> None:
    frontier = Frontier.at(EPOCH)
    both = change_list_coverage(listed(change("a", at(1)), change("b", at(1)), from_=EPOCH))
    part = change_list_coverage(listed(change("b", at(1)), from_=EPOCH))
    for coverage in (both, part):
        frontier.advance(coverage.until, coverage.changes)
    assert frontier.fresh(both) == []


def test_a_frontier_never_moves_back() -> None:
    frontier = Frontier.at(at(5))
    frontier.advance(at(4))
    assert frontier.instant == at(5)


def test_a_frontier_that_advances_without_a_document_is_over() -> None:
    frontier = Frontier.at(at(5))
    frontier.advance(at(6))
    assert frontier.joint == at(6)


def test_without_from_a_deletion_without_datetime_may_be_later_than_it_says() -> None:
    deleted = Resource("http://a/a", lastmod=at(1), change=ChangeType.DELETED)
    coverage = change_list_coverage(listed(deleted))
    assert Frontier.at(at(5)).fresh(coverage) == list(coverage.changes)
    assert Frontier.at(at(5)).fresh(change_list_coverage(listed(deleted, from_=at(0)))) == []


def test_without_from_such_a_deletion_does_not_define_the_beginning_of_the_list() -> None:
    deleted = Resource("http://a/a", lastmod=at(1), change=ChangeType.DELETED)
    coverage = change_list_coverage(listed(change("b", at(4)), deleted))
    assert coverage.from_ == at(4)


def test_a_framework_notification_is_not_a_change_of_the_set() -> None:
    document = Document("framework-notification", (change("a", at(1)),), from_=at(0), until=at(1))
    assert fragment_coverage(document, allow_framework=True).until == at(1)
    with pytest.raises(WrongDocument):
        fragment_coverage(document)


def test_a_list_with_the_latest_first_is_out_of_order_however_few_seconds_it_has() -> None:
    later, earlier = [change(name, at(2)) for name in "abcde"], [change("a", at(1))]
    coverage = change_list_coverage(listed(*later, *earlier, from_=at(0)))
    assert not coverage.ordered
    assert [one.at for one in coverage.changes] == [at(2)] * 5 + [at(1)]


@pytest.mark.parametrize("sent", [None, EPOCH])
@pytest.mark.parametrize("text", ["9999-12-31", "9999-12-31T23:59:59Z"])
def test_a_datetime_in_the_year_9999_is_read_like_any_other(
    text: str, sent: datetime | None
) -> None:
    never = parse_datetime(text)
    coverage = change_list_coverage(listed(change("a", never), from_=at(0)), sent)
    assert coverage.until == never
    assert coverage.running


@pytest.mark.parametrize(
    ("entries", "until", "sent", "contradictory"),
    [
        ((5,), 5, None, False),
        ((5.5,), 5, None, True),
        ((1,), 5, None, False),  # `from` may be rounded up
        ((0.9,), 5, None, True),
        ((3,), 5, 4, False),  # `Date` is in whole seconds
        ((3,), 5.1, 4, True),
        ((3, 2), 5, 9, True),
        ((2, 2), 5, 9, False),
    ],
)
def test_a_list_contradicts_itself_if_an_entry_or_its_end_cannot_be_right(
    entries: tuple[float, ...], until: float, sent: float | None, contradictory: bool
) -> None:
    resources = tuple(change(str(number), at(second)) for number, second in enumerate(entries))
    document = listed(*resources, from_=at(2), until=at(until))
    time = None if sent is None else at(sent)
    assert change_list_coverage(document, time).contradictory is contradictory


def test_without_from_an_update_is_as_certain_by_its_lastmod_as_by_its_datetime() -> None:
    updated = Resource("http://a/a", lastmod=at(4), change=ChangeType.UPDATED)
    deleted = Resource("http://a/b", datetime=at(6), change=ChangeType.DELETED)
    coverage = change_list_coverage(listed(updated, deleted))
    assert (coverage.from_, coverage.ordered) == (at(4), True)


def test_other_documents_are_no_notifications() -> None:
    for document in (
        Document(Capability.RESOURCE_LIST),
        Document(Capability.FRAMEWORK_NOTIFICATION, index=True),
        Document(Capability.CHANGE_NOTIFICATION, index=True),
    ):
        with pytest.raises(WrongDocument):
            fragment_coverage(document, allow_framework=True)


def test_entries_at_the_ends_of_the_interval_of_a_fragment_belong_to_it() -> None:
    entries = (change("a", at(1)), change("b", at(2)))
    document = Document(Capability.CHANGE_NOTIFICATION, entries, from_=at(1), until=at(2))
    assert fragment_coverage(document).reaches(at(1))
    empty = Document(Capability.CHANGE_NOTIFICATION, from_=at(1), until=at(1))
    assert fragment_coverage(empty).until == at(1)


@pytest.mark.parametrize(
    ("coverage", "ends"),
    [
        (change_list_coverage(listed(change("a", at(1)), from_=at(0))), at(1)),
        (change_list_coverage(listed(change("a", at(1)), from_=at(0), until=at(9))), at(9)),
        (change_list_coverage(listed(change("b", at(3)), change("a", at(1)), from_=at(0))), at(3)),
        (change_list_coverage(listed(change("a", at(1)), from_=at(7))), at(7)),
        (change_list_coverage(listed(from_=at(7))), at(7)),
        (change_list_coverage(listed()), None),
    ],
)
def test_a_list_ends_with_its_latest_entry_unless_it_is_closed(
    coverage: Coverage, ends: datetime | None
) -> None:
    assert coverage.until == ends


def test_an_unusable_entry_is_named_by_its_number() -> None:
    for entry in (Resource("http://a/b"), change("b", None)):
        with pytest.raises(InvalidDocument) as caught:
            change_list_coverage(listed(change("a", None), entry))
        assert caught.value.entry == 1
    with pytest.raises(InvalidDocument) as caught:
        change_list_coverage(listed(change("a", at(1)), Resource("http://a/b")))
    assert caught.value.entry == 2


def test_a_fragment_is_not_updated_any_more() -> None:
    assert fragment_coverage(Document(None, from_=at(0), until=at(1))).closed


def test_a_datetime_after_the_end_of_a_closed_list_does_not_extend_it() -> None:
    coverage = change_list_coverage(listed(change("a", at(3_600)), from_=at(0), until=at(9)))

    assert (coverage.until, coverage.changes[0].at) == (at(9), at(9))
    assert coverage.contradictory
