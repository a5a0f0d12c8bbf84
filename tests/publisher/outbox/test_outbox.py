"""Changes recorded in the Source's own transactions, in a real PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import psycopg
import pytest

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.format.model import ChangeType, Link, Rel, Resource
from rsnotify_publisher import Forwarder, Outbox, PostgreSQLQueue
from rsnotify_publisher.outbox import OutboxLine
from tests.postgresql import PostgreSQL
from tests.publisher.helpers import BASE, PATIENCE, eventually, quick_publisher
from tests.publisher.published import recorded

OUTBOX = Outbox()
A, B = BASE + "a", BASE + "b"


class Source:
    def __init__(self, conninfo: str, folder: Path) -> None:
        self.conninfo = conninfo
        self.queue = PostgreSQLQueue(conninfo)
        self.publisher = quick_publisher(folder)
        self.forwarder = Forwarder(self.publisher, self.queue)
        with self.connect() as connection:
            connection.execute(OUTBOX.ddl.encode())
            connection.execute("CREATE TABLE records (name text PRIMARY KEY, version integer)")
            connection.execute("INSERT INTO records VALUES ('a', 0), ('b', 0)")

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.conninfo)

    def reported(self) -> list[tuple[str, int | None]]:
        return [(one.uri.removeprefix(BASE), one.length) for one in recorded(self.publisher)]

    def waiting(self) -> list[tuple[int, str | None]]:
        with self.connect() as connection:
            query = f"SELECT id, refused FROM {OUTBOX.table} ORDER BY id"
            return connection.execute(query.encode()).fetchall()


@pytest.fixture
def source(postgresql: str, tmp_path: Path) -> Iterator[Source]:
    source = Source(postgresql, tmp_path)
    with source.publisher:
        yield source
    source.queue.close()


def rewrite(connection: psycopg.Connection, name: str) -> int:
    """Change a record, and record the change in the caller's transaction. Return its version."""
    query = "UPDATE records SET version = version + 1 WHERE name = %s RETURNING version"
    row = connection.execute(query, (name,)).fetchone()
    OUTBOX.updated(connection, BASE + name, length=row[0])
    return int(row[0])


def test_a_transaction_that_commits_late_is_not_skipped(source: Source):
    with source.connect() as slow, source.connect() as quick:
        rewrite(slow, "a")
        rewrite(quick, "b")
        quick.commit()
        assert source.forwarder.forward() == 1
        assert source.reported() == [("b", 1)]
        slow.commit()
        assert source.forwarder.forward() == 1
    assert source.reported() == [("b", 1), ("a", 1)]
    assert source.waiting() == []


def test_changes_that_are_rolled_back_are_never_published(source: Source):
    with source.connect() as connection:
        rewrite(connection, "a")
        connection.rollback()
        rewrite(connection, "b")
    source.forwarder.forward()
    assert source.reported() == [("b", 1)]


def test_changes_of_one_resource_keep_the_order_of_their_commits(source: Source):
    with source.connect() as first, source.connect() as second:
        second.execute("SELECT 1")  # the transaction that began first commits last
        rewrite(first, "a")
        waits = threading.Thread(target=lambda: (rewrite(second, "a"), second.commit()))
        waits.start()
        with source.connect() as outside:
            query = "SELECT count(*) FROM pg_locks WHERE NOT granted AND database IS NULL"
            eventually(lambda: outside.execute(query).fetchone() != (0,))
        first.commit()
        waits.join(PATIENCE)
    source.forwarder.forward()
    assert source.reported() == [("a", 1), ("a", 2)]


@pytest.mark.parametrize("seed", range(2))
def test_interleaved_transactions_are_published_once_and_in_order(source: Source, seed: int):
    random = Random(seed)
    connections = [source.connect() for _ in range(4)]
    with connections[0] as connection:
        for number, _ in enumerate(connections):
            connection.execute("INSERT INTO records VALUES (%s, 0)", (f"of-{number}",))
    connections[0] = source.connect()
    open_: dict[int, list[tuple[str, int]]] = {}
    committed: list[list[tuple[str, int]]] = []
    for _ in range(60):
        number = random.randrange(len(connections))
        match random.choice(["change", "change", "commit", "roll back", "forward"]):
            case "change":  # each of a separate record, since a wait would block this thread
                version = rewrite(connections[number], f"of-{number}")
                open_.setdefault(number, []).append((f"of-{number}", version))
            case "commit":
                connections[number].commit()
                committed.append(open_.pop(number, []))
            case "roll back":
                connections[number].rollback()
                open_.pop(number, None)
            case "forward":
                source.forwarder.forward()
                reported = source.reported()
                assert sorted(reported) == sorted(one for group in committed for one in group)
    for connection in connections:
        connection.rollback()
        connection.close()
    source.forwarder.forward()
    reported = source.reported()
    assert sorted(reported) == sorted(one for group in committed for one in group)
    for number in range(4):
        versions = [version for name, version in reported if name == f"of-{number}" and version]
        assert versions == sorted(versions)


def test_all_metadata_of_a_change_is_forwarded(source: Source):
    link = Link(Rel.DUPLICATE, "https://mirror.example/a", pri=1)
    with source.connect() as connection:
        OUTBOX.created(connection, A, length=3, type="text/plain", hash="md5:ab", links=[link])
        OUTBOX.deleted(connection, A)
        OUTBOX.record(connection, [Resource(B, change=ChangeType.UPDATED)] * 3)
    assert source.forwarder.forward() == 5
    created, deleted, *updated = recorded(source.publisher)
    reported = Resource(A, change=ChangeType.CREATED, length=3, type="text/plain", hash="md5:ab")
    assert (created.length, created.type, created.hash) == (
        reported.length,
        reported.type,
        reported.hash,
    )
    assert created.links == (link,)
    assert (deleted.uri, deleted.change) == (A, ChangeType.DELETED)
    assert [one.uri for one in updated] == [B] * 3


def test_the_hash_and_length_of_given_content_are_recorded(source: Source):
    with source.connect() as connection:
        OUTBOX.created(connection, A, content=b"one", type="text/plain")
        OUTBOX.updated(connection, A, content=b"three")
    source.forwarder.forward()
    expected = [Resource.of(A, body) for body in (b"one", b"three")]
    assert [(one.hash, one.length) for one in recorded(source.publisher)] == [
        (one.hash, one.length) for one in expected
    ]
    with source.connect() as connection, pytest.raises(ConfigurationError, match="does not match"):
        OUTBOX.updated(connection, A, content=b"one", length=4)


async def test_changes_are_recorded_in_asyncio(source: Source):
    async with await psycopg.AsyncConnection.connect(source.conninfo) as connection:
        await OUTBOX.acreated(connection, A, content=b"1")
        await OUTBOX.aupdated(connection, A, content=b"22")
        await OUTBOX.adeleted(connection, A)
    source.forwarder.forward()
    assert [str(one.change) for one in recorded(source.publisher)] == [
        "created",
        "updated",
        "deleted",
    ]


def test_a_crash_between_record_and_delete_records_again(source: Source):
    def take(waiting: Sequence[OutboxLine]) -> dict[int, str]:
        source.publisher.updated(A, length=1)
        raise ZeroDivisionError

    with source.connect() as connection:
        rewrite(connection, "a")
    with pytest.raises(ZeroDivisionError):
        source.queue.forward(10, take)
    assert len(source.waiting()) == 1
    source.forwarder.forward()
    assert source.reported() == [("a", 1), ("a", 1)]
    assert source.waiting() == []


def test_only_one_queue_forwards_at_a_time(source: Source):
    other = PostgreSQLQueue(source.conninfo)

    def take(waiting: Sequence[OutboxLine]) -> dict[int, str]:
        assert other.forward(10, lambda _: {}) == 0
        return {}

    with source.connect() as connection:
        rewrite(connection, "a")
    assert source.queue.forward(10, take) == 1
    other.close()
    source.queue.close()


@pytest.mark.parametrize("entry", ["no JSON", "{}", '{"uri": "no uri", "change": "updated"}',
                                   '{"uri": "http://a.example/", "change": "bent"}',
                                   '{"uri": "http://a.example/"}'])  # fmt: skip
def test_an_unpublishable_row_is_kept_with_the_reason(
    source: Source, entry: str, caplog: pytest.LogCaptureFixture
):
    with source.connect() as connection:
        insert = f"INSERT INTO {OUTBOX.table} (entry) VALUES (%s)"
        connection.execute(insert.encode(), (entry,))
        rewrite(connection, "a")
    assert source.forwarder.forward() == 2
    assert source.forwarder.forward() == 0
    assert source.reported() == [("a", 1)]
    ((number, reason),) = source.waiting()
    assert reason
    assert f"line {number} of the outbox cannot be published" in caplog.text


def test_rows_from_triggers_are_published(source: Source):
    trigger = f"""
        CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO rsnotify_outbox (entry) VALUES (json_build_object(
                'uri', '{BASE}' || NEW.name, 'change', 'updated', 'length', NEW.version));
            RETURN NULL;
        END $$;
        CREATE TRIGGER tell AFTER UPDATE ON records FOR EACH ROW EXECUTE FUNCTION tell()"""
    with source.connect() as connection:
        connection.execute(trigger.encode())
        connection.execute("UPDATE records SET version = 7 WHERE name = 'a'")
    source.forwarder.forward()
    assert source.reported() == [("a", 7)]


def test_nothing_is_recorded_in_autocommit_mode(source: Source):
    with psycopg.connect(source.conninfo, autocommit=True) as connection:
        with pytest.raises(ConfigurationError, match="begin a transaction"):
            OUTBOX.updated(connection, A)
        with connection.transaction():
            OUTBOX.updated(connection, A)
    assert len(source.waiting()) == 1


async def test_nothing_is_recorded_in_autocommit_mode_in_asyncio(source: Source):
    async with await psycopg.AsyncConnection.connect(source.conninfo, autocommit=True) as session:
        with pytest.raises(ConfigurationError, match="begin a transaction"):
            await OUTBOX.aupdated(session, A)
    assert source.waiting() == []


def test_an_unpublishable_change_is_refused_when_recorded(source: Source):
    changes = [Resource(uri, change=ChangeType.UPDATED) for uri in (A, "relative")]
    with source.connect() as connection, pytest.raises(ConfigurationError, match="absolute URI"):
        OUTBOX.record(connection, changes)
    assert source.waiting() == []


@pytest.mark.parametrize("name", ["", "a.b", 'a"b', "Outbox", "ä", "x" * 51])
def test_a_name_that_needs_quotes_is_refused(name: str):
    with pytest.raises(ConfigurationError):
        Outbox(name)


# While it runs


def test_a_forwarder_is_notified_at_once_and_ends_at_once(source: Source):
    with Forwarder(source.publisher, source.queue, poll=3600) as forwarder:
        forwarder.start()
        for number in range(5):
            with source.connect() as connection:
                rewrite(connection, "a")
            eventually(lambda number=number: len(source.reported()) == number + 1)
    assert source.waiting() == []


def test_another_forwarder_takes_over(source: Source):
    others = [Forwarder(source.publisher, PostgreSQLQueue(source.conninfo)) for _ in range(2)]
    with source.connect() as connection, others[0]:
        with others[1]:
            rewrite(connection, "a")
            connection.commit()
            eventually(lambda: source.reported() == [("a", 1)])
        rewrite(connection, "a")
        connection.commit()
        eventually(lambda: source.reported() == [("a", 1), ("a", 2)])


def test_forwarding_continues_after_a_crash_of_the_database(
    source: Source, postgresql_server: PostgreSQL, caplog: pytest.LogCaptureFixture
):
    with Forwarder(source.publisher, source.queue):
        with source.connect() as connection:
            rewrite(connection, "a")
        eventually(lambda: source.reported() == [("a", 1)])
        eventually(lambda: source.waiting() == [])  # or it is published again after the crash
        postgresql_server.crash()
        eventually(lambda: "changes wait in the outbox" in caplog.text)
        with pytest.raises(StorageError):
            Forwarder(source.publisher, PostgreSQLQueue(source.conninfo)).forward()
        postgresql_server.start()
        with source.connect() as connection:
            rewrite(connection, "a")
        eventually(lambda: source.reported() == [("a", 1), ("a", 2)])
