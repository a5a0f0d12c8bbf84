"""What a follower remembers of the documents that it read."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random

import pytest

from rsnotify.format.coverage import Coverage
from rsnotify.format.model import Resource
from rsnotify.sync import change_intake
from rsnotify.sync.actions import DocumentKind, Fetch, Progress
from rsnotify.sync.change_intake import ChangeIntake
from rsnotify.sync.pace import Pace
from rsnotify.sync.sync_state import SyncState

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_last_packages_that_were_read_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(change_intake, "_PACKAGES", 2)
    state = SyncState(Progress(NOW, NOW), Pace(hold=10), Random(1))
    intake = ChangeIntake(state)
    for name in "abac":
        package = Resource(f"http://a.example/{name}.zip")
        fetch = Fetch(package.uri, DocumentKind.CHANGE_DUMP, package)
        coverage = Coverage(NOW, NOW, closed=True, ordered=True, changes=())
        intake.add(fetch, coverage, 0.0, is_open=False, more=False)
    assert list(intake.packages) == ["http://a.example/a.zip", "http://a.example/c.zip"]
