"""The worked example: a Source of linked data, and a triple store that is kept in step with it."""

from __future__ import annotations

import asyncio
import json
import runpy
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rsnotify.sync.pace import Pace
from rsnotify_hub.application import serve
from rsnotify_hub.config.loading import load_configuration
from rsnotify_subscriber import FollowOptions, Subscriber
from tests.end_to_end.history import Step, read
from tests.ports import free_port
from tests.publisher.helpers import PATIENCE, eventually

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "publisher/examples/linked_data.py"
AGGREGATOR = ROOT / "subscriber/examples/triple_store.py"
HISTORY = ROOT.parent / "shared/data/sweet-history.jsonl.xz"
#: Of its 8,068 changes.
LONG = 80
source = runpy.run_path(str(SOURCE))
aggregator = runpy.run_path(str(AGGREGATOR))


@asynccontextmanager
async def running(folder: Path, *, delta: bool) -> AsyncIterator[tuple[Any, Any, Subscriber]]:
    """Run a hub, the Source and the aggregator."""
    settings = {"port": 0, "data": str(folder / "hub"), "allow_private_addresses": True}
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(serve(load_configuration(None, **settings)))
        base = f"http://127.0.0.1:{free_port()}/"
        feed = source["ObservationFeed"](str(folder / "source"), base, [hub], delta=delta)
        runner = web.AppRunner(feed.application(), shutdown_timeout=0.1)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", int(base.rpartition(":")[2][:-1])).start()
        triples = aggregator["TripleStore"](folder / "copy")
        options = FollowOptions(
            patches=aggregator["PATCHES"], pace=Pace(poll=0.5), allow_private_addresses=True
        )
        subscriber = Subscriber(base, triples, state=folder / "copy/state", options=options)
        await stack.enter_async_context(subscriber)
        yield feed, triples, subscriber


def graphs(store: Any) -> dict[str, bytes]:
    """Return each graph of a store, in canonical form."""
    return {
        graph.value: source["document_of"](store.quads_for_pattern(None, None, None, graph))
        for graph in store.named_graphs()
        if any(store.quads_for_pattern(None, None, None, graph))
    }


async def in_step(feed: Any, triples: Any, subscriber: Subscriber) -> None:
    async with asyncio.timeout(PATIENCE):
        expected = graphs(feed.store)
        assert await subscriber.until(
            lambda status: status.level and graphs(triples.store) == expected
        )


@pytest.mark.parametrize("delta", [False, True], ids=["whole", "delta"])
async def test_a_triple_store_is_kept_in_step(tmp_path: Path, delta: bool) -> None:
    async with running(tmp_path, delta=delta) as (feed, triples, subscriber):
        for number in [*range(5), 1, 2, 1]:
            await feed.put(f"graphs/station/{number}", source["station"](feed.base, number))
        await feed.remove("graphs/station/0")
        await in_step(feed, triples, subscriber)
        query = "SELECT ?s { GRAPH ?g { ?s <http://www.w3.org/ns/sosa/observes> ?o } }"
        found = {one["s"].value for one in triples.store.query(query)}
        assert found == {f"{feed.base}graphs/station/{number}#it" for number in range(1, 5)}


async def test_the_patches_of_the_source_are_used(tmp_path: Path) -> None:
    async with running(tmp_path, delta=True) as (feed, triples, subscriber):
        name = "graphs/station/1"
        await feed.put(name, source["station"](feed.base, 1))
        await in_step(feed, triples, subscriber)
        uri = feed.base + name
        await feed.put(name, source["station"](feed.base, 1))
        # Only the patch that came with the change leads there: nothing is served at the URI.
        document = feed.documents.pop(uri)
        await in_step(feed, triples, subscriber)
        assert triples.held_content(uri).read_bytes() == document


def sweet() -> Iterable[Step]:
    return islice(read(HISTORY), LONG)


def made_up() -> Iterable[Step]:
    for step in range(60):
        name = f"{step % 7}.ttl"
        # A store may write 1.50 as 1.5, which is the same triple then.
        nested = f"<> <#v> 1.50 . <#{step}> <#has> [ <#n> {step} ; <#m> [ <#n> {step % 3} ] ] ."
        yield Step(name, nested.encode() if step % 5 else b"this is no Turtle")
        if step % 11 == 10:
            yield Step(name, None)


@pytest.mark.parametrize("history", [made_up, *([sweet] if HISTORY.exists() else [])])
async def test_a_history_of_ontologies_ends_equal(tmp_path: Path, history: Any) -> None:
    async with running(tmp_path, delta=False) as (feed, triples, subscriber):
        for step in history():
            name = "graphs/" + urllib.parse.quote(step.path)
            content = None if step.content is None else step.content.decode()
            await source["step"](feed, name, content)
        assert len(feed.documents) > 3
        await in_step(feed, triples, subscriber)


def test_both_examples_run(tmp_path: Path) -> None:
    ports = free_port(), free_port()
    commands: list[list[Any]] = [
        [sys.executable, SOURCE, "--port", str(ports[0]), "--rate", "50"],
        [
            sys.executable,
            AGGREGATOR,
            f"http://127.0.0.1:{ports[0]}/",
            tmp_path / "copy",
            "--port",
            str(ports[1]),
        ],
    ]
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
    query = "SELECT DISTINCT ?s { ?s <http://www.w3.org/ns/sosa/hasSimpleResult> ?o }"
    url = f"http://127.0.0.1:{ports[1]}/sparql?" + urllib.parse.urlencode({"query": query})
    try:
        eventually(lambda: _found(url) > 3)
    finally:
        for process in processes:
            process.terminate()
            process.wait(PATIENCE)


def _found(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return len(json.load(answer)["results"]["bindings"])
    except urllib.error.URLError:
        return 0  # it does not serve yet
