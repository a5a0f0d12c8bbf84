"""Whether the part of a list that was read before has changed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rsnotify.format.coverage import Change, Coverage
from rsnotify.format.model import ChangeType, Resource
from rsnotify.sync import list_fingerprint
from rsnotify.sync.list_fingerprint import ListFingerprint, fingerprint_of
from tests.core.source import at

LIST = "http://a.example/list.xml"


def covering(entries: str, *, from_: int = 0, ordered: bool = True, **fields: bool) -> Coverage:
    """Return a list like `a1 b2`: the names of resources, and when they changed."""
    changes = tuple(
        Change(entry[0], ChangeType.UPDATED, at(int(entry[1:])), Resource(entry[0]))
        for entry in entries.split()
    )
    until = max((change.at for change in changes), default=at(from_))
    return Coverage(at(from_), until, closed=False, ordered=ordered, changes=changes, **fields)


def read(coverage: Coverage, uri: str = LIST, confirmed: int = 0) -> ListFingerprint:
    return fingerprint_of(uri, coverage, at(confirmed))


def extends(fingerprint: ListFingerprint, later: Coverage, uri: str = LIST) -> bool:
    return fingerprint.is_extended_by(read(later, uri), later)


def has_lost(fingerprint: ListFingerprint, later: Coverage, uri: str = LIST) -> bool:
    return fingerprint.has_lost(read(later, uri), later)


@pytest.fixture(params=[300, 1], ids=["few resources", "many resources"])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the resources themselves, or only their number and sum."""
    monkeypatch.setattr(list_fingerprint, "_MAX_SEPARATE_CHECKSUMS", request.param)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("before", "later", "extended"),
    [
        ("a1 b2", "a1 b2", True),
        ("a1 b2", "a1 b2 c3", True),
        ("a1 b2", "a1 b2 c2", True),  # more of the last instant may follow
        ("a1 b2", "a1 c1 b2 d3", False),
        ("a1 b3", "a1 c2 b3", False),
        ("a1 b3", "c1 b3", False),
        ("a1 b3", "b3 c4", False),
    ],
)
def test_a_list_extends_what_was_read_if_its_beginning_is_the_same(
    before: str, later: str, extended: bool
) -> None:
    assert extends(read(covering(before)), covering(later)) is extended


def test_another_list_or_another_period_extends_nothing() -> None:
    fingerprint = read(covering("a1 b2"))
    assert not extends(fingerprint, covering("a1 b2"), LIST + "2")
    assert not extends(fingerprint, covering("a1 b2", from_=-1))


def test_a_list_is_the_same_only_with_all_its_entries() -> None:
    fingerprint = read(covering("a1 b2"))
    assert fingerprint.is_same_as(read(covering("a1 b2")))
    assert not fingerprint.is_same_as(read(covering("a1 c2")))
    assert not fingerprint.is_same_as(read(covering("a1 b2", from_=-1)))
    assert not fingerprint.is_same_as(read(covering("a1 b2"), uri=LIST + "2"))


def test_entries_up_to_what_other_lists_confirmed_are_part_of_what_was_read() -> None:
    fingerprint = read(covering("a1 b2"), confirmed=5)
    assert fingerprint.before == at(5)
    assert not extends(fingerprint, covering("a1 b2 c4"))
    assert extends(fingerprint, covering("a1 b2 c6"))


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("before", "later", "lost"),
    [
        ("a1 b2", "a1 b2", False),
        ("a1 b2", "a1 b2 c3", False),
        ("a1 b2", "a1 c1 b2", False),  # inserted
        ("a1 b2", "a1 a2 b3", False),
        ("a1 b2", "b2 a3", False),  # replaced by a later entry
        ("a1 b2", "b2 c3", True),
        ("a1 b2", "a1", True),
        ("a1 b2", "a1 c2", True),
        ("a1 b2", "", True),
        ("a1 a2 b3", "a1 b3 c4", True),
        ("a0 b2", "b2 c3 d4", True),  # a's datetime is not within the interval of the list
    ],
)
def test_a_list_has_lost_an_entry_if_a_resource_has_none_any_more(
    before: str, later: str, lost: bool
) -> None:
    assert has_lost(read(covering(before)), covering(later)) is lost


def test_a_list_has_all_of_another_list_only_if_that_is_the_same_list_entirely() -> None:
    fingerprint = read(covering("a1 b2"))
    assert fingerprint.has_all_of(covering("a1 b2"))
    assert not replace(fingerprint, is_superseded=True).has_all_of(covering("a1 b2"))
    for other in (covering("a1 b2 c3"), covering("a1 c2"), covering("a1 b2", from_=-1)):
        assert not fingerprint.has_all_of(other)


@pytest.mark.parametrize(
    ("entries", "ordered", "kept"),
    [("a1 b2", True, True), ("a1 b2 c3", True, False), ("a1 c3 b2", False, True)],
)
def test_the_resources_of_a_list_are_kept_if_they_are_few_or_out_of_order(
    monkeypatch: pytest.MonkeyPatch, entries: str, ordered: bool, kept: bool
) -> None:
    monkeypatch.setattr(list_fingerprint, "_MAX_SEPARATE_CHECKSUMS", 2)
    fingerprint = read(covering(entries, ordered=ordered))
    assert (bool(fingerprint.resources), bool(fingerprint.latest)) == (kept, kept)


def test_a_list_that_begins_later_has_lost_nothing_and_one_that_begins_again_has() -> None:
    fingerprint, rotated = read(covering("a1 b2")), covering("c3", from_=2)
    assert not has_lost(fingerprint, rotated)
    assert has_lost(fingerprint, covering("a1 b2", from_=-1))
    assert has_lost(fingerprint, covering("a1 b2", from_=-1), LIST + "2")
    assert not has_lost(fingerprint, rotated, LIST + "2")


@pytest.mark.parametrize(
    ("later", "from_", "until", "missed"),
    [
        ("b2 c3", 0, 3, True),
        ("b2 c3", 1, 3, False),  # its interval begins after a's change
        ("b2 a3", 0, 3, False),
        ("", 0, 1, True),
        ("", 0, 0, False),
        ("a1 b2", 0, 2, False),
        ("b1 a2", 0, 2, True),
    ],
)
def test_another_list_misses_what_this_one_had_within_its_interval(
    later: str, from_: int, until: int, missed: bool
) -> None:
    coverage = replace(covering(later, from_=from_), until=at(until))
    assert read(covering("a1 b2")).is_missed_by(coverage) is missed
    disordered = covering("b2 a1", ordered=False, contradictory=True)
    assert read(disordered).is_missed_by(coverage) is missed
    assert not read(replace(covering("a1 b2"), from_=at(2))).is_missed_by(coverage)
