"""The outbox for SQLAlchemy, in PostgreSQL and in SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Engine, MetaData, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify_publisher import (
    Forwarder,
    PostgreSQLQueue,
    Publisher,
    SQLAlchemyOutbox,
    SQLAlchemyQueue,
)
from tests.publisher.helpers import BASE, eventually, quick_publisher
from tests.publisher.published import recorded


class Base(DeclarativeBase):
    pass


class Record(Base):
    __tablename__ = "records"
    name: Mapped[str] = mapped_column(primary_key=True)
    body: Mapped[str]


OUTBOX = SQLAlchemyOutbox(Base.metadata)


@pytest.fixture
def on_postgresql(postgresql: str) -> str:
    return postgresql.replace("postgresql:", "postgresql+psycopg:")


@pytest.fixture(params=["PostgreSQL", "SQLite"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    url = f"sqlite:///{tmp_path}/source.sqlite"
    if request.param == "PostgreSQL":
        url = request.getfixturevalue("on_postgresql")
    engine = create_engine(url, poolclass=NullPool)
    Base.metadata.create_all(engine)
    return engine


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    with quick_publisher(tmp_path / "state") as publisher:
        yield publisher


def reported(publisher: Publisher) -> list[str]:
    return [f"{one.change} {one.uri.removeprefix(BASE)}" for one in recorded(publisher)]


def test_only_committed_changes_are_forwarded(engine: Engine, publisher: Publisher):
    forwarder = Forwarder(publisher, SQLAlchemyQueue(engine, OUTBOX))
    with Session(engine) as session:
        session.add(Record(name="a", body="1"))
        OUTBOX.created(session, BASE + "a", length=1)
        assert not session.new, "the data is written before the news of it"
        session.commit()
        OUTBOX.updated(session, BASE + "a", length=2)
        session.rollback()
    with engine.begin() as connection:
        OUTBOX.deleted(connection, BASE + "a")
    assert forwarder.forward() == 2
    assert forwarder.forward() == 0
    assert reported(publisher) == ["created a", "deleted a"]


def test_an_unpublishable_row_is_kept(engine: Engine, publisher: Publisher):
    with engine.begin() as connection:
        connection.execute(OUTBOX.table.insert(), [{"entry": "no JSON"}])
        OUTBOX.updated(connection, BASE + "a")
    forwarder = Forwarder(publisher, SQLAlchemyQueue(engine, OUTBOX))
    assert (forwarder.forward(), forwarder.forward()) == (2, 0)
    assert reported(publisher) == ["updated a"]
    with engine.begin() as connection:
        ((_, entry, refused),) = connection.execute(OUTBOX.table.select()).all()
    assert entry == "no JSON"
    assert refused


def test_a_forwarder_polls_while_it_runs_and_ends_at_once(engine: Engine, publisher: Publisher):
    with Forwarder(publisher, SQLAlchemyQueue(engine, OUTBOX), poll=3600):
        with engine.begin() as connection:
            OUTBOX.updated(connection, BASE + "a")
        eventually(lambda: reported(publisher) == ["updated a"])


def test_a_forwarder_creates_the_state_folder(engine: Engine, tmp_path: Path):
    with engine.begin() as connection:
        OUTBOX.updated(connection, BASE + "a")
    publisher = quick_publisher(tmp_path / "new" / "state")
    forwarder = Forwarder(publisher, SQLAlchemyQueue(engine, OUTBOX))
    with closing(publisher):
        assert forwarder.forward() == 1
        assert reported(publisher) == ["updated a"]


def test_a_forwarder_reports_an_unusable_state_folder(tmp_path: Path):
    (tmp_path / "file").write_text("")
    queue = SQLAlchemyQueue(create_engine("sqlite://"), OUTBOX)
    for folder in (tmp_path / "file", tmp_path / "file" / "state"):
        with pytest.raises(
            StorageError,
            match=r"outbox\.lock: (a file with this name|a part of its path)",
        ):
            Forwarder(quick_publisher(folder), queue).forward()


def test_the_postgresql_queue_is_notified_at_once(
    on_postgresql: str, postgresql: str, publisher: Publisher
):
    engine = create_engine(on_postgresql, poolclass=NullPool)
    Base.metadata.create_all(engine)
    with Forwarder(publisher, PostgreSQLQueue(postgresql), poll=3600):
        for count in range(1, 4):
            with engine.begin() as connection:
                OUTBOX.updated(connection, BASE + "a")
            eventually(lambda count=count: len(reported(publisher)) == count)


async def test_changes_are_recorded_in_asyncio(on_postgresql: str, publisher: Publisher):
    asynchronous = create_async_engine(on_postgresql, poolclass=NullPool)
    async with asynchronous.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
        await OUTBOX.aupdated(connection, BASE + "a")
    async with AsyncSession(asynchronous) as session:
        session.add(Record(name="b", body="1"))
        await OUTBOX.acreated(session, BASE + "b")
        await session.commit()
    engine = create_engine(on_postgresql, poolclass=NullPool)
    Forwarder(publisher, SQLAlchemyQueue(engine, OUTBOX)).forward()
    assert reported(publisher) == ["updated a", "created b"]


def test_nothing_is_recorded_in_autocommit_mode(engine: Engine):
    alone = engine.execution_options(isolation_level="AUTOCOMMIT")
    with (
        alone.connect() as connection,
        pytest.raises(ConfigurationError, match="begin a transaction"),
    ):
        OUTBOX.updated(connection, BASE + "a")


def test_an_unavailable_database_is_reported_without_the_statement(publisher: Publisher):
    engine = create_engine("sqlite:////nowhere/source.sqlite", poolclass=NullPool)
    with pytest.raises(StorageError, match=r"^the outbox rsnotify_outbox: it cannot be opened"):
        Forwarder(publisher, SQLAlchemyQueue(engine, OUTBOX)).forward()


def test_the_name_of_the_table_is_checked():
    with pytest.raises(ConfigurationError):
        SQLAlchemyOutbox(MetaData(), "a b")
