"""A Source whose resources are in a database, not in files.

    python publisher/examples/database.py --count 1000000

The publisher reads the set of resources from the database when it writes a Resource List or a
Resource Dump, and the content of a resource when it needs it. It stores neither, so its memory use
does not grow with the database, as the last line of the output shows.
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from rsnotify import Resource
from rsnotify_publisher import Options, Publisher

BASE = "https://source.example/data/"
PAGE = 1_000


class DatabaseSource:
    """A table of records, each of which is a resource.

    Args:
        path: The SQLite file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._local = threading.local()

    @property
    def _connection(self) -> sqlite3.Connection:
        """This thread's connection. The publisher calls this object from its own threads."""
        if not hasattr(self._local, "connection"):
            self._local.connection = sqlite3.connect(self._path)
        connection: sqlite3.Connection = self._local.connection
        return connection

    def fill(self, count: int) -> None:
        """Create the table, and fill it with `count` records."""
        bodies = (f"record {number}, original version\n" for number in range(1, count + 1))
        with self._connection as connection:
            connection.execute(
                "CREATE TABLE records (id INTEGER PRIMARY KEY, body TEXT, hash TEXT)"
            )
            connection.executemany(
                "INSERT INTO records (body, hash) VALUES (?, ?)",
                ((body, digest(body)) for body in bodies),
            )

    def resources(self) -> Iterator[Resource]:
        """Yield every record as a resource, read in pages to keep transactions short."""
        after = 0
        query = "SELECT id, length(body), hash FROM records WHERE id > ? ORDER BY id LIMIT ?"
        while rows := self._connection.execute(query, (after, PAGE)).fetchall():
            for number, length, found in rows:
                yield described(number, length, found)
            after = rows[-1][0]

    def content(self, uri: str) -> bytes | None:
        """Return the current content of a resource, or None if there is no such record."""
        query = "SELECT body FROM records WHERE id = ?"
        number = int(uri.removeprefix(BASE))
        row = self._connection.execute(query, (number,)).fetchone()
        return None if row is None else row[0].encode()

    def rewrite(self, number: int) -> Resource:
        """Change a record, and return it as a resource."""
        body = f"record {number}, changed at {time.time()}\n"
        with self._connection as connection:
            connection.execute(
                "UPDATE records SET body = ?, hash = ? WHERE id = ?", (body, digest(body), number)
            )
        return described(number, len(body), digest(body))


def digest(body: str) -> str:
    """Return the hash of a body in the form used in ResourceSync documents."""
    return "sha-256:" + hashlib.sha256(body.encode()).hexdigest()


def described(number: int, length: int, found: str) -> Resource:
    """Return a record as a resource."""
    return Resource(f"{BASE}{number}", length=length, hash=found, type="text/plain")


def publish(
    database: DatabaseSource, folder: Path, *, changes: int, entries: int, dump: bool
) -> None:
    """Publish the database, and change some of its records."""
    options = Options(
        gzip=True,
        change_dump=True,
        resource_dump_every=86_400 if dump else None,
        refresh=0.2,
        max_entries=entries,
    )
    publisher = Publisher(
        folder, BASE, resources=database.resources, content=database.content, options=options
    )
    with publisher:
        publisher.wait_published()
        for number in range(1, changes + 1):
            new = database.rewrite(number)
            publisher.updated(new.uri, length=new.length, hash=new.hash, type=new.type)
        while dump and not (folder / "documents/resourcedump.xml").exists():
            time.sleep(0.1)


def peak_megabytes() -> float:
    """Return the peak memory use of this process in megabytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def main() -> None:
    """Fill a database, publish it, and print how much time, disk space and memory that used."""
    parser = argparse.ArgumentParser(description="Publish a database of generated records.")
    parser.add_argument("--count", type=int, default=100_000, help="number of records")
    parser.add_argument("--changes", type=int, default=1_000, help="number of changes")
    parser.add_argument("--entries", type=int, default=50_000, help="maximum entries per document")
    parser.add_argument("--dump", action="store_true", help="also write a Resource Dump")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database = DatabaseSource(Path(folder, "records.sqlite3"))
        database.fill(arguments.count)
        began = time.monotonic()
        state = Path(folder, "state")
        publish(
            database,
            state,
            changes=arguments.changes,
            entries=arguments.entries,
            dump=arguments.dump,
        )
        duration = time.monotonic() - began
        size = sum(path.stat().st_size for path in state.rglob("*") if path.is_file())
    print(f"{arguments.count:,} resources and {arguments.changes:,} changes published")
    print(f"in {duration:.1f} s; documents and state use {size / 1e6:.1f} MB")
    print(f"peak memory: {peak_megabytes():.1f} MB")


if __name__ == "__main__":
    main()
