"""Compares a folder with the journal to find files that were created, updated or deleted.

A file counts as deleted only if the operating system reports that it does not exist. If the whole
folder is empty, its volume may not be mounted, so nothing counts as deleted.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, RsnotifyError
from rsnotify.format.datetimes import from_microseconds
from rsnotify.format.model import ChangeType, Resource
from rsnotify.runtime.reasons import reason_of
from rsnotify_publisher.changes import Record, check_uri
from rsnotify_publisher.files import MTIME_RESOLUTION
from rsnotify_publisher.folder.file_names import FileNames, media_type
from rsnotify_publisher.journal import Journal

logger = logging.getLogger("rsnotify.source")


class FileStillChanging(RsnotifyError):
    """The file changed while it was being read, so it must be read again."""


class FolderScanner:
    """Finds the changes in a folder. Must be used by one thread at a time."""

    def __init__(self, names: FileNames, journal: Journal) -> None:
        self._names = names
        self._journal = journal
        #: Files that changed while they were being read, so that they must be read again.
        self.still_changing: set[Path] = set()
        #: New validators of files whose content did not change, keyed by URI.
        self._revalidated: dict[str, str] = {}

    def baseline(self, on_file: Callable[[], None]) -> Iterator[Record]:
        """Yield every file as a resource for an empty journal. `on_file` is called after each."""
        for path in self.files(self._names.root):
            if (record := self._read(path)) is not None:
                yield record
            on_file()

    def files(self, folder: Path) -> Iterator[Path]:
        """Yield the published files at any depth, without following links to folders."""
        try:
            entries = list(os.scandir(folder))
        except OSError as error:
            self._warn_unreadable(error)
            return
        for entry in entries:
            path = folder / entry.name
            if not self._names.may_be_published(path):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from self.files(path)
            elif entry.is_file(follow_symlinks=False) or self._names.is_published(path):
                yield path

    def compare(self, folder: Path) -> Iterator[Record | None]:
        """Yield the changes of all files below a folder. Files with equal validators are not read.

        Yield None for a file without a change, so that the caller can pause.
        """
        if not os.path.isdir(self._names.root):
            logger.error("%s no longer exists; no deletions are published", self._names.root)
            return
        known = self._journal.validators(self._names.prefix(folder))
        for path in self.files(folder):
            uri = self._names.uri(path)
            validator = known.pop(uri, None)
            is_unchanged = validator is not None and validator == self._validator(path)
            yield None if is_unchanged else self._change(path, uri)
        if known and folder == self._names.root and _is_empty(folder):
            logger.error(
                "%s is empty, so no deletions are published; mount it if its volume is not mounted,"
                " or create a hidden file in it, such as .keep, if it should be empty",
                folder,
            )
            return
        for uri in known:
            yield self._deletion(uri)

    def examine(self, paths: Iterable[Path]) -> Iterator[Record | None]:
        """Yield the changes at some paths, which may be files, folders, or missing."""
        done: set[Path] = set()
        # Sorted so that a folder precedes its files, which are then not read twice.
        for path in sorted(filter(self._names.may_be_published, paths)):
            if not done.isdisjoint(path.parents):
                continue
            uri = self._names.uri(path)
            if self._names.is_published(path):
                yield self._change(path, uri)
                continue
            done.add(path)
            yield self._deletion(uri)
            if os.path.isdir(path) and path.resolve() == path:
                yield from self.compare(path)
            else:
                yield from map(self._deletion, self._journal.validators(self._names.prefix(path)))

    def _change(self, path: Path, uri: str) -> Record | None:
        """Read a file. Return its change, or None if it did not change or cannot be read."""
        record = self._read(path)
        if record is None:
            return None
        known = self._journal.resource(uri)
        if known is None or known[0].hash != record.resource.hash:
            change = ChangeType.CREATED if known is None else ChangeType.UPDATED
            # Without `lastmod`, documents contain the datetime of the change there, which readers
            # of ResourceSync 1.0 need.
            return replace(record, resource=replace(record.resource, change=change, lastmod=None))
        if record.validator is not None and record.validator != known[1]:
            self._revalidated[uri] = record.validator
        return None

    def save_validators(self) -> None:
        """Store the new validators of files whose content did not change."""
        if self._revalidated:
            with self._journal.transaction():
                for uri, validator in self._revalidated.items():
                    self._journal.revalidate(uri, validator)
            self._revalidated.clear()

    def _deletion(self, uri: str) -> Record | None:
        """Return the deletion of a resource, or None if it is not in the set or its file exists."""
        path = self._names.path(uri)
        if path is None or self._journal.resource(uri) is None:
            return None
        try:
            path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            self._warn_unreadable(error)
            return None
        else:
            if self._names.is_published(path):
                return None
        return Record(Resource(uri, change=ChangeType.DELETED))

    def _validator(self, path: Path) -> str | None:
        try:
            return _validator_of(path.stat())
        except OSError:
            return None  # `_read` reports the reason

    def _read(self, path: Path) -> Record | None:
        """Return the file as a resource without a `change`, or None if it cannot be published."""
        try:
            uri = self._names.uri(path)
            check_uri(uri)
            return _record_of(path, uri)
        except FileNotFoundError:
            logger.debug("%s was deleted before it was read", path)
        except FileStillChanging:
            self.still_changing.add(path)
        except OSError as error:
            self._warn_unreadable(error)
        except ConfigurationError as error:
            logger.warning("%s is not published: %s", path, error)
        return None

    def _warn_unreadable(self, error: OSError) -> None:
        logger.warning("skipping %s, which cannot be read: %s", error.filename, reason_of(error))


def _is_empty(folder: Path) -> bool:
    try:
        return not os.listdir(folder)
    except OSError:  # it has just been removed or unmounted
        return True


def _validator_of(status: os.stat_result) -> str:
    # Reproducible builds give all files the same modification time. The time of the last change of
    # the inode differs nevertheless.
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"


def _record_of(path: Path, uri: str) -> Record:
    """Read a whole file. Raises FileStillChanging if it changes meanwhile.

    The validator stays the same until the file changes. It is None if the file has changed so
    recently that it could change again and keep the same validator.
    """
    with open(path, "rb") as file:
        before = os.fstat(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        after = os.fstat(file.fileno())
    if _validator_of(before) != _validator_of(after):
        raise FileStillChanging
    resource = Resource(
        uri,
        lastmod=from_microseconds(after.st_mtime_ns // 1000),
        hash=f"sha-256:{digest}",
        length=after.st_size,
        type=media_type(path),
    )
    is_reliable = time.time() - max(after.st_mtime, after.st_ctime) > MTIME_RESOLUTION
    return Record(resource, _validator_of(after) if is_reliable else None)
