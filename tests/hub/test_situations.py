"""Known situations of a hub, and what the page, `rsnotify hub status` and the metrics say of them.

All three show what `rsnotify_hub.admin.part_states` and the fields of the status define.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from rsnotify_hub.admin import text_tables
from rsnotify_hub.admin.connection_operations import CLOSE_REASON
from rsnotify_hub.admin.schemas import StatusInfo
from rsnotify_hub.live import connections
from rsnotify_hub.open_store import OpenFolder
from rsnotify_hub.store.group_commit import GroupCommit
from rsnotify_hub.store.nodes import NodeInfo, NodeList
from tests.browser import Browser, Page
from tests.hub.event_streams import events
from tests.hub.helpers import (
    Callback,
    Client,
    Clock,
    RunHub,
    fragment,
    send,
    slow_client,
)
from tests.hub.readings import IN_A_CLUSTER
from tests.waiting import until

#: Badge and text of each part on the page.
PARTS = """Object.fromEntries([...document.querySelectorAll('#parts li')].map(each => [
    each.querySelector('strong').innerText.toLowerCase(),
    each.querySelector('.badge').innerText + ': ' + each.querySelector('.what').innerText]))"""
WORDS = {"in order": 0.0, "needs attention": 1.0, "in trouble": 2.0}
FIGURE = "document.querySelector('#{} .figure').innerText === '{}'"
#: The page polls at once.
POLL = "dispatchEvent(new Event('online'))"
ROWS = "[...document.querySelectorAll('#connections tbody tr')].map(each => each.innerText)"
#: Finds the button of the Source's connection.
MARK = """[...document.querySelectorAll('#connections tbody tr')].find(each =>
    each.innerText.includes('Source')).querySelector('.close').id = 'marked'"""


class Situations:
    """What may happen to one hub with one topic; `change` is the second of its last change."""

    def __init__(
        self, hub: Client, callback: Callback, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.hub, self.callback, self.clock = hub, callback, clock
        self.monkeypatch = monkeypatch
        self.second = self.change = 0

    async def publish(self, padding: int = 0) -> int:
        self.second += 1
        body = fragment(self.change, self.second, padding=padding)
        status, _ = await self.hub.publish(body)
        if status == 202:
            self.change = self.second
        return status

    async def heartbeat(self) -> None:
        self.second += 1
        await self.hub.accepted(fragment(self.change, until=self.second))

    @asynccontextmanager
    async def failing_callback(self) -> AsyncIterator[None]:
        self.callback.answers = [503] * 1000
        assert await self.publish() == 202
        yield
        self.callback.answers = []
        (row,) = await self.hub.subscriptions(bool)
        await self.hub.admin("POST", f"subscriptions/{row['id']}/redeliver")

    @asynccontextmanager
    async def slow_reader(self) -> AsyncIterator[None]:
        async with slow_client(self.hub, read_bufsize=2**10) as client, events(client):
            unsent = 0
            while unsent < 1_000_000:  # more than the system can still accept
                assert await self.publish(padding=300_000) == 202
                (row,) = await self.hub.connections()
                unsent = row["unsent"]
            yield

    @asynccontextmanager
    async def silent_source(self) -> AsyncIterator[None]:
        for _ in range(2):  # its pace is now known to be 15 seconds
            await self.heartbeat()
            self.clock.advance(seconds=15)
        await self.heartbeat()
        self.clock.advance(seconds=45)
        assert (await self.hub.admin("GET", "status"))["silent"] == 0
        self.clock.advance(seconds=1)
        yield
        await self.heartbeat()

    @asynccontextmanager
    async def full_disk(self) -> AsyncIterator[None]:
        def refuse(*_: Any) -> Any:
            raise sqlite3.OperationalError("database or disk is full")

        with self.monkeypatch.context() as broken:
            broken.setattr(GroupCommit, "_transact", refuse)
            assert await self.publish() == 503
            yield
        assert await self.publish() == 202

    @asynccontextmanager
    async def node_that_is_gone(self) -> AsyncIterator[None]:
        with self.monkeypatch.context() as broken:
            broken.setattr(OpenFolder, "gone", True, raising=False)
            yield


def describe(store: OpenFolder) -> NodeList:
    """Describe the node of a hub as one of a cluster, whose other node may be gone."""
    this: NodeInfo = store._node
    gone = getattr(store, "gone", False)
    rows = (this, replace(this, name="hub-b", this=False, alive=False)) if gone else (this,)
    nodes: NodeList = IN_A_CLUSTER["nodes"]  # type: ignore[assignment]
    return replace(nodes, rows=rows, shards=8, free=3 if gone else 0)


async def agree(hub: Client, page: Page, part: str, expected: str, troubled: int) -> None:
    """Wait until page, command and metrics say the same of a part."""

    async def printed() -> bool:
        status = msgspec.convert(await hub.admin("GET", "status"), StatusInfo)
        found = [re.split(r"  +", line) for line in text_tables.status(status)]
        texts = [f"{cells[0]}: {cells[2]}" for cells in found if cells[1:2] == [part]]
        return len(texts) == 1 and re.fullmatch(expected, texts[0]) is not None

    async def measured() -> bool:
        state = (await hub.metrics()).get(f'part_state{{part="{part}"}}')
        return state == WORDS[expected.partition(":")[0]]

    await until(printed)
    await until(measured)
    await page.evaluate(POLL)
    await page.until(f"new RegExp({json.dumps(f'^{expected}$')}).test({PARTS}['{part}'])")
    await page.until(FIGURE.format("health", troubled))


async def test_all_figures_are_true_in_known_situations(
    run_hub: RunHub,
    browser: Browser,
    callback: Callback,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(connections, "SLOW_SECONDS", 0.0)
    monkeypatch.setattr(OpenFolder, "describe", describe)
    async with run_hub(retry_seconds=3600) as hub, AsyncExitStack() as stack:
        situations = Situations(hub, callback, clock, monkeypatch)
        assert await situations.publish() == 202
        await hub.subscribe(callback)
        page = await stack.enter_async_context(browser.open(hub.url))

        # A Source's own connection is not a subscriber, nor is the page.
        source, reader = await hub.source(), await hub.listen()
        await send(source, fragment(1, 2))
        assert (await source.receive_json())["type"] == "accepted"
        situations.second = situations.change = 2
        async with events(hub):
            await page.until(FIGURE.format("listeners", 3))
            note = "1 WebSocket · 1 event stream · 1 callback"
            await page.until(f"document.querySelector('#listeners .note').innerText === '{note}'")
            await agree(hub, page, "connections", "in order: 2 readers, 1 Source", 0)
            metrics = await hub.metrics()
            for way in ("websub", "websocket", "sse"):
                assert metrics[f'subscribers{{way="{way}"}}'] == 1
            is_shown = "rows.length === 3 && rows.every(each => each.startsWith('live'))"
            rows = await page.until(f"(rows => {is_shown} && rows)({ROWS})")
            assert {re.findall(r"\w+ · \w+", row)[0] for row in rows} == {
                "stream · subscriber",
                "WebSocket · subscriber",
                "WebSocket · Source",
            }
            await page.evaluate(MARK)
            await page.evaluate("marked.click(), marked.click()")  # the second time is meant
            closed = await source.receive()
            assert (closed.data, closed.extra) == (1001, CLOSE_REASON)
            await page.until(f"{ROWS}.length === 2")
        await source.close()
        await reader.close()
        await page.until(f"{ROWS}.length === 0")
        await page.until(FIGURE.format("listeners", 1))

        calm = await page.until(f"(found => Object.keys(found).length > 5 && found)({PARTS})")
        assert {text.partition(":")[0] for name, text in calm.items() if name != "disk"} == {
            "in order"
        }
        for part, situation, during, troubled, after in (
            (
                "callbacks",
                situations.failing_callback,
                r"in trouble: 1 of 1 failing, 1 retrying; longest lag 0\.0 s",
                1,
                "in order: 1 of 1 receiving",
            ),
            (
                "connections",
                situations.slow_reader,
                r"needs attention: 1 reader, 0 Sources; 1 slow, for .*, [\d,]+ bytes waiting",
                1,
                "in order: 0 readers, 0 Sources",
            ),
            (
                "sources",
                situations.silent_source,
                "needs attention: 1 of 1 silent, not even a heartbeat: source.example for 46 s",
                1,
                r"in order: none is silent; the last fragment arrived 0\.0 s ago",
            ),
            (
                "store",
                situations.full_disk,
                r"in trouble: has refused fragments for 0\.0 s: cannot write .* disk is full",
                1,
                "in order: no writes waiting",
            ),
            (
                "nodes",
                situations.node_that_is_gone,
                "in trouble: 1 of 2 nodes gone: hub-b; 3 shards without a node: .* nothing",
                1,
                "in order: 1 node running",
            ),
        ):
            async with situation():
                await agree(hub, page, part, during, troubled)
            await agree(hub, page, part, after, 0)
        assert page.problems_but("network") == []
