"""The SWEET history through the origins that are polled backwards or by lists, with kills."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest
from aiohttp import ClientSession

from rsnotify.runtime.processes import Process
from tests.gateway.generators import Activities, EventStream, PullOnlySource, at
from tests.gateway.history import Step, sweet
from tests.gateway.origin_server import SITE, Site
from tests.gateway.published import changes_of, read, replayed
from tests.gateway.running import configuration
from tests.gateway.test_replay import DATED
from tests.ports import free_port

#: Seconds; only what hangs takes them.
PATIENCE = 240
KILLS = 8


@pytest.mark.slow
async def test_the_sweet_history_ends_equal_with_kills(tmp_path: Path):
    steps = list(sweet(8_068))
    present: dict[str, int] = {}
    random = Random(1)
    async with Site() as site:
        origins = (
            PullOnlySource(site, per_list=200, lists_every=700),
            Activities(site, per_page=100),
            EventStream(site, per_page=100),
        )
        port = free_port()
        file, log = tmp_path / "gateway.toml", tmp_path / "log"
        given = [
            {"name": name, "type": name, "url": origin.url()}
            for name, origin in zip(DATED, origins, strict=True)
        ]
        file.write_text(configuration(port, tmp_path / "state", "500 changes", *given))
        gateway = await Process.start("gateway", str(file), log=log)
        try:
            for number, step in enumerate(steps, 1):
                for origin in origins:
                    apply(origin, step, number, present)
                note(present, step, number)
                await asyncio.sleep(random.random() * 0.004)
                if number % (len(steps) // KILLS) == 0:
                    await gateway.kill()
                    gateway = await Process.start("gateway", str(file), log=log)
            wanted: dict[str, object] = {
                SITE + name: at(number) for name, number in present.items()
            }
            await gateway.url()
            await until_equal(f"http://127.0.0.1:{port}/", wanted)
        finally:
            assert await gateway.stop() == 0, log.read_text()


def apply(
    origin: PullOnlySource | Activities | EventStream,
    step: Step,
    number: int,
    present: dict[str, int],
) -> None:
    if step.version is not None:
        origin.put(step.name, at(number))
    elif step.name in present:
        origin.delete(step.name, at(number))


def note(present: dict[str, int], step: Step, number: int) -> None:
    if step.version is None:
        present.pop(step.name, None)
    else:
        present[step.name] = number


async def until_equal(url: str, wanted: Mapping[str, object]) -> None:
    found: dict[str, dict[str, object]] = {}
    async with ClientSession() as session, asyncio.timeout(PATIENCE):
        while any(found.get(name) != wanted for name in DATED):
            await asyncio.sleep(0.1)
            for name in DATED:
                async with session.get(f"{url}{name}/changelist.xml") as answer:
                    if answer.status == 200:
                        found[name] = dict(replayed(await changes_of(session, f"{url}{name}/")))
            print({name: len(each) for name, each in found.items()}, len(wanted))
        for name in DATED:
            listed = await read(session, f"{url}{name}/resourcelist.xml")
            assert {entry.uri for entry in listed.resources} == set(wanted)
