"""The metrics of a Source, in a registry of the application."""

from __future__ import annotations

import asyncio
from pathlib import Path

from prometheus_client import CollectorRegistry

from rsnotify_publisher import SourceMetrics
from rsnotify_publisher.metrics import not_ready
from tests.publisher.helpers import BASE, PATIENCE, FakeHub, quick_publisher

NOWHERE = "http://127.0.0.1:1/"
NOT_WRITTEN = "the documents of 1 of 1 set have not been written yet"


async def test_the_metrics_are_those_of_the_journal_and_of_each_hub(tmp_path: Path, hub: FakeHub):
    publisher = quick_publisher(tmp_path, hub.url + "websub", NOWHERE, grace=0)
    registry = CollectorRegistry()
    SourceMetrics(publisher, registry=registry)

    def read() -> dict[tuple[str, ...], float]:
        return {
            (sample.name.removeprefix("rsnotify_source_"), *sample.labels.values()): sample.value
            for family in registry.collect()
            for sample in family.samples
        }

    before = read()  # in this thread, and then in others
    assert (before["sets",], before["sets_published",], before["resources",]) == (1, 0, 0)
    assert not_ready([publisher]) == NOT_WRITTEN
    async with publisher:
        assert await publisher.await_published(PATIENCE)
        assert not_ready([publisher]) == ""
        await publisher.acreated(BASE + "a")
        await publisher.aupdated(BASE + "a")
        await hub.has(BASE + "a")
        near, far = hub.url + "websub", "ws://127.0.0.1:1/ws"
        async with asyncio.timeout(PATIENCE):
            while True:
                found = await asyncio.to_thread(read)
                is_accepted = found["hub_unsent_changes", near] == 0
                if is_accepted and found["hub_up", near] == 1 and found["hub_failures_total", far]:
                    break
                await asyncio.sleep(0.01)
    for name, value in {
        ("sets_published",): 1,
        ("resources",): 1,
        ("changes_total",): 2,
        ("hub_unsent_changes", far): 2,
        ("hub_fragments_total", far): 0,
        ("hub_failures_total", near): 0,
    }.items():
        assert found[name] == value, name
    assert found["last_change_timestamp_seconds",] > 1.7e9
    for positive in (
        ("journal_bytes",),
        ("commit_seconds_count",),
        ("commit_seconds_sum",),
        ("file_flush_seconds_count",),
        ("hub_fragments_total", near),
        ("hub_fragment_bytes_total", near),
        ("hub_lag_seconds_count",),
    ):
        assert found[positive] > 0, positive
    assert not_ready([publisher]) == NOT_WRITTEN
