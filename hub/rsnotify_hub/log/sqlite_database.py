"""The SQLite database of the hub: its connections, its tables, and their format."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from rsnotify.errors import ConfigurationError
from rsnotify_hub.log import sqlite_writing as sqlite_log

_SCHEMA = (
    sqlite_log.SCHEMA
    + """
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
)
# Format 2 had no brokers, format 3 no order of topics, format 4 no failing deliveries.
_VERSION = 5
# Format 1 knew neither who had asked for a subscription nor suspended ones, nor whole contents.
_FROM_1 = f"""
{sqlite_log.FROM_1_TO_2}
ALTER TABLE subscription ADD COLUMN suspended INTEGER NOT NULL DEFAULT 0;
ALTER TABLE subscription ADD COLUMN client TEXT NOT NULL DEFAULT '';
"""


def connect(path: Path, connection: type[sqlite3.Connection]) -> sqlite3.Connection:
    """Open a connection in autocommit mode that any one thread at a time may use.

    Raises:
        sqlite3.Error: It cannot be had.
        OSError: Likewise.
    """
    if not path.exists():
        path.touch(mode=0o600)  # it will hold secrets; what stands beside it takes its mode
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


def prepare(database: sqlite3.Connection) -> None:
    """Make the tables, or bring those of an older hub to the present format.

    Raises:
        ConfigurationError: They are those of a newer hub.
        sqlite3.Error: They cannot be made.
    """
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version == _VERSION:
        return  # a hub whose disk is full starts too
    if version not in range(_VERSION):
        raise ConfigurationError(f"the hub's data has format {version}, this hub reads {_VERSION}")
    changes = (_FROM_1 if version == 1 else "") + _SCHEMA
    # In one transaction: a hub that is killed meanwhile begins again.
    database.executescript(f"BEGIN; {changes} PRAGMA user_version = {_VERSION}; COMMIT;")
