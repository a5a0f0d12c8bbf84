"""The schema of the journal's database: its tables, and migrations from earlier versions."""

from __future__ import annotations

import sqlite3

from msgspec import json

from rsnotify.format.datetimes import from_microseconds
from rsnotify.format.hashes import SetSum
from rsnotify.format.model import Resource
from rsnotify.format.uris import normalize

VERSION = 8
#: Size of a page in bytes. A page contains about ten resources. In a large set, the resources that
#: change are far apart, so each change writes a separate page, twice.
PAGE_SIZE = 2048
_VOLUMES = """
CREATE TABLE volumes (             -- see `FinishedDocument`
    kind TEXT NOT NULL,
    begins INTEGER NOT NULL,
    ends INTEGER NOT NULL,
    archived INTEGER NOT NULL,     -- whether it is in the archive of its kind
    entries INTEGER NOT NULL,
    size INTEGER NOT NULL,
    files TEXT NOT NULL,           -- a JSON array of names
    PRIMARY KEY (kind, begins)
) WITHOUT ROWID;
CREATE TABLE discarded (file TEXT PRIMARY KEY, at INTEGER NOT NULL) WITHOUT ROWID;
"""
_NOTICES = """
CREATE TABLE notices (             -- notices of documents, which begin at the first row
    at INTEGER PRIMARY KEY,
    entry BLOB NOT NULL
);
CREATE TABLE told (hub TEXT PRIMARY KEY, through INTEGER NOT NULL);  -- the hubs' cursors in notices
CREATE TABLE versions (document TEXT PRIMARY KEY, version TEXT NOT NULL) WITHOUT ROWID;
"""
_POSITIONS = """
CREATE TABLE IF NOT EXISTS positions (  -- up to which other logs were read
    reader TEXT PRIMARY KEY,
    position TEXT NOT NULL
) WITHOUT ROWID;
"""
# A resource is in the set only once, regardless of the spelling of its URI.
_SPELLINGS = """
CREATE TABLE IF NOT EXISTS spellings (  -- the resources whose URI is not in normal form
    normal TEXT PRIMARY KEY,
    uri TEXT NOT NULL
) WITHOUT ROWID;
"""
TABLES = f"""
CREATE TABLE state (
    base_url TEXT NOT NULL,        -- the URL below which documents are served
    applied INTEGER NOT NULL,      -- datetime of the last change applied to `resources` and `sum`
    promised INTEGER NOT NULL,     -- no later change gets a datetime at or before this
    pruned INTEGER NOT NULL,       -- datetime of the last change no longer in `changes`, or of the
                                   -- baseline
    closed INTEGER NOT NULL,       -- where the open Change List begins
    tracked INTEGER NOT NULL,      -- whether `resources` has the set; else a callback returns it
    sum TEXT                       -- the `SetSum` of `resources`; NULL if not tracked
);
CREATE TABLE changes (
    at INTEGER PRIMARY KEY,
    entry BLOB NOT NULL,           -- as in `resources`
    uri TEXT,
    validator TEXT
);
CREATE TABLE resources (
    uri TEXT PRIMARY KEY,
    at INTEGER NOT NULL,
    entry BLOB NOT NULL,           -- the resource without its URI; but see `migrate`
    validator TEXT
) WITHOUT ROWID;
CREATE TABLE cursors (hub TEXT PRIMARY KEY, through INTEGER NOT NULL);
{_VOLUMES}
{_NOTICES}
{_POSITIONS}
{_SPELLINGS}
"""


def migrate(database: sqlite3.Connection, version: int) -> None:
    """Migrate a journal from an earlier version. Requires a transaction.

    Version 4 also stored the URI of a resource in its entry. That URI is ignored when the entry is
    read, and the next change to the resource removes it. The page size stays the same.
    """
    if version < 2:
        _add_volumes(database)
    if version < 3:
        _add_notices(database)
    if version < 4:
        _add_sum(database)
    if version < 6:
        database.execute(_POSITIONS)
    if version < 7:
        database.execute("ALTER TABLE state RENAME COLUMN last_change TO applied")
        database.execute("ALTER TABLE changes ADD COLUMN uri TEXT")
        database.execute("ALTER TABLE changes ADD COLUMN validator TEXT")
        database.execute("UPDATE changes SET uri = json_extract(CAST(entry AS TEXT), '$.uri')")
    if version < 8:
        _add_spellings(database)
    database.execute(f"PRAGMA user_version={VERSION}")


def _add_notices(database: sqlite3.Connection) -> None:
    for statement in _NOTICES.split(";"):
        database.execute(statement)
    database.execute("INSERT INTO notices SELECT max(last_change, promised), '' FROM state")


def _add_sum(database: sqlite3.Connection) -> None:
    database.execute("ALTER TABLE state ADD COLUMN sum TEXT")
    total = SetSum()
    rows = database.execute("SELECT uri, entry FROM resources")
    total.add((uri, json.decode(entry, type=Resource).hash) for uri, entry in rows)
    database.execute("UPDATE state SET sum = ? WHERE tracked", (str(total),))


def _add_volumes(database: sqlite3.Connection) -> None:
    execute = database.execute
    for statement in _VOLUMES.split(";"):
        execute(statement)
    execute("ALTER TABLE state ADD COLUMN closed INTEGER NOT NULL DEFAULT 0")
    execute("ALTER TABLE state ADD COLUMN tracked INTEGER NOT NULL DEFAULT TRUE")
    newest = "(SELECT max(until_at) FROM closed_lists)"
    execute(f"UPDATE state SET closed = coalesce({newest}, pruned)")
    for begin, end in execute("SELECT from_at, until_at FROM closed_lists").fetchall():
        # Their sizes were not recorded, so a size limit in `Options.keep` counts only new lists.
        row = ("changelist", begin, end, True, 0, 0, json.encode([_name(begin, end)]).decode())
        execute("INSERT INTO volumes VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    execute("DROP TABLE closed_lists")


def _add_spellings(database: sqlite3.Connection) -> None:
    """Add the table of spellings. If resources share a normal form, keep only the latest."""
    database.execute(_SPELLINGS)
    spelled: dict[str, list[tuple[int, str, bytes]]] = {}
    for at, uri, entry in database.execute("SELECT at, uri, entry FROM resources"):
        if (normal := normalize(uri)) != uri:
            spelled.setdefault(normal, []).append((at, uri, entry))
    dropped: list[tuple[int, str, bytes]] = []
    for normal, rows in spelled.items():
        rows += database.execute("SELECT at, uri, entry FROM resources WHERE uri = ?", (normal,))
        *others, (_, uri, _) = sorted(rows)
        dropped += others
        if uri != normal:
            database.execute("INSERT INTO spellings VALUES (?, ?)", (normal, uri))
    if not dropped:
        return
    database.executemany("DELETE FROM resources WHERE uri = ?", [(uri,) for _, uri, _ in dropped])
    (stored,) = database.execute("SELECT sum FROM state").fetchone()
    if stored is not None:
        total = SetSum.parse(stored)
        total.remove((uri, json.decode(entry, type=Resource).hash) for _, uri, entry in dropped)
        database.execute("UPDATE state SET sum = ?", (str(total),))


def _name(begin: int, end: int) -> str:
    """Return the file name of a closed Change List in version 1."""
    times = [from_microseconds(at).strftime("%Y%m%dT%H%M%S%fZ") for at in (begin, end)]
    return f"resourcesync/changelist-{times[0]}-{times[1]}.xml"
