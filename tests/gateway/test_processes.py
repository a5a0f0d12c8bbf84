"""An origin, a gateway, a hub and a Destination as processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from rsnotify.runtime.processes import Process
from tests.gateway.published import until_replayed
from tests.gateway.running import configuration, until_answered
from tests.interop.clients import contents
from tests.ports import free_port
from tests.waiting import until

Start = Callable[..., Awaitable[Process]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    started: list[Process] = []

    async def start(*arguments: object) -> Process:
        log = tmp_path / f"{arguments[0]}.log"
        started.append(await Process.start(*map(str, arguments), log=log))
        return started[-1]

    yield start
    for process in reversed(started):
        await process.stop()


#: The ways in which a Source of ours can be an origin, with the document that each begins with.
DOCUMENTS = {
    "sitemap": "resourcelist.xml",
    "resourcesync": "",
    "iiif": "resourcesync/iiif.json",
    "ldes": "resourcesync/ldes.ttl",
}


async def test_a_destination_receives_the_content_of_the_origin_by_push(
    start: Start, tmp_path: Path
):
    folder, copy = tmp_path / "origin", tmp_path / "copy"
    folder.mkdir()
    origin = await start(
        *("source", folder, "--port", 0, "--resource-list-every", 0.05, "--rotate", "2 changes"),
        *("--views", "iiif", "--views", "ldes"),
    )
    origin_url = await origin.url()
    # Only changes are in the views, and not what was there before.
    (folder / "a.txt").write_text("first")
    (folder / "b.txt").write_text("to be deleted")
    hub_url = await (await start("hub", "--port", 0, "--data", tmp_path / "hub")).url()
    file, port = tmp_path / "gateway.toml", free_port()
    origins = [
        {"name": name, "type": name, "url": origin_url + document}
        for name, document in DOCUMENTS.items()
    ]
    file.write_text(configuration(port, tmp_path / "state", "500 changes", *origins))
    gateway = await start("gateway", file, "--hub", hub_url)
    url = await gateway.url()
    # Without its first check, the gateway would tell the Destination to come again much later.
    for name in DOCUMENTS:
        await until_answered(f"{url}{name}/capabilitylist.xml")

    def held() -> list[bytes]:
        with suppress(FileNotFoundError):  # a file that was deleted meanwhile
            return sorted(contents(copy).values())
        return []

    await start(
        *("follow", url + "iiif/", copy, "--via", "websocket", "--poll", 3600),
        "--allow-private-addresses",
    )
    await until(lambda: held() == [b"first", b"to be deleted"])
    (folder / "a.txt").write_text("second")
    (folder / "b.txt").unlink()
    (folder / "c.txt").write_text("new")
    await until(lambda: held() == [b"new", b"second"])
    names = {origin_url + name for name in ("a.txt", "c.txt")}
    await until_replayed(
        url, list(DOCUMENTS), lambda sets: [*map(set, sets.values())] == [names] * len(DOCUMENTS)
    )
