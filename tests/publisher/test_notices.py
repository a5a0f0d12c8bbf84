"""Notices of the Source's own documents in the journal."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from rsnotify.format.datetimes import to_microseconds
from rsnotify.format.model import Capability, ChangeType, Resource
from rsnotify_publisher.changes import Record
from rsnotify_publisher.journal import Journal
from rsnotify_publisher.journal.journal import KEPT
from tests.publisher.helpers import BASE
from tests.publisher.test_journal import VERSION_1

LIST = Resource(
    BASE + "resourcelist.xml", change=ChangeType.UPDATED, capability=Capability.RESOURCE_LIST
)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal.sqlite3", BASE) as opened:
        yield opened


def add_notices(journal: Journal, *documents: Resource) -> None:
    with journal.transaction():
        journal.add_notices(documents)


def instants(journal: Journal, after: int = 0) -> list[int]:
    datetimes = [notice.datetime for notice in journal.notices(after)]
    return [to_microseconds(at) for at in datetimes if at is not None]


def test_notices_have_increasing_datetimes_of_their_own(journal: Journal) -> None:
    add_notices(journal, LIST, LIST)
    add_notices(journal, LIST)
    datetimes = instants(journal)
    assert len(datetimes) == 3
    assert all(before < after for before, after in pairwise([journal.first_notice(), *datetimes]))
    assert datetimes[-1] == journal.last_notice()


def test_notices_are_later_than_a_promised_heartbeat(journal: Journal) -> None:
    with journal.transaction():
        promised = journal.promise().reached
    add_notices(journal, LIST)
    assert journal.last_notice() > promised


def test_a_change_leaves_no_notice_and_a_notice_no_change(journal: Journal) -> None:
    with journal.transaction():
        journal.record([Record(Resource(BASE + "a", change=ChangeType.CREATED))])
    before = journal.state()
    assert journal.notices(0) == []
    add_notices(journal, LIST)
    assert journal.state() == before


def test_the_beginning_of_an_empty_notice_log_is_known(journal: Journal) -> None:
    begins = journal.first_notice()
    assert journal.last_notice() == begins
    assert journal.last_notice_at(begins + 10**15) == begins
    assert journal.last_notice_at(0) == begins


def test_the_notice_before_an_instant_is_found(journal: Journal) -> None:
    add_notices(journal, LIST, LIST)
    first, second = instants(journal)
    assert journal.last_notice_at(first) == first
    assert journal.last_notice_at(second - 1) == first
    assert [to_microseconds(n.datetime) for n in journal.notices(first) if n.datetime] == [second]


def test_no_more_than_a_bound_is_kept_and_where_it_begins_is_known(journal: Journal) -> None:
    add_notices(journal, *[LIST] * (KEPT + 10))
    datetimes = instants(journal)
    assert len(datetimes) == KEPT
    assert journal.first_notice() < datetimes[0]
    add_notices(journal, LIST)
    assert instants(journal)[:-1] == datetimes[1:]
    assert journal.first_notice() == datetimes[0]


def test_a_version_has_one_notice(journal: Journal) -> None:
    document = Resource(BASE + "capabilitylist.xml", capability=Capability.CAPABILITY_LIST)
    for version in ("one", "one", "two"):
        with journal.transaction():
            journal.add_version_notice(document, version)
    notices = [(notice.uri, notice.change) for notice in journal.notices(0)]
    assert notices == [(document.uri, ChangeType.CREATED), (document.uri, ChangeType.UPDATED)]


def test_a_hub_begins_with_the_next_notice_and_keeps_its_place(journal: Journal) -> None:
    add_notices(journal, LIST)
    with journal.transaction():
        journal.add_notice_hub("hub")
    assert journal.notices(journal.notice_cursor("hub")) == []
    add_notices(journal, LIST)
    assert len(journal.notices(journal.notice_cursor("hub"))) == 1
    with journal.transaction():
        journal.move_notice_cursor("hub", journal.last_notice())
        journal.add_notice_hub("hub")
    assert journal.notices(journal.notice_cursor("hub")) == []


def test_a_journal_of_an_earlier_version_can_hold_notices(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite3"
    with closing(sqlite3.connect(path)) as old:
        old.executescript(VERSION_1)
    with Journal(path, BASE) as journal:
        assert journal.first_notice() == journal.last_notice() == 3_000_001
        add_notices(journal, LIST)
        assert len(instants(journal)) == 1
