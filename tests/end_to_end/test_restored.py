"""A Source that is restored from a backup, and a hub that has what the Source has lost."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.format.reader import read_document
from rsnotify_publisher import Publisher
from tests.hub.helpers import PATIENCE, Client
from tests.hub.processes import hub_process
from tests.publisher.helpers import BASE, QUICK


def publisher(folder: Path, hub: Client) -> Publisher:
    return Publisher(folder, BASE, hubs=[hub.url], options=replace(QUICK, heartbeat=3600))


async def memory(hub: Client, since: Instant) -> list[str] | None:
    """Return which resources changed after an instant, as the hub knows it; None if it does not."""
    query = {"topic": BASE + "channel.xml", "since": format_datetime(since)}
    async with hub.session.get(hub.url + "topics", params=query) as answer:
        if answer.status != 200:
            return None
        document = read_document(await answer.read())
    return [entry.uri.removeprefix(BASE) for entry in document.resources]


async def until_known(hub: Client, since: Instant, names: list[str] | None) -> None:
    async with asyncio.timeout(PATIENCE):
        while await memory(hub, since) != names:  # noqa: ASYNC110 - the hub is another process
            await asyncio.sleep(0.02)


async def published_and_lost(folder: Path, hub: Client) -> Instant:
    """Make a backup between the changes `kept` and `lost`; return when the first was made."""
    async with publisher(folder / "state", hub) as source:
        first = (await source.aupdated(BASE + "kept")).datetime
        assert first is not None
    shutil.copytree(folder / "state", folder / "backup")
    async with publisher(folder / "state", hub) as source:
        await source.aupdated(BASE + "lost")
        await until_known(hub, first, ["lost"])
    return first


async def test_the_hub_forgets_what_a_restored_source_does_not_know(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with hub_process(tmp_path / "hub") as (hub, _):
        first = await published_and_lost(tmp_path, hub)
        with caplog.at_level(logging.WARNING):
            # The Source says at once, without any change, that it does not know it.
            async with publisher(tmp_path / "backup", hub) as source:
                await until_known(hub, first, [])
                await source.aupdated(BASE + "new")
                await until_known(hub, first, ["new"])
        assert "restored from a backup, or replaced" in caplog.text


async def test_the_hub_forgets_it_also_if_the_source_has_published_documents_before(tmp_path: Path):
    async with hub_process(tmp_path / "hub") as (hub, _):
        first = await published_and_lost(tmp_path, hub)
    port = hub.url.rstrip("/").rpartition(":")[2]
    async with publisher(tmp_path / "backup", hub) as source:
        await source.await_published()
        async with hub_process(tmp_path / "hub", "--port", port) as (hub, _):
            await until_known(hub, first, [])


async def test_a_hub_that_lost_its_data_says_since_when_it_knows(tmp_path: Path):
    url = ""
    changed: list[Any] = []
    for data in ("hub", "wiped"):
        port = ("--port", url.rstrip("/").rpartition(":")[2]) if url else ()
        async with hub_process(tmp_path / data, *port) as (hub, _):
            url = hub.url
            async with publisher(tmp_path / "state", hub) as source:
                changed += [(await source.aupdated(BASE + data)).datetime for _ in range(2)]
                await until_known(hub, changed[-2], [data])
            if data == "wiped":
                assert await memory(hub, changed[1]) == ["wiped", "wiped"]
                assert await memory(hub, changed[0]) is None, "there is a gap before its log"
