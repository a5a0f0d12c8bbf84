"""A forwarder that is suspended after reading a batch, and resumed after others forwarded."""

from __future__ import annotations

import logging
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Engine, MetaData, create_engine
from sqlalchemy.pool import NullPool

from rsnotify.format.model import ChangeType
from rsnotify_publisher import Forwarder, Outbox, PostgreSQLQueue, SQLAlchemyOutbox, SQLAlchemyQueue
from rsnotify_publisher.outbox import forwarder
from tests.publisher.helpers import BASE, eventually, quick_publisher
from tests.publisher.published import recorded
from tests.suspending import suspended

A = BASE + "a"
# It is suspended after it has read its batch, before it records it.
FORWARD = """
from rsnotify.errors import StorageError
from rsnotify_publisher import Publisher
from rsnotify_publisher.outbox import Forwarder

class Suspending:
    def __init__(self, queue):
        self._queue = queue

    def forward(self, limit, take):
        return self._queue.forward(limit, lambda waiting: (suspend(), take(waiting))[1])

    def __getattr__(self, name):
        return getattr(self._queue, name)

def run(queue):
    with Publisher(sys.argv[1], "http://source.example/data/") as publisher:
        try:
            Forwarder(publisher, Suspending(queue)).forward()
        except StorageError:
            pass  # its session was closed meanwhile
"""
BY_POSTGRESQL = """
from rsnotify_publisher.outbox.postgresql import PostgreSQLQueue
run(PostgreSQLQueue(sys.argv[2] + "?application_name=suspended"))
"""
BY_SQLALCHEMY = """
from sqlalchemy import MetaData, create_engine
from sqlalchemy.pool import NullPool
from rsnotify_publisher.outbox.sqlalchemy import SQLAlchemyOutbox, SQLAlchemyQueue
run(SQLAlchemyQueue(create_engine(sys.argv[2], poolclass=NullPool), SQLAlchemyOutbox(MetaData())))
"""


def test_no_older_change_follows_a_newer_one_in_postgresql(postgresql: str, tmp_path: Path):
    outbox = Outbox()
    with psycopg.connect(postgresql) as connection:
        connection.execute(outbox.ddl.encode())
        outbox.created(connection, A)
    publisher = quick_publisher(tmp_path)
    other = Forwarder(publisher, PostgreSQLQueue(postgresql), poll=0.1)
    program = FORWARD + BY_POSTGRESQL
    with publisher, suspended(program, str(tmp_path), postgresql) as first:
        with psycopg.connect(postgresql) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'suspended'"
            )
            outbox.deleted(connection, A)
        with other:
            # It takes over now, or once the first has ended.
            other.forward()
            assert first.resume() == 0
            eventually(lambda: recorded(publisher)[-1].change is ChangeType.DELETED)
            eventually(lambda: is_empty(postgresql))
    assert recorded(publisher)[-1].change is ChangeType.DELETED


def is_empty(conninfo: str) -> bool:
    with psycopg.connect(conninfo) as connection:
        return connection.execute("SELECT count(*) FROM rsnotify_outbox").fetchone() == (0,)


def in_sqlite(folder: Path) -> tuple[Engine, SQLAlchemyOutbox]:
    """Create a database with a change in its outbox."""
    engine = create_engine(f"sqlite:///{folder}/source.sqlite", poolclass=NullPool)
    metadata = MetaData()
    outbox = SQLAlchemyOutbox(metadata)
    metadata.create_all(engine)
    with engine.begin() as connection:
        outbox.created(connection, A)
    return engine, outbox


def test_no_older_change_follows_a_newer_one_in_sqlite(tmp_path: Path):
    engine, outbox = in_sqlite(tmp_path)
    publisher = quick_publisher(tmp_path / "state")
    other = Forwarder(publisher, SQLAlchemyQueue(engine, outbox), poll=0.1)
    program = FORWARD + BY_SQLALCHEMY
    with publisher, suspended(program, str(tmp_path / "state"), str(engine.url)) as first:
        with engine.begin() as connection:
            outbox.deleted(connection, A)
        other.forward()
        assert first.resume() == 0
        other.forward()
        assert recorded(publisher)[-1].change is ChangeType.DELETED


def test_a_forwarder_warns_while_it_waits_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(forwarder, "_WARNING_INTERVAL", 0.01)
    engine, outbox = in_sqlite(tmp_path)
    arguments = (str(tmp_path / "state"), str(engine.url))
    publisher = quick_publisher(tmp_path / "state")
    waiting = Forwarder(publisher, SQLAlchemyQueue(engine, outbox), poll=0.01)
    with suspended(FORWARD + BY_SQLALCHEMY, *arguments), publisher, waiting:
        with caplog.at_level(logging.WARNING):
            eventually(lambda: "another process has held" in caplog.text)
        assert "outbox.lock" in caplog.text
    # The suspended one has been killed.
    with publisher:
        assert waiting.forward() == 1
