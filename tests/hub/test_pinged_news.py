from __future__ import annotations

from datetime import datetime

import pytest
from msgspec.structs import replace

from rsnotify.errors import InvalidDocument
from rsnotify.format.model import ChangeType, Document, Link, Resource
from rsnotify_hub.websub.pings import gap_heartbeat, keys_at, new_part
from tests.hub.helpers import at, changes


def open_list(from_: float | None, *seconds: float) -> Document:
    return Document(
        capability="changelist",
        from_=None if from_ is None else at(from_),
        links=(Link(rel="up", href="u"), Link(rel="archives", href="a")),
        resources=changes(*seconds),
    )


def interval(document: Document) -> tuple[object, object, int]:
    return document.from_, document.until, len(document.resources)


UNDATED = (Resource(uri="u", change=ChangeType.UPDATED),)


@pytest.mark.parametrize(
    ("document", "through"),
    [
        (open_list(0, 1, 2), None),
        (open_list(5, 6), at(2)),
        (Document(capability="changelist", from_=at(0), resources=UNDATED), at(2)),
    ],
    ids=["the first list", "a list that begins after the log", "a list without datetimes"],
)
def test_a_list_is_taken_as_it_is(document: Document, through: datetime | None):
    assert new_part(document, through=through, known=set()) is document


LATE = Resource(uri="https://source.example/late", change=ChangeType.CREATED, datetime=at(2))
WITH_LATE = Document(capability="changelist", from_=at(0), resources=(*changes(1, 2), LATE))
UPDATED_TWICE = replace(
    WITH_LATE, resources=(*changes(1, 2), replace(changes(2)[0], hash="md5:later"))
)


@pytest.mark.parametrize(
    ("document", "through", "known", "expected"),
    [
        (open_list(0, 1, 2, 3, 4), 2, [2], (at(2), at(4), 2)),
        (open_list(0, 1, 2, 9), 5, [], (at(2), at(9), 1)),
        (open_list(2, 3, 4), 2, [], (at(2), at(4), 2)),
        (WITH_LATE, 2, [2], (at(2), at(2), 1)),
        (UPDATED_TWICE, 2, [2], (at(2), at(2), 1)),
    ],
    ids=["after the log", "after a heartbeat", "all", "a late change", "a second update"],
)
def test_only_changes_after_the_log_are_new(
    document: Document, through: float, known: list[float], expected: tuple[object, object, int]
):
    keys = keys_at(changes(*known), at(through))
    news = new_part(document, through=at(through), known=keys)
    assert interval(news) == expected
    assert news.resources == document.resources[-expected[2] :]
    assert news.links == document.links[:1], "the archives are those of the whole list"


@pytest.mark.parametrize("document", [open_list(0), open_list(0, 1, 2)])
def test_a_list_without_new_changes_gives_nothing(document: Document):
    known = keys_at(changes(2), at(2))
    assert new_part(document, through=at(2), known=known) is None


def test_too_many_changes_are_gap_heartbeatd_as_a_gap_at_their_end():
    assert interval(gap_heartbeat(open_list(0, 1, 2))) == (at(2), at(2), 0)


def test_too_many_undated_changes_cannot_be_gap_heartbeatd():
    undated = Document(capability="changelist", resources=(Resource(uri="u"),))
    with pytest.raises(InvalidDocument):
        gap_heartbeat(undated)


def test_the_new_part_keeps_the_capability_of_the_document():
    document = replace(open_list(0, 1, 2), capability="framework-notification", until=at(2))
    news = new_part(document, through=at(1), known=keys_at(changes(1), at(1)))
    assert news.capability == gap_heartbeat(document).capability == "framework-notification"
