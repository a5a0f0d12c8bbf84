"""A fleet that a file describes, and that follows what the file says."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import psycopg
import pytest

from rsnotify.errors import ConfigurationError
from rsnotify_subscriber import Fleet, Received
from rsnotify_subscriber.fleet import Phase, reloading, totals
from rsnotify_subscriber.fleet.building import build
from rsnotify_subscriber.fleet.configuration import FleetConfiguration, load
from rsnotify_subscriber.fleet.reloading import ConfigurationWatcher, FleetReloader
from tests.subscriber.fleet.conftest import PATIENCE, Hanging, Many, until


class Counting:
    """Counts its effects in the database of its state."""

    def apply_within(self, connection: psycopg.Connection, changes: Sequence[Received]) -> None:
        for change in changes:
            connection.execute("INSERT INTO effects VALUES (%s)", (change.uri,))


def described(many: Many, defaults: str, *names: str) -> FleetConfiguration:
    sources = [f'[[source]]\nname = "{name}"\nurl = "{many.sources[name].url}"' for name in names]
    file = many.folder / "fleet.toml"
    file.write_text("\n".join([f"[defaults]\n{defaults}", *sources]))
    return load(file)


def kept(configuration: FleetConfiguration, *, once: bool = False) -> tuple[Fleet, FleetReloader]:
    fleet = Fleet(configuration.limits)
    make = partial(build, shared=fleet.shared, callbacks=None)
    return fleet, FleetReloader(fleet, make, configuration, once=once)


@asynccontextmanager
async def watching(
    reloader: FleetReloader, load: Callable[[], FleetConfiguration]
) -> AsyncIterator[ConfigurationWatcher]:
    one = ConfigurationWatcher(reloader, load)
    running = asyncio.create_task(one.run())
    yield one
    running.cancel()
    await asyncio.wait({running})


async def test_the_states_of_several_sources_are_in_one_database(
    many: Many, postgresql: str
) -> None:
    await many.start(3)
    with psycopg.connect(postgresql, autocommit=True) as connection:
        connection.execute("CREATE TABLE effects (uri text)")
    text = f'handler = "{__name__}:Counting"\npostgresql = "{postgresql}"\nschema = "of_{{name}}"'
    for _ in range(2):  # the second time there is nothing left to do
        fleet, reloader = kept(described(many, text, *many.sources), once=True)
        async with asyncio.timeout(PATIENCE), reloader.sharing():
            await fleet.catch_up()
        assert totals(fleet.status).level == 3, fleet.status
    with psycopg.connect(postgresql) as connection:
        effects = [uri for (uri,) in connection.execute("SELECT uri FROM effects").fetchall()]
    assert sorted(effects) == sorted(
        one.base + name for one in many.sources.values() for name in one.contents
    )


async def test_a_database_that_is_away_does_not_block_the_others(
    many: Many, tmp_path: Path
) -> None:
    await many.start(2)
    away = f'handler = "{__name__}:Counting"\npostgresql = "host={tmp_path} user=nobody"'
    fleet, reloader = kept(described(many, away, "s0"))
    mirrored = described(many, 'dest = "{name}"', "s1")
    fleet.add("s1", build(mirrored, mirrored.sources[0], fleet.shared, None))
    async with reloader.sharing(), fleet:
        await until(fleet, lambda all_: all_["s1"].status.level)
        await until(fleet, lambda all_: all_["s0"].phase is Phase.FAILED)
        assert "the state in PostgreSQL" in (fleet.status["s0"].error or "")


async def test_a_wrong_file_changes_nothing(many: Many) -> None:
    await many.start(2)
    fleet, reloader = kept(described(many, 'dest = "{name}"', "s0"))
    async with fleet:
        await until(fleet, lambda all_: all_["s0"].status.level)
        broken = described(many, 'handler = "no_such:handler"\nstate = "{name}"', "s0", "s1")
        with pytest.raises(ConfigurationError, match=r"\[\[source\]\] s0: cannot import"):
            await reloader.apply(broken)
        assert set(fleet.status) == {"s0"}
        assert fleet.status["s0"].phase is Phase.FOLLOWED


async def test_a_handler_that_does_not_return_does_not_block_the_others(
    many: Many,
    hanging: Hanging,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(reloading, "_REMOVE_TIMEOUT", 0.1)
    monkeypatch.setattr(sys.modules[__name__], "HANGING", hanging, raising=False)
    await many.start(2)
    handled = f'handler = "{__name__}:HANGING"\nstate = "{{name}}.rsnotify"'
    fleet, reloader = kept(described(many, handled, "s0"))
    async with fleet, asyncio.timeout(PATIENCE):
        await asyncio.to_thread(hanging.called.wait, PATIENCE)
        await reloader.apply(described(many, 'dest = "{name}"', "s0", "s1"))
        assert "s0 has not ended yet" in caplog.text
        await until(fleet, lambda all_: all_["s1"].status.level)
        await until(fleet, lambda all_: "in use" in (all_["s0"].error or ""))
        hanging.release.set()  # its state is free then, and says that the handler has the files
        await until(fleet, lambda all_: "the copy lacks" in (all_["s0"].error or ""))


async def test_a_file_is_read_again_on_request(many: Many) -> None:
    await many.start(1)
    configuration = described(many, 'dest = "{name}"', "s0")
    _, reloader = kept(configuration)
    loads: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def note() -> FleetConfiguration:
        loop.call_soon_threadsafe(loads.put_nowait, None)
        return configuration

    async with asyncio.timeout(PATIENCE), watching(reloader, note) as one:
        await loads.get()  # it may have changed since it was read
        one.reload()
        await loads.get()


async def test_an_unexpected_error_while_reading_is_reported_and_survived(
    many: Many, caplog: pytest.LogCaptureFixture
) -> None:
    await many.start(1)
    configuration = described(many, 'dest = "{name}"', "s0")
    _, reloader = kept(configuration)
    loop, told = asyncio.get_running_loop(), asyncio.Event()

    def load_badly() -> FleetConfiguration:
        loop.call_soon_threadsafe(told.set)
        raise RuntimeError("a fault of our own")

    async with asyncio.timeout(PATIENCE), watching(reloader, load_badly) as one:
        for _ in range(2):
            one.reload()
            await told.wait()
            told.clear()
    assert "the configuration is unchanged" in caplog.text
