"""Fetching content and handing it over; each kind of source has tests of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from rsnotify.errors import RsnotifyError, Unavailable
from rsnotify.format.coverage import Change
from rsnotify.format.model import ChangeType, Resource
from rsnotify_subscriber import FollowOptions, Received, Subscriber
from rsnotify_subscriber.content.resolver import ContentResolver
from rsnotify_subscriber.fetching.fetcher import Content, Fetcher
from rsnotify_subscriber.fetching.sessions import Sessions
from tests.subscriber.destination import PACE, Destination
from tests.subscriber.source import SmallSource, sha256


async def test_content_without_a_length_may_not_fill_the_disk(
    source: SmallSource, destination: Destination
) -> None:
    await destination.catch_up()
    source.put("large", b"x" * 2_000)
    source.put("huge", b"x" * 2_000)
    source.changes[-1] = replace(source.changes[-1], hash=None, length=None)
    with pytest.raises(RsnotifyError, match="more than 1000 bytes"):
        await destination.catch_up(largest=1_000)
    assert destination.files() == {"large": b"x" * 2_000}
    await destination.become_equal()


class Empty:
    """Packages that have nothing."""

    async def member(self, package: str, entry: Resource) -> Content:
        raise Unavailable(entry.uri, f"{package} has no {entry.path}")


async def test_what_a_package_does_not_have_is_fetched(
    source: SmallSource, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source.contents["a"] = b"content"
    entry = Resource(source.base + "a", path="/a", hash=sha256(b"content"))
    change = Change(entry.uri, ChangeType.UPDATED, datetime.now(UTC), entry, "http://p/dump.zip")
    caplog.set_level(logging.INFO, "rsnotify.subscriber")
    async with Sessions(source.url) as sessions:
        bringer = ContentResolver(Fetcher(sessions, tmp_path), packages=Empty())
        content = await bringer.resolve(bringer.wanted(change), None)
    assert content is not None
    assert content.data == b"content"
    assert "http://p/dump.zip has no /a" in caplog.text


class Blocked:
    """A handler in a thread, which cannot take one of the resources at first."""

    def __init__(self) -> None:
        self.applied: dict[str, bytes] = {}
        self.threads: set[int] = set()
        self.failures = 2  # together with others, and alone

    def apply(self, changes: Sequence[Received]) -> None:
        self.threads.add(threading.get_ident())
        for change in changes:
            if change.uri.endswith("bad") and self.failures:
                self.failures -= 1
                raise OSError("the disk is full")
            assert change.content is not None
            self.applied[change.uri] = change.content.read_bytes()


async def test_a_handler_that_blocks_is_called_in_another_thread(
    source: SmallSource, tmp_path: Path
) -> None:
    for name in ("good", "bad"):
        source.put(name, name.encode())
    handler = Blocked()
    options = FollowOptions(pace=PACE)
    await Subscriber(source.url, handler, state=tmp_path / "state", options=options).catch_up()
    assert handler.applied == {source.base + name: name.encode() for name in ("good", "bad")}
    assert handler.failures == 0
    assert threading.get_ident() not in handler.threads
