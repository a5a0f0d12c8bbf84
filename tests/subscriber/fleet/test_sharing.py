"""Several processes follow the Sources of one file, whose states are in one PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import psycopg
import pytest

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify_subscriber import Fleet, PostgreSQLState
from rsnotify_subscriber.commands import follow_status
from rsnotify_subscriber.fleet import Phase, leases, reloading
from rsnotify_subscriber.fleet.building import build
from rsnotify_subscriber.fleet.configuration import FleetConfiguration, load
from rsnotify_subscriber.fleet.lease_tables import PostgreSQLLeases
from rsnotify_subscriber.fleet.leases import FleetShare
from rsnotify_subscriber.fleet.reloading import FleetReloader
from rsnotify_subscriber.storage.destination_state import DestinationState
from rsnotify_subscriber.storage.postgresql import LeasedState, LeaseLost, StatePool
from tests import waiting
from tests.ports import free_port
from tests.subscriber import aggregator
from tests.subscriber.fleet.conftest import Many
from tests.subscriber.processes import run, running

EXPIRE = "UPDATE rsnotify_fleet.members SET expires = clock_timestamp() - interval '1 s'"


def execute(database: str, statement: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(statement.encode())


def rows(database: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database, autocommit=True) as connection:
        return connection.execute(query.encode()).fetchall()


class Member:
    """A process that has a lease of one Source, as far as the database can tell."""

    def __init__(self, database: str, name: str) -> None:
        self.table = PostgreSQLLeases(database, name, f"{name} sessions")
        self.share = FleetShare(self.table)
        self.share.set_listed({"followed"})
        self.pool = StatePool(database, f"{name} sessions")
        self.state = LeasedState(self.pool, "followed", self.share)

    def close(self) -> None:
        self.table.close()
        self.pool.close()


@pytest.fixture
def member(postgresql: str) -> Any:
    with closing(Member(postgresql, "first")) as one:
        one.share.beat()
        yield one


@pytest.fixture
def other(postgresql: str) -> Any:
    with closing(Member(postgresql, "second")) as one:
        yield one


def insert(connection: psycopg.Connection) -> None:
    connection.execute("INSERT INTO effects VALUES ('a', now(), '')")


@pytest.mark.parametrize(
    "write",
    [
        lambda state: state.store_intent(["b"], ()),
        lambda state: state.begin_baseline(),
        lambda state: state.transactions.apply_within(insert),
    ],
    ids=["an intent", "a fact", "an effect"],
)
def test_a_process_whose_lease_was_taken_writes_nothing(
    member: Member, other: Member, postgresql: str, write: Callable[[DestinationState], None]
) -> None:
    aggregator.prepare(postgresql)
    with closing(DestinationState(member.state)) as state:
        state.store_intent(["a"], ())
        execute(postgresql, "DELETE FROM rsnotify_fleet.leases")
        other.share.beat()
        assert other.share.fence_of("followed") is not None
        member.share._valid_until = float("inf")  # it knows nothing of that
        with pytest.raises(LeaseLost, match="another may follow the Source"):
            write(state)
    with closing(DestinationState(other.state)) as state:
        assert state.unknown_uris() == ["a"]
    assert rows(postgresql, "SELECT FROM effects") == []


def test_an_open_transaction_of_a_silent_process_ends_before_its_lease_is_taken(
    member: Member, other: Member, postgresql: str, quick: None
) -> None:
    aggregator.prepare(postgresql)
    with closing(DestinationState(member.state)) as state:
        state.transactions.apply_within(insert)
        execute(postgresql, f"{EXPIRE} WHERE name = 'first'")
        while other.share.fence_of("followed") is None:
            other.share.beat()
        with pytest.raises(StorageError):
            state.commit((), None)
    assert rows(postgresql, "SELECT FROM effects") == []


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_process_warns_of_effects_that_may_have_come_after_those_of_another(
    member: Member, caplog: pytest.LogCaptureFixture, is_committed: bool
) -> None:
    with closing(DestinationState(member.state)) as state:
        state.store_intent(["https://source.example/a"], ())
        if is_committed:
            state.commit((), None)
        member.share._valid_until = 0.0
    warned = [one.getMessage() for one in caplog.records]
    assert [line.endswith("has for https://source.example/a") for line in warned] == (
        [] if is_committed else [True]
    )


def test_a_process_that_could_not_renew_its_lease_writes_nothing(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(DestinationState(member.state)) as state:
        member.share._valid_until = 0.0
        for write in (state.begin_baseline, partial(state.store_intent, ["a"], ())):
            with pytest.raises(LeaseLost):
                write()
    with pytest.raises(StorageError, match="have expired"):
        member.state.open()


def test_a_single_follower_and_a_fleet_exclude_each_other(member: Member, postgresql: str) -> None:
    single = PostgreSQLState(postgresql, schema="followed")
    with pytest.raises(ConfigurationError, match=r"in use by another follower \(first\)"):
        single.open()
    execute(postgresql, EXPIRE)
    with closing(DestinationState(single)), pytest.raises(LeaseLost):
        member.state.open()
    with closing(DestinationState(member.state)) as state:
        state.begin_baseline()
        assert not any(state.baseline.unlisted(state.latest))


class Peer:
    """A fleet that shares Sources, in a process of its own as far as the database can tell."""

    def __init__(self, configuration: FleetConfiguration) -> None:
        self.fleet = Fleet(configuration.limits)
        make = partial(build, shared=self.fleet.shared, callbacks=None)
        self.reloader = FleetReloader(self.fleet, make, configuration)

    @asynccontextmanager
    async def following(self) -> AsyncIterator[Peer]:
        async with self.reloader.sharing(), self.fleet:
            yield self

    def level(self) -> set[str]:
        return {name for name, one in self.fleet.status.items() if one.status.level}


def described(many: Many, database: str, *names: str, more: str = "") -> Path:
    aggregator.prepare(database)
    sources = [f'[[source]]\nname = "{name}"\nurl = "{many.sources[name].url}"' for name in names]
    file = many.folder / "fleet.toml"
    defaults = (
        f'[defaults]\nhandler = "{aggregator.__name__}:Aggregator"\npostgresql = "{database}"\n'
        f'schema = "of_{{name}}"\npoll = 0.2\n{more}'
    )
    file.write_text("\n".join([defaults, *sources]))
    return file


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reloading, "RENEWAL_INTERVAL", 0.05)
    monkeypatch.setattr(leases, "_REMOVAL_DELAY", 0.0)


def is_right(many: Many, database: str) -> bool:
    copy = {uri: bytes(content) for uri, content in rows(database, "SELECT * FROM copy")}
    return copy == {
        source.base + name: content
        for source in many.sources.values()
        for name, content in source.contents.items()
    }


TWICE = "SELECT uri, at FROM effects GROUP BY uri, at HAVING count(*) > 1"


async def test_sources_move_to_a_new_process_and_back_and_no_change_has_two_effects(
    many: Many, postgresql: str, quick: None
) -> None:
    await many.start(4)
    names = set(many.sources)
    configuration = load(described(many, postgresql, *many.sources))
    async with Peer(configuration).following() as first:
        await waiting.until(lambda: first.level() == names)
        async with Peer(configuration).following() as second:
            await waiting.until(
                lambda: (
                    len(first.level()) == len(second.level()) == 2
                    and first.level() | second.level() == names
                    and set(first.fleet.elsewhere()) == second.level()
                )
            )
            for source in many.sources.values():
                source.put("new", b"new")
            await waiting.until(lambda: is_right(many, postgresql))
        await waiting.until(lambda: first.level() == names and not first.fleet.elsewhere())
    assert rows(postgresql, TWICE) == []
    await waiting.until(lambda: not rows(postgresql, "SELECT FROM rsnotify_fleet.leases"))


async def test_changes_of_the_file_move_leases_too(
    many: Many, postgresql: str, quick: None
) -> None:
    await many.start(3)
    async with Peer(load(described(many, postgresql, "s0", "s1"))).following() as peer:
        await waiting.until(lambda: peer.level() == {"s0", "s1"})
        await peer.reloader.apply(load(described(many, postgresql, "s1", "s2")))
        await waiting.until(lambda: peer.level() == {"s1", "s2"})
        leased = "SELECT source FROM rsnotify_fleet.leases"
        await waiting.until(lambda: sorted(rows(postgresql, leased)) == [("of_s1",), ("of_s2",)])
        changed = described(many, postgresql, "s1", "s2", more='only = ["r0"]\n')
        await peer.reloader.apply(load(changed))
        held = f"SELECT uri FROM copy WHERE uri LIKE '{many.sources['s1'].base}%'"
        await waiting.until(lambda: len(rows(postgresql, held)) == 1)
        wrong = changed.read_text().replace(aggregator.__name__, "no_such")
        changed.write_text(wrong)
        with pytest.raises(ConfigurationError, match="cannot import"):
            await peer.reloader.apply(load(changed))
        await waiting.until(lambda: peer.level() == {"s1", "s2"})


class Fragile(aggregator.Aggregator):
    """A handler that cannot always be made."""

    broken = False

    def __init__(self) -> None:
        super().__init__()
        if self.broken:
            raise RuntimeError("no room")


async def test_a_lost_lease_ends_following_and_a_handler_that_cannot_be_made_is_reported(
    many: Many, postgresql: str, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await many.start(2)
    file = described(many, postgresql, *many.sources)
    file.write_text(
        file.read_text().replace(f"{aggregator.__name__}:Aggregator", f"{__name__}:Fragile")
    )
    async with Peer(load(file)).following() as peer:
        await waiting.until(lambda: peer.level() == {"s0", "s1"})
        monkeypatch.setattr(Fragile, "broken", True)
        execute(postgresql, "DELETE FROM rsnotify_fleet.leases WHERE source = 'of_s0'")
        await waiting.until(lambda: "no room" in (peer.fleet.status["s0"].error or ""))
        assert peer.fleet.status["s0"].phase is Phase.FAILED
        monkeypatch.setattr(Fragile, "broken", False)
        many.sources["s0"].put("new", b"new")
        await waiting.until(lambda: is_right(many, postgresql))
        await waiting.until(lambda: peer.level() == {"s0", "s1"})
    assert rows(postgresql, TWICE) == []


async def test_the_sources_of_a_process_that_is_killed_are_followed_by_another(
    many: Many, postgresql: str
) -> None:
    await many.start(2)
    file = described(many, postgresql, *many.sources)
    command = ("follow", "--config", file, "--quiet", "--status-port")
    port, of_second = free_port(), free_port()
    async with running(*command, port) as first, aiohttp.ClientSession() as session:
        await waiting.until(lambda: follows(session, port, 2, 0))
        async with running(*command, of_second):
            await waiting.until(lambda: follows(session, of_second, 1, 1))
            ((name,),) = rows(
                postgresql,
                f"SELECT name FROM rsnotify_fleet.members WHERE name LIKE '%:{first.pid}'",
            )

            async def is_named() -> bool:
                _, output, _ = await run("follow", "--status", of_second)
                return f"1 Source followed by {name}" in output

            await waiting.until(is_named)
            first.kill()
            await first.wait()
            for source in many.sources.values():
                source.put("new", b"new")
            execute(postgresql, f"{EXPIRE} WHERE name = '{name}'")  # sooner than by itself
            await waiting.until(lambda: follows(session, of_second, 2, 0))
            await waiting.until(lambda: is_right(many, postgresql))
    assert rows(postgresql, TWICE) == []


async def follows(session: aiohttp.ClientSession, port: int, sources: int, elsewhere: int) -> bool:
    """Return whether a process follows so many Sources, all level, and others so many."""
    try:
        async with session.get(f"http://127.0.0.1:{port}/status") as answer:
            status: dict[str, Any] = json.loads(await answer.read())
    except aiohttp.ClientError:
        return False
    level = [one["standing"] == "level" for one in status["sources"]]
    return all(level) and (len(level), len(status["elsewhere"])) == (sources, elsewhere)


async def test_once_follows_what_nobody_does_and_names_the_process_that_follows_the_rest(
    many: Many, postgresql: str, other: Member
) -> None:
    await many.start(2)
    file = described(many, postgresql, *many.sources)
    other.share.set_listed({"of_s0"})
    other.share.beat()
    execute(postgresql, "UPDATE rsnotify_fleet.members SET expires = 'infinity'")
    code, _, errors = await run("follow", "--config", file, "--once")
    assert code == 1
    assert "1 of 2 Sources are not level" in errors
    assert "s0: the schema of_s0 is in use by another follower (second)" in errors
    other.share.leave()
    code, _, _ = await run("follow", "--config", file, "--once")
    assert code == 0
    assert is_right(many, postgresql)


def test_the_status_names_the_processes_that_follow_the_other_sources() -> None:
    assert list(follow_status.others({"a": "x:1", "b": "y:2", "c": "x:1"})) == [
        "2 Sources followed by x:1",
        "1 Source followed by y:2",
    ]


def test_a_lease_given_by_a_clock_that_was_a_day_ahead_ends_in_time(
    member: Member, other: Member, postgresql: str
) -> None:
    other.share.beat()
    other.share._quiet_until = 0.0
    # The first process was killed, and then the clock of the database was set back.
    ahead = "UPDATE rsnotify_fleet.members SET expires = expires + interval '1 day'"
    execute(postgresql, f"{ahead} WHERE name = 'first'")
    other.share.beat()
    assert other.share.fence_of("followed") is not None
