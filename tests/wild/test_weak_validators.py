"""A server whose validators hide a second change of the same second.

nginx makes its ETag of the second in which a file was written and of its size, and other servers
have no more than Last-Modified. RFC 9110 §8.8.2.2 says when such a validator may be relied upon.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from rsnotify.selection import Selection
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.fetching.sessions import Sessions
from tests.wild.documents import change_list, entry, resource_list, seconds
from tests.wild.running import run_right
from tests.wild.source import WildSource, nginx_etag

ANEW = Selection(excluded=("nothing",))


def listed(source: WildSource, *changes: str) -> None:
    source.put("changelist.xml", change_list(changes, from_=source.t(0)), modified=source.t(500))


@pytest.fixture
async def followed(source: WildSource, folder: Path) -> WildSource:
    """A Source that was followed; it announces changes without hashes."""
    source.offer()
    source.file("a", b"old", -50)
    source.put("resourcelist.xml", resource_list([entry(source.uri("a"))], at=source.t(0)))
    listed(source)
    await run_right(source, folder)
    return source


def written(source: WildSource, content: bytes, at: float, validator: str, date: float) -> None:
    """Write a file, which the server tells by these validators only."""
    source.file("a", content, at)
    etag = nginx_etag(content, source.t(at)) if validator != "Last-Modified" else None
    modified = source.t(at) if validator != "ETag" else None
    source.put("a", content, etag=etag, modified=modified, date=source.t(date))


@pytest.mark.parametrize("validator", ["both", "ETag", "Last-Modified"])
@pytest.mark.parametrize("write", [seconds, lambda instant: instant])
async def test_a_second_change_within_the_second_is_brought(
    followed: WildSource, folder: Path, validator: str, write: Callable[[datetime], datetime | str]
) -> None:
    source = followed
    changes = []
    for content, at, date in ((b"one", 60.1, 60.2), (b"two", 60.8, 60.9)):
        written(source, content, at, validator, date)
        changes.append(entry(source.uri("a"), "updated", datetime=write(source.t(at))))
        listed(source, *changes)
        await run_right(source, folder)


async def test_a_validator_is_used_where_nothing_can_be_hidden(
    followed: WildSource, folder: Path
) -> None:
    """All is compared with a list that tells no dates and no hashes, again and again."""
    source = followed
    source.file("a", b"one", 60.1, date=source.t(100))
    source.file("b", b"new", 99, date=source.t(100))
    entries = [entry(source.uri(name)) for name in ("a", "b")]
    for moment, selection in ((200, ANEW), (300, Selection())):
        source.forget()
        source.put("resourcelist.xml", resource_list(entries, at=source.t(moment)))
        await run_right(source, folder, selection=selection)
    assert [one.status for one in source.requests("a")] == [304]
    assert [one.status for one in source.requests("b")] == [200]


async def test_a_document_that_is_rewritten_within_the_second_is_read(
    source: WildSource, folder: Path
) -> None:
    """A list of the same size: one of its changes has become another."""
    folder.mkdir()
    async with Sessions(source.url) as sessions:
        fetcher = Fetcher(sessions, folder)
        for name in ("a", "b"):
            content = change_list(
                [entry(source.uri(name), "updated", datetime=source.t(60))], from_=source.t(0)
            )
            source.file("changelist.xml", content, 60.5, date=source.t(60.9))
            document = await fetcher.document(source.uri("changelist.xml"))
            assert [one.uri for one in document.resources] == [source.uri(name)]
        source.file("changelist.xml", content, 60.5, date=source.t(63))
        source.forget()
        for _ in range(3):
            await fetcher.document(source.uri("changelist.xml"))
        assert [one.status for one in source.requests("changelist.xml")] == [200, 304, 304]
