"""npm's `ldes-client`, the reference client, follows our view as a Linked Data Event Stream."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from rsnotify.format.model import ChangeType, Resource
from rsnotify_publisher import Publisher
from tests.interop.clients import Node
from tests.interop.site import served
from tests.publisher.helpers import Start, put
from tests.publisher.published import QUIET
from tests.publisher.view_consumers import state_of

NAMES = list("abcdefghijkl")


@pytest.mark.parametrize("order", ["none", "ascending"])
def test_a_client_follows_while_it_records(
    ldes_node: Node, folder: Path, source: Start, order: str
):
    process = source("--views", "ldes", "--rotate", "4 changes")
    stream, changes = process.url + "resourcesync/ldes.ttl", []
    with ThreadPoolExecutor(1) as threads:
        following = threads.submit(ldes_node.run, "follow_ldes.mjs", stream, order, "14")
        for name in NAMES:
            put(folder / name, "new")
            process.wait_for_change("created", name)
            changes.append((name, "Create"))
        put(folder / "a", "changed")
        process.wait_for_change("updated", "a")
        (folder / "b").unlink()
        changes += [("a", "Update"), ("b", "Delete")]
        members = following.result()
    if order == "ascending":
        times = [at[:23] for _, _, at in members]  # JavaScript's Date has milliseconds
        assert times == sorted(times)
    found = [(uri, activity, datetime.fromisoformat(at)) for uri, activity, at in members]
    found.sort(key=lambda member: member[2])
    assert [(uri.removeprefix(process.url), activity) for uri, activity, _ in found] == changes
    assert set(state_of(found)) == {process.url + name for name in NAMES if name != "b"}


@pytest.mark.slow
def test_a_client_reads_the_changes_of_a_resource_within_a_millisecond_in_their_order(
    ldes_node: Node, tmp_path: Path
):
    documents = tmp_path / "documents"
    documents.mkdir()
    options = replace(QUIET, views=("ldes",), rotate="6 changes")
    kinds = [
        ChangeType.CREATED,
        *([ChangeType.UPDATED, ChangeType.DELETED, ChangeType.CREATED] * 5),
    ]
    with served(documents) as url:
        # All changes are dated within 32 microseconds.
        with Publisher(tmp_path, f"{url}/", options=options, clock=lambda: 10**15) as source:
            source.record(
                [Resource(f"{url}/{name}", change=kind) for kind in kinds for name in "ab"]
            )
            assert source.wait_published()
        members = ldes_node.run(
            "follow_ldes.mjs", f"{url}/resourcesync/ldes.ttl", "ascending", str(2 * len(kinds))
        )
    for name in "ab":
        read = [activity for uri, activity, _ in members if uri == f"{url}/{name}"]
        assert read == [f"{kind[0].upper()}{kind[1:-1]}" for kind in kinds]
