"""A history through every way in, while the process of the gateway is killed again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from aiohttp import ClientSession

from rsnotify.runtime.processes import Process
from tests.gateway.history import SITE, Published, Step, made_up, sweet
from tests.gateway.origin_server import Site
from tests.gateway.published import changes_of, listed, replayed
from tests.gateway.repositories import Items, RepositoryServer, pyoai
from tests.gateway.running import configuration
from tests.ports import free_port

#: Seconds; only what hangs takes them.
PATIENCE = 120
STEPS, KILLS = 240, 6
OAI = "https://repository.example/oai:"


#: The types of origins whose documents have every change with its datetime.
DATED = ("resourcesync", "iiif", "ldes")


def settings(published: Published, repository: RepositoryServer, port: int, data: Path) -> str:
    site, uri = published.site, OAI.removesuffix("oai:") + "{identifier}"
    origins = [
        {"name": "sitemap", "type": "sitemap", "url": site.url("/sitemap.xml")},
        {"name": "repository", "type": "oai-pmh", "url": repository.url, "uri": uri},
        {"name": "feed", "type": "feed", "url": site.url("/feed/0")},
        *(
            {"name": name, "type": name, "url": origin.url()}
            for name, origin in zip(DATED, published.dated, strict=True)
        ),
    ]
    often = {"poll": 0.02, "poll_most": 0.05}
    return configuration(port, data, "50 changes", *(origin | often for origin in origins))


@pytest.fixture
async def origins() -> AsyncIterator[tuple[Site, RepositoryServer]]:
    async with Site() as site, RepositoryServer(Items(), pyoai) as repository:
        yield site, repository


def parts_of(history: str) -> list[list[Step]]:
    """Return the steps between two kills."""
    if history == "made up":
        return [
            list(made_up(STEPS // KILLS, seed=100 + kill, first=1_000 * (kill + 1)))
            for kill in range(KILLS)
        ]
    steps = list(sweet(8_068))
    return [
        steps[len(steps) * kill // KILLS : len(steps) * (kill + 1) // KILLS]
        for kill in range(KILLS)
    ]


@pytest.mark.parametrize(
    ("history", "at_once"), [("made up", 1), pytest.param("SWEET", 8, marks=pytest.mark.slow)]
)
async def test_all_sets_end_equal_though_the_gateway_is_killed_at_any_instant(
    origins: tuple[Site, RepositoryServer], tmp_path: Path, history: str, at_once: int
):
    site, repository = origins
    published = Published(site, repository.items)
    published.apply(*made_up(30, seed=1))
    port = free_port()
    file, log = tmp_path / "gateway.toml", tmp_path / "log"
    file.write_text(settings(published, repository, port, tmp_path / "state"))
    random = Random(7)
    parts = parts_of(history)  # which skips the test if the data is not there
    gateway = await Process.start("gateway", str(file), log=log)
    try:
        for kill, steps in enumerate(parts):
            if kill % 2:
                await gateway.url()
            for start in range(0, len(steps), at_once):
                published.apply(*steps[start : start + at_once])
                await asyncio.sleep(random.random() * 0.03)
            await gateway.kill()
            gateway = await Process.start("gateway", str(file), log=log)
        await gateway.url()
        await until_equal(f"http://127.0.0.1:{port}/", published)
    finally:
        assert await gateway.stop() == 0, log.read_text()


async def until_equal(url: str, published: Published) -> None:
    wanted = {SITE + name: published.lastmod(name) for name in published.versions}
    identifiers = {OAI + name for name in published.versions}
    async with ClientSession() as session, asyncio.timeout(PATIENCE):
        while True:
            sets = {}
            for name in ("sitemap", "repository", "feed", *DATED):
                async with session.get(f"{url}{name}/changelist.xml") as answer:
                    if answer.status == 200:
                        sets[name] = replayed(await changes_of(session, f"{url}{name}/"))
            live = {uri: at for uri, at in sets.get("feed", {}).items() if uri in wanted}
            if (
                sets.get("sitemap") == wanted
                and set(sets.get("repository", ())) == identifiers
                and live == wanted
                and all(sets.get(name) == wanted for name in DATED)
            ):
                break
            print({name: sorted(set(found) ^ set(wanted)) for name, found in sets.items()}, live)
            await asyncio.sleep(0.1)
        ever = {SITE + name for name, _ in published.history}
        assert set(sets["feed"]) <= ever
        # The next Resource List says the same as all changes together.
        for name, found in sets.items():
            while await listed(session, f"{url}{name}/resourcelist.xml") != set(found):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
