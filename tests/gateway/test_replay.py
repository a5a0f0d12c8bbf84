"""A history through every way in, while the process of the gateway is killed again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from rsnotify.runtime.processes import Process
from tests.gateway.history import SITE, Published, Step, made_up, sweet
from tests.gateway.origin_server import Site
from tests.gateway.published import Sets, until_replayed
from tests.gateway.repositories import Items, RepositoryServer, pyoai
from tests.gateway.running import configuration
from tests.ports import free_port

#: Changes between two kills.
STEPS = 40
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


def parts_of(history: str, kills: int) -> list[list[Step]]:
    """Return the steps between two kills."""
    if history == "made up":
        return [
            list(made_up(STEPS, seed=100 + kill, first=1_000 * (kill + 1))) for kill in range(kills)
        ]
    steps = list(sweet(8_068))
    return [
        steps[len(steps) * kill // kills : len(steps) * (kill + 1) // kills]
        for kill in range(kills)
    ]


@pytest.mark.parametrize(
    ("history", "at_once", "kills"),
    [("made up", 1, 4), pytest.param("SWEET", 8, 6, marks=pytest.mark.slow)],
)
async def test_all_sets_end_equal_though_the_gateway_is_killed_at_any_instant(
    origins: tuple[Site, RepositoryServer], tmp_path: Path, history: str, at_once: int, kills: int
):
    site, repository = origins
    published = Published(site, repository.items)
    published.apply(*made_up(30, seed=1))
    port = free_port()
    file, log = tmp_path / "gateway.toml", tmp_path / "log"
    file.write_text(settings(published, repository, port, tmp_path / "state"))
    random = Random(7)
    parts = parts_of(history, kills)  # which skips the test if the data is not there
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

    def are_right(sets: Sets) -> bool:
        live = {uri: at for uri, at in sets.get("feed", {}).items() if uri in wanted}
        return (
            sets.get("sitemap") == wanted
            and set(sets.get("repository", ())) == identifiers
            and live == wanted
            and all(sets.get(name) == wanted for name in DATED)
        )

    sets = await until_replayed(url, ("sitemap", "repository", "feed", *DATED), are_right)
    assert set(sets["feed"]) <= {SITE + name for name, _ in published.history}
