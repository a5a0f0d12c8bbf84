"""What a Destination keeps: its progress, and how it holds each resource (SQLite).

One writer connection, used by one worker thread, and one reader for the event loop, which
looks up single rows. T is committed in one transaction with what it covers.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
from filelock import FileLock, Timeout
from msgspec import Struct

from rsnotify.actions import Progress
from rsnotify.datetimes import Instant, to_microseconds
from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.model import Resource
from rsnotify.offer import Offer
from rsnotify.selection import Selection
from rsnotify.vocabulary import ChangeType
from rsnotify.ways import described
from rsnotify_subscriber.held import Held

T = TypeVar("T")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS resources (
    uri TEXT PRIMARY KEY, changed_at INTEGER NOT NULL, change TEXT NOT NULL,
    hash TEXT, length INTEGER, lastmod INTEGER, validator TEXT) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS tombstones ON resources (changed_at) WHERE change = 'deleted';
"""
_UPSERT = "INSERT OR REPLACE INTO resources VALUES (?, ?, ?, ?, ?, ?, ?)"
_FIND = "SELECT * FROM resources WHERE uri = ?"
_UNLISTED = """
SELECT uri FROM resources WHERE change != 'deleted' AND changed_at <= ?
    AND NOT EXISTS (SELECT 1 FROM temp.seen WHERE seen.uri = resources.uri)
"""


class Identity(Struct, frozen=True):
    """Which Source and set of resources a state is about, fixed at the first run.

    Args:
        url: What the user named.
        base: The URI that the root of a mirror stands for.
        offer: What the Source was last seen to offer.
        selection: What of it is followed.
        prefer: Media types of which alternates are held (core §14.3).
    """

    url: str
    base: str
    offer: Offer
    selection: Selection = Selection()
    prefer: tuple[str, ...] = ()


class State:
    """The state of one Destination.

    Args:
        folder: Where it is kept; made if it is not there. Locked until `close`.

    Raises:
        ConfigurationError: Another process is using the folder.
        StorageError: The state cannot be read or written.
    """

    def __init__(self, folder: Path) -> None:
        self._lock = FileLock(folder / "lock", timeout=0)
        self._failed = False
        self._pruned = 0
        with _storage(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._acquire(folder)
            try:
                self._open(folder / "state.sqlite")
            except BaseException:
                self._lock.release()
                raise

    def _acquire(self, folder: Path) -> None:
        try:
            self._lock.acquire()
        except Timeout:
            raise ConfigurationError(
                f"{folder} is in use by another follower; stop it first, or choose another folder"
            ) from None

    def _open(self, path: Path) -> None:
        self._path = path
        self._reader = sqlite3.connect(path, isolation_level=None)
        self._writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._begin()
        except BaseException:
            self._reader.close()
            self._writer.close()
            raise

    def _begin(self) -> None:
        self._writer.execute("PRAGMA journal_mode = WAL")
        self._writer.execute("PRAGMA synchronous = FULL")
        self._writer.executescript(_SCHEMA)
        self._bring_up_to_date()
        identity = self.identity()
        self._prefer = identity.prefer if identity is not None else ()
        # Of no use after a restart, since a baseline then begins anew.
        self._writer.execute("CREATE TEMP TABLE seen (uri TEXT PRIMARY KEY) WITHOUT ROWID")
        self.resources: int = self._reader.execute(
            "SELECT count(*) FROM resources WHERE change != 'deleted'"
        ).fetchone()[0]

    def _bring_up_to_date(self) -> None:
        """Add to a state of an earlier version what it has not yet."""
        columns = {row[1] for row in self._writer.execute("PRAGMA table_info(resources)")}
        if "validator" not in columns:
            self._writer.execute("ALTER TABLE resources ADD COLUMN validator TEXT")

    def close(self) -> None:
        """Close the state and release its folder."""
        self._reader.close()
        self._writer.close()
        self._lock.release()

    def incoming(self) -> Path:
        """Make the folder of temporary content, without what an earlier run left there."""
        folder = self._path.parent / "incoming"
        shutil.rmtree(folder, ignore_errors=True)
        with _storage(folder):
            folder.mkdir()
        return folder

    def find(self, uri: str) -> Held | None:
        """Look up how a resource is held, as of the last commit."""
        with _storage(self._path):
            row = self._reader.execute(_FIND, (uri,)).fetchone()
        return None if row is None else Held(*row)

    def progress(self) -> Progress | None:
        """Return the progress that was last committed."""
        return self._fact("progress", Progress)

    def identity(self) -> Identity | None:
        """Return which Source this state is about, if it is about any yet."""
        return self._fact("identity", Identity)

    def keep_identity(self, identity: Identity) -> None:
        """Keep which Source this state is about; with another selection a baseline is due."""
        before = self.identity()
        self._prefer = identity.prefer
        self._transact(lambda: self._write_identity(before, identity))

    def _write_identity(self, before: Identity | None, identity: Identity) -> None:
        self._keep("identity", identity)
        if before is not None and before.selection != identity.selection:
            self._writer.execute("DELETE FROM facts WHERE name = 'progress'")
        if before is not None and before.prefer != identity.prefer:
            self._writer.execute("DELETE FROM facts WHERE name = 'progress'")
            self._writer.execute("UPDATE resources SET validator = NULL")  # of another URI

    def distrust(self) -> None:
        """Let everything come anew, as if what is held were not what the Source has."""

        def forget() -> None:
            self._writer.execute("DELETE FROM facts WHERE name = 'progress'")
            self._writer.execute(
                "UPDATE resources SET changed_at = 0, hash = NULL, length = NULL, lastmod = NULL,"
                " validator = NULL"
            )

        self._transact(forget)

    def _fact(self, name: str, kind: type[T]) -> T | None:
        with _storage(self._path):
            row = self._writer.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else msgspec.json.decode(row[0], type=kind)

    def _keep(self, name: str, value: object) -> None:
        self._writer.execute(
            "INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, msgspec.json.encode(value))
        )

    def commit(self, held: Sequence[Held], progress: Progress | None) -> None:
        """Make applied changes and the progress over them durable, together."""
        self._transact(lambda: self._write(held, progress))

    def _write(self, held: Sequence[Held], progress: Progress | None) -> None:
        count = self.resources
        for one in held:
            before = self._writer.execute(_FIND, (one.uri,)).fetchone()
            count += (one.change != ChangeType.DELETED) - (
                before is not None and before[2] != ChangeType.DELETED
            )
            self._writer.execute(_UPSERT, msgspec.structs.astuple(one))
        if progress is not None:
            self._keep("progress", progress)
            self._prune(to_microseconds(progress.confirmed))
        self.resources = count

    def _prune(self, confirmed: int) -> None:
        """Drop tombstones of deletions that no document can contradict any more."""
        if confirmed > self._pruned:
            self._writer.execute(
                "DELETE FROM resources WHERE change = 'deleted' AND changed_at < ?", (confirmed,)
            )
            self._pruned = confirmed

    def begin_baseline(self) -> None:
        """Forget which resources were seen in an earlier baseline."""
        self._transact(lambda: self._writer.execute("DELETE FROM temp.seen"))

    def compare(self, resources: Iterable[Resource], at: Instant) -> list[Resource]:
        """Note resources as seen, and return those not held as a Resource List has them.

        Args:
            resources: Its entries.
            at: The instant it speaks of; what changed later here is left alone.
        """
        differing: list[Resource] = []
        moment = to_microseconds(at)

        def look(resource: Resource) -> tuple[str]:
            row = self._writer.execute(_FIND, (resource.uri,)).fetchone()
            held = None if row is None else Held(*row)
            entry = described(resource, self._prefer)
            if held is None or (held.changed_at <= moment and not held.is_as_listed(entry)):
                differing.append(resource)
            return (resource.uri,)

        self._transact(
            lambda: self._writer.executemany(
                "INSERT OR IGNORE INTO temp.seen VALUES (?)", [look(one) for one in resources]
            )
        )
        return differing

    def sweep(self, at: Instant) -> list[str]:
        """Return the resources held that no list of this baseline had.

        Args:
            at: The instant the lists speak of; what changed later here is left alone.
        """
        with _storage(self._path):
            rows = self._writer.execute(_UNLISTED, (to_microseconds(at),)).fetchall()
        return [uri for (uri,) in rows]

    def _transact(self, work: Callable[[], object]) -> None:
        if self._failed:
            # A later progress must not be kept without the changes that were lost here.
            raise StorageError(f"{self._path}: an earlier commit failed, so none is made any more")
        try:
            with _storage(self._path):
                self._writer.execute("BEGIN IMMEDIATE")
                work()
                self._writer.execute("COMMIT")
        except BaseException:
            self._failed = True
            raise


@contextmanager
def _storage(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{error.filename or path}: {error.strerror}") from error
    except (sqlite3.Error, msgspec.DecodeError) as error:
        raise StorageError(f"{path}: {error}") from error


def read_identity(folder: Path) -> Identity | None:
    """Read which Source a state is about, without locking or changing it.

    Raises:
        StorageError: There is a state, but it cannot be read.
    """
    path = folder / "state.sqlite"
    if not path.exists():
        return None
    with _storage(path):
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            row = connection.execute("SELECT value FROM facts WHERE name = 'identity'").fetchone()
            return None if row is None else msgspec.json.decode(row[0], type=Identity)
        finally:
            connection.close()
