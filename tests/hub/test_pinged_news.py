from __future__ import annotations

import pytest
from msgspec.structs import replace

from rsnotify.errors import InvalidDocument
from rsnotify.format.model import ChangeType, Document, Link, Resource
from rsnotify_hub.websub.pings import announce, keys_at, part_after
from tests.hub.helpers import at, changes


def open_list(from_: float | None, *seconds: float) -> Document:
    return Document(
        capability="changelist",
        from_=None if from_ is None else at(from_),
        links=(Link(rel="up", href="u"), Link(rel="archives", href="a")),
        resources=changes(*seconds),
    )


def interval(document: Document | None) -> tuple[object, object, int]:
    return document.from_, document.until, len(document.resources)


def test_the_first_list_is_taken_as_it_is():
    document = open_list(0, 1, 2)
    assert part_after(document, through=None, known=set()) is document


def test_only_changes_after_the_log_are_new():
    known = keys_at(changes(2), at(2))
    news = part_after(open_list(0, 1, 2, 3, 4), through=at(2), known=known)
    assert interval(news) == (at(2), at(4), 2)
    assert news.links == (Link(rel="up", href="u"),)


def test_after_a_heartbeat_the_new_part_begins_at_the_last_change():
    news = part_after(open_list(0, 1, 2, 9), through=at(5), known=set())
    assert interval(news) == (at(2), at(9), 1)


def test_a_list_that_begins_where_the_log_ends_is_all_new():
    news = part_after(open_list(2, 3, 4), through=at(2), known=set())
    assert interval(news) == (at(2), at(4), 2)


def test_a_list_that_begins_after_the_log_is_taken_as_it_is():
    document = open_list(5, 6)
    assert part_after(document, through=at(2), known=set()) is document


@pytest.mark.parametrize("document", [open_list(0), open_list(0, 1, 2)])
def test_a_list_without_new_changes_gives_nothing(document: Document):
    known = keys_at(changes(2), at(2))
    assert part_after(document, through=at(2), known=known) is None


def test_a_late_change_of_the_same_second_is_new():
    late = Resource(uri="https://source.example/late", change=ChangeType.CREATED, datetime=at(2))
    document = Document(capability="changelist", from_=at(0), resources=(*changes(1, 2), late))
    news = part_after(document, through=at(2), known=keys_at(changes(2), at(2)))
    assert interval(news) == (at(2), at(2), 1)
    assert news.resources == (late,)


def test_a_list_without_datetimes_is_taken_as_it_is():
    document = Document(
        capability="changelist",
        from_=at(0),
        resources=(Resource(uri="u", change=ChangeType.UPDATED),),
    )
    assert part_after(document, through=at(2), known=set()) is document


def test_too_many_changes_are_announced_as_a_gap_at_their_end():
    assert interval(announce(open_list(0, 1, 2))) == (at(2), at(2), 0)


def test_too_many_undated_changes_cannot_be_announced():
    undated = Document(capability="changelist", resources=(Resource(uri="u"),))
    with pytest.raises(InvalidDocument):
        announce(undated)


def test_the_new_part_keeps_the_capability_of_the_document():
    document = replace(open_list(0, 1, 2), capability="framework-notification", until=at(2))
    news = part_after(document, through=at(1), known=keys_at(changes(1), at(1)))
    assert news.capability == "framework-notification"
    assert announce(document).capability == "framework-notification"
