"""Source, hub, relay and Destination as processes; the relay is killed in the middle."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from rsnotify.format.model import Document, Resource
from rsnotify.format.reader import read_document
from rsnotify.runtime.processes import Process
from tests.end_to_end import history
from tests.interop.clients import ResyncClient, contents
from tests.ports import free_port
from tests.publisher.helpers import eventually
from tests.relay.running import files
from tests.waiting import PATIENCE

Start = Callable[..., Awaitable[Process]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    started: list[Process] = []

    async def start(*arguments: object) -> Process:
        log = tmp_path / f"{arguments[0]}.log"
        process = await Process.start(*map(str, arguments), "--allow-private-addresses", log=log)
        started.append(process)
        return process

    yield start
    for process in reversed(started):
        await process.stop()


async def until_audited(start: Start, url: str, folder: Path, *options: object) -> None:
    """Wait until `rsnotify audit` finds a folder in step."""
    async with asyncio.timeout(PATIENCE):
        while await (await start("audit", url, folder, *options)).wait() != 0:
            pass


async def until_equal(folder: Path, other: Path) -> None:
    """Wait until a folder holds what the other does: its Source may not have seen it yet."""
    await asyncio.to_thread(eventually, lambda: files(folder) == files(other))


def read(uri: str) -> Document:
    with urllib.request.urlopen(uri, timeout=PATIENCE) as answer:
        return read_document(answer.read())


def newest_by_uri(url: str) -> dict[str, Resource]:
    """Return the last change of each resource in the documents of the Source."""
    closed = [entry.uri for entry in read(url + "changelist-archive.xml").resources]
    lists = [read(uri) for uri in (*closed, url + "changelist.xml")]
    return {entry.uri: entry for one in lists for entry in one.resources}


async def test_all_copies_end_equal_though_the_relay_is_killed_during_changes(
    start: Start, tmp_path: Path
) -> None:
    source_folder, copy, destination = (tmp_path / name for name in ("source", "copy", "mirror"))
    source_folder.mkdir()
    steps = list(history.make_up(200, seed=5))
    source_url, relay_url = (f"http://127.0.0.1:{free_port()}/" for _ in range(2))
    hub_url = await (await start("hub", "--port", 0, "--data", tmp_path / "hub")).url()
    relay = (
        *("relay", source_url, copy, "--base-url", relay_url, "--port", port_of(relay_url)),
        *("--hub", hub_url),
    )
    source = await start(
        *("source", source_folder, "--base-url", source_url, "--port", port_of(source_url)),
        *("--hub", hub_url),
    )
    await source.url()
    relaying = await start(*relay)
    await relaying.url()
    await start("follow", relay_url, destination, "--poll", 1)
    for part in range(4):
        applying = asyncio.create_task(
            asyncio.to_thread(history.apply, steps[part * 50 :][:50], source_folder)
        )
        if part in (1, 2):
            await relaying.kill()
            relaying = await start(*relay)
        await applying
    await until_equal(copy, source_folder)
    await until_audited(start, source_url, copy)
    await until_equal(destination, source_folder)
    await until_audited(start, relay_url, destination)
    assert contents(copy) == contents(source_folder)
    assert contents(destination) == contents(source_folder)
    for uri, entry in newest_by_uri(relay_url).items():
        (via,) = entry.links
        original = source_url + uri.removeprefix(relay_url)
        assert (via.rel, via.href) == ("via", original)
        assert via.hash == entry.hash


async def test_the_resync_client_follows_a_relay(start: Start, tmp_path: Path) -> None:
    folder, client = tmp_path / "source", ResyncClient(tmp_path / "client" / "copy")
    (folder / "maps").mkdir(parents=True)
    (folder / "maps/a.ttl").write_text("a")
    source_url = await (await start("source", folder, "--port", 0)).url()
    status = free_port()
    relay = ("relay", source_url, tmp_path / "copy", "--port", 0, "--poll", 0.2)
    more = ("--config", settings(tmp_path), "--status-port", status)
    url = await (await start(*relay, *more)).url()

    async def until_relayed() -> None:
        await until_equal(tmp_path / "copy", folder)
        await until_audited(start, source_url, tmp_path / "copy")
        # The relay's own lists come a moment after its copy, whose state is about the Source.
        await until_audited(start, url, tmp_path / "copy", "--state", tmp_path / "none")

    await until_relayed()
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{status}/metrics") as answer,
    ):
        metrics = await answer.text()
    assert "rsnotify_source_sets_published 1.0" in metrics
    assert f'rsnotify_follow_resources{{source="{source_url}"}} 1.0' in metrics
    # It ignores the deletion of what was created last before its baseline, by any Source.
    (folder / "later.ttl").write_text("l")
    await until_relayed()
    await asyncio.to_thread(client.baseline, url)
    assert contents(client.copy) == contents(folder)
    (folder / "maps/a.ttl").unlink()
    (folder / "b.ttl").write_text("b")
    await until_relayed()
    await asyncio.to_thread(client.incremental, url)
    assert contents(client.copy) == contents(folder)


def settings(folder: Path) -> Path:
    path = folder / "relay.toml"
    path.write_text("[options]\nresource_list_every = 0.1\n")
    return path


def port_of(url: str) -> str:
    match = re.search(r":(\d+)/", url)
    assert match is not None
    return match[1]
