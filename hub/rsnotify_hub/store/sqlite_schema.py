"""The hub's SQLite database: its tables, and migrations from earlier formats."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from rsnotify.runtime.state_folders import later_version

_SCHEMA = """
CREATE TABLE IF NOT EXISTS topic (
    id INTEGER PRIMARY KEY,
    uri TEXT NOT NULL UNIQUE,
    position INTEGER NOT NULL,
    through INTEGER NOT NULL,
    received INTEGER NOT NULL,
    kept INTEGER NOT NULL,
    size INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS topic_received ON topic (received DESC, uri);
-- AUTOINCREMENT: a position must not be reused after its fragment was deleted.
CREATE TABLE IF NOT EXISTS fragment (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    topic INTEGER NOT NULL REFERENCES topic,
    digest BLOB NOT NULL,
    begins INTEGER NOT NULL,
    from_ INTEGER,
    until INTEGER NOT NULL,
    received INTEGER NOT NULL,
    heartbeat INTEGER NOT NULL,
    whole INTEGER NOT NULL DEFAULT 0,
    content_type TEXT NOT NULL,
    body BLOB NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS fragment_digest ON fragment (topic, digest);
-- Both contain the position, because every SQLite index contains the row's id.
CREATE INDEX IF NOT EXISTS fragment_topic ON fragment (topic);
CREATE INDEX IF NOT EXISTS fragment_until ON fragment (topic, until);
CREATE INDEX IF NOT EXISTS fragment_whole ON fragment (topic) WHERE whole;
CREATE TABLE IF NOT EXISTS subscription (
    topic TEXT NOT NULL,
    callback TEXT NOT NULL,
    secret TEXT,
    expires INTEGER NOT NULL,
    position INTEGER NOT NULL,
    suspended INTEGER NOT NULL DEFAULT 0,
    client TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (topic, callback)
);
CREATE TABLE IF NOT EXISTS bridged (
    broker TEXT NOT NULL,
    topic TEXT NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (broker, topic)
);
CREATE TABLE IF NOT EXISTS trouble (
    topic TEXT NOT NULL,
    callback TEXT NOT NULL,
    state BLOB,
    PRIMARY KEY (topic, callback)
);
CREATE TABLE IF NOT EXISTS checked (id INTEGER PRIMARY KEY CHECK (id = 1), times INTEGER);
"""
# Format 3 added brokers, format 4 the order of topics, and format 5 failure states.
_VERSION = 5
# Format 2 added clients of subscriptions, suspended subscriptions and whole contents.
_MIGRATION_FROM_1 = """
ALTER TABLE fragment ADD COLUMN whole INTEGER NOT NULL DEFAULT 0;
ALTER TABLE subscription ADD COLUMN suspended INTEGER NOT NULL DEFAULT 0;
ALTER TABLE subscription ADD COLUMN client TEXT NOT NULL DEFAULT '';
"""


def connect(path: Path, connection: type[sqlite3.Connection]) -> sqlite3.Connection:
    """Return a connection in autocommit mode that any thread may use, one thread at a time."""
    if not path.exists():
        path.touch(mode=0o600)  # contains secrets; SQLite's other files get the same mode
    database = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, timeout=10, factory=connection
    )
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
    except BaseException:
        database.close()
        raise
    return database


def prepare(database: sqlite3.Connection, path: Path) -> None:
    """Create the tables, or migrate a database of an older version."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version == _VERSION:
        return  # without writing, so that a hub starts even if its disk is full
    if version not in range(_VERSION):
        raise later_version(path)
    changes = (_MIGRATION_FROM_1 if version == 1 else "") + _SCHEMA
    # One transaction: if the hub is killed during the migration, the next start repeats it.
    database.executescript(f"BEGIN; {changes} PRAGMA user_version = {_VERSION}; COMMIT;")
