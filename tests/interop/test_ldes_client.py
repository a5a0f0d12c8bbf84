"""npm's `ldes-client`, the reference client, follows our view as a Linked Data Event Stream."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest

from tests.interop.clients import Node
from tests.publisher.helpers import Start, put
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
