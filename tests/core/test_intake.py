"""What a follower remembers of the documents it took in."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random

import pytest

from rsnotify.format.coverage import Coverage
from rsnotify.format.model import Resource
from rsnotify.sync import change_intake as intake
from rsnotify.sync.actions import DocumentKind, Fetch, Progress
from rsnotify.sync.change_intake import ChangeIntake
from rsnotify.sync.frontiers import SyncFrontiers
from rsnotify.sync.pace import Pace
from rsnotify.sync.pending_changes import PendingChanges
from rsnotify.sync.retry import Retry
from rsnotify.sync.unconfirmed_changes import UnconfirmedChanges

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_of_the_packages_that_were_read_the_last_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake, "_KEPT", 2)
    knowledge = SyncFrontiers(Progress(NOW, NOW), hold=10)
    pace = Pace(hold=10)
    provisional = UnconfirmedChanges(1.0, 1.0)
    taker = ChangeIntake(knowledge, PendingChanges(Retry(), Random(1)), provisional, pace)
    for name in "abac":
        package = Resource(f"http://a.example/{name}.zip")
        asked = Fetch(package.uri, DocumentKind.CHANGE_DUMP, package)
        coverage = Coverage(NOW, NOW, closed=True, ordered=True, changes=())
        taker.take(asked, coverage, 0.0, present=False, more=False)
    assert list(taker.packages) == ["http://a.example/a.zip", "http://a.example/c.zip"]
