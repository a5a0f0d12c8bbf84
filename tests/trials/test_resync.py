"""PyPI's `resync` copies a Source that is killed, beside our Destination."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.clients import ResyncClient, contents
from tests.publisher.helpers import eventually
from tests.trials.deployment import Deployment

pytestmark = pytest.mark.slow


def test_resync_sync_copies_what_a_killed_source_publishes(tmp_path: Path) -> None:
    client = ResyncClient(tmp_path / "client/copy")
    with Deployment(tmp_path / "here", source="--resource-list-every 0.5") as trial:
        trial.follow_by("websocket")
        client.baseline(trial.url)
        for round_ in range(3):
            trial.put("one.txt", f"version {round_}")
            trial.copies(f"version {round_}")
            trial.kill(trial.source)
            trial.put("two.txt", f"while it was away {round_}")
            trial.start(trial.source)
            trial.put("three.txt", f"and after {round_}")
            trial.copies(f"while it was away {round_}")
            trial.copies(f"and after {round_}")
            client.incremental(trial.url)
            eventually(lambda: client.is_in_sync(trial.url))  # once the Resource List is new
            assert contents(client.copy) == contents(trial.folder / "data")
        trial.ends_in_step(4)
