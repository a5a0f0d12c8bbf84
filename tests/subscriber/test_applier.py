"""Changes that are being applied while others of the same resource arrive."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rsnotify.errors import RsnotifyError
from rsnotify.format.coverage import Change
from rsnotify.format.model import ChangeType, Link, Rel, Resource
from rsnotify.runtime.tasks import Tasks
from rsnotify.selection import Selection
from rsnotify.sync.actions import Progress
from rsnotify_subscriber import FolderMirror
from rsnotify_subscriber.content.resolver import ContentResolver
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_subscriber.following.applier import Applier
from rsnotify_subscriber.storage.destination_state import DestinationState
from tests.subscriber.destination import PATIENCE
from tests.subscriber.source import sha256

BASE = "http://a.example/"


def written(content: bytes, second: int) -> Change:
    data = Link(Rel.DUPLICATE, f"data:;base64,{b64encode(content).decode()}")
    resource = Resource(BASE + "a", change=ChangeType.UPDATED, hash=sha256(content), links=(data,))
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)
    return Change(resource.uri, ChangeType.UPDATED, at, resource)


class Late:
    """An `Outcome` that comes with an older change as soon as a newer one is applied."""

    def __init__(self, older: Change) -> None:
        self._older = [older]
        self.left = 2
        self.done = asyncio.Event()
        self.applier: Applier

    def progress_after(self, changes: Sequence[Change]) -> Progress | None:
        return None

    def applied(self, changes: Sequence[Change]) -> None:
        if self._older:
            self.applier.submit([self._older.pop()])
        self.left -= len(changes)

    def committed(self, changes: Sequence[Change]) -> None:
        if not self.left:
            self.done.set()

    def failed(self, change: Change, error: RsnotifyError) -> None:
        raise error


async def test_an_older_change_does_not_overtake_a_newer_one_that_has_just_been_applied(
    tmp_path: Path,
) -> None:
    older, newer = written(b"1", 1), written(b"2", 2)
    mirror, outcome = FolderMirror(tmp_path / "mirror"), Late(older)
    with closing(DestinationState(tmp_path / "state")) as state, ThreadPoolExecutor(1) as worker:
        mirror.prepare(BASE, tmp_path)
        async with Sessions("") as sessions:
            tasks = Tasks(lambda error: None)
            bringer = ContentResolver(Fetcher(sessions, state.make_incoming()))
            applier = Applier(bringer, state, mirror, outcome, worker, tasks, Selection())
            outcome.applier = applier
            tasks.spawn(applier.run())
            applier.submit([newer])
            async with asyncio.timeout(PATIENCE):
                await outcome.done.wait()
            await tasks.cancel()
        held = state.find(newer.uri)
    assert (tmp_path / "mirror/a").read_bytes() == b"2"
    assert held is not None
    assert held.hash == sha256(b"2")
