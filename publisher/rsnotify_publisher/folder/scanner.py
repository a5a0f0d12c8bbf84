"""Comparing the folder with the journal: what was created, updated and deleted.

A `FolderScanner` belongs to one thread, since it reads the journal by a connection of its own.
Nothing is taken for deleted unless the system says that it is not there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from msgspec.structs import replace

from rsnotify.errors import ConfigurationError
from rsnotify.format.model import Resource
from rsnotify.format.vocabulary import ChangeType
from rsnotify_publisher.changes import Record, check_uri
from rsnotify_publisher.folder.file_names import FileNames
from rsnotify_publisher.folder.file_snapshot import (
    FileSnapshot,
    FileStillChanging,
    take_snapshot,
    validator_of,
)
from rsnotify_publisher.journal import Journal

_log = logging.getLogger("rsnotify.source")


class FolderScanner:
    """Finds changes in a folder.

    Args:
        names: The folder and its URIs.
        journal: What is known of it.
    """

    def __init__(self, names: FileNames, journal: Journal) -> None:
        self._names = names
        self._journal = journal
        #: Files that were being written, to be looked at again.
        self.unsettled: set[Path] = set()
        self._revalidated: dict[str, str] = {}

    def baseline(self, on_file: Callable[[], None]) -> Iterator[Record]:
        """Look at every file, for an empty journal; `on_file` is called after each."""
        for path in self.files(self._names.root):
            look = self._look(path)
            if look is not None:
                yield Record(look.resource, look.validator)
            on_file()

    def files(self, folder: Path) -> Iterator[Path]:
        """Walk over the published files at any depth; links to folders are not followed."""
        try:
            entries = list(os.scandir(folder))
        except OSError as error:
            self._unreadable(error)
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
        """Find the changes of every file below a folder, by their validators first.

        Yields:
            Changes; and None where there is none, so that a caller can pause between files.
        """
        if not os.path.isdir(self._names.root):
            _log.error("%s is gone; its resources stay as they are", self._names.root)
            return
        known = self._journal.validators(self._names.prefix(folder))
        for path in self.files(folder):
            uri = self._names.uri(path)
            validator = known.pop(uri, None)
            unchanged = validator is not None and validator == self._validator(path)
            yield None if unchanged else self._changed(path, uri)
        for uri in known:
            yield self._gone(uri)

    def examine(self, paths: Iterable[Path]) -> Iterator[Record | None]:
        """Find the changes at some paths, which may be files, folders, or gone."""
        done: set[Path] = set()
        # In order a folder comes before what is in it, which need not be looked at twice.
        for path in sorted(filter(self._names.may_be_published, paths)):
            if not done.isdisjoint(path.parents):
                continue
            uri = self._names.uri(path)
            if self._names.is_published(path):
                yield self._changed(path, uri)
                continue
            done.add(path)
            yield self._gone(uri)
            if os.path.isdir(path) and path.resolve() == path:
                yield from self.compare(path)
            else:
                yield from map(self._gone, self._journal.validators(self._names.prefix(path)))

    def _changed(self, path: Path, uri: str) -> Record | None:
        look = self._look(path)
        if look is None:
            return None
        known = self._journal.resource(uri)
        if known is None:
            return self._record(look, ChangeType.CREATED)
        if known[0].hash != look.resource.hash:
            return self._record(look, ChangeType.UPDATED)
        if look.validator is not None and look.validator != known[1]:
            self._revalidated[uri] = look.validator
        return None

    def note_validators(self) -> None:
        """Keep the new validators of files that have not changed."""
        if self._revalidated:
            with self._journal.transaction():
                for uri, validator in self._revalidated.items():
                    self._journal.revalidate(uri, validator)
            self._revalidated.clear()

    def _record(self, look: FileSnapshot, change: ChangeType) -> Record:
        # The datetime of the change stands for lastmod, as readers of 1.0 need it.
        return Record(replace(look.resource, change=change, lastmod=None), look.validator)

    def _gone(self, uri: str) -> Record | None:
        path = self._names.path(uri)
        if path is None or self._journal.resource(uri) is None:
            return None
        try:
            path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            self._unreadable(error)
            return None
        else:
            if self._names.is_published(path):
                return None
        return Record(Resource(uri, change=ChangeType.DELETED))

    def _validator(self, path: Path) -> str | None:
        try:
            return validator_of(path.stat())
        except OSError:
            return None  # whoever looks closer finds out why

    def _look(self, path: Path) -> FileSnapshot | None:
        try:
            uri = self._names.uri(path)
            check_uri(uri)
            return take_snapshot(path, uri)
        except FileNotFoundError:
            _log.debug("%s vanished before it was read", path)
        except FileStillChanging:
            self.unsettled.add(path)
        except OSError as error:
            self._unreadable(error)
        except ConfigurationError as error:
            _log.warning("%s is not published: %s", path, error)
        return None

    def _unreadable(self, error: OSError) -> None:
        _log.warning("%s cannot be read and is passed over: %s", error.filename, error.strerror)
