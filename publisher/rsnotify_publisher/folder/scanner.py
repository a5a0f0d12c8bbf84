"""Compares a folder with the journal to find files that were created, updated or deleted.

A `FolderScanner` must be used by one thread at a time, since it reads the journal through a single
connection. A file counts as deleted only if the operating system reports that it does not exist.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes

from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, RsnotifyError
from rsnotify.format.datetimes import from_microseconds
from rsnotify.format.media_types import guess_media_type
from rsnotify.format.model import ChangeType, Resource
from rsnotify.runtime.reasons import reason_of
from rsnotify_publisher.changes import Record, check_uri
from rsnotify_publisher.files import TICK
from rsnotify_publisher.journal import Journal
from rsnotify_publisher.source_documents import RESERVED

_UNKNOWN = "application/octet-stream"

# Characters that are allowed in a path (RFC 3986 §3.3) are left unencoded, as in other software.
_RAW = "/!$&'()*+,;=:@"


def media_type(path: Path) -> str:
    return _media_type("".join(path.suffixes[-2:]))


@lru_cache(maxsize=1_000)
def _media_type(suffixes: str) -> str:
    return guess_media_type(f"file:///name{quote(os.fsencode(suffixes))}") or _UNKNOWN


class FileNames:
    """Maps the files below a folder to URIs and back, one to one.

    Hidden files and files with the name of a document are not published. The base URL must end in a
    slash.
    """

    def __init__(self, root: Path, base_url: str) -> None:
        self.root = root.resolve()
        self.base_url = base_url

    def check(self) -> None:
        """Raise ConfigurationError if the folder cannot be published."""
        if not self.root.is_dir():
            raise ConfigurationError(f"{self.root} is not a folder; name one that exists")
        try:
            taken = RESERVED.intersection(os.listdir(self.root))
        except OSError as error:
            raise ConfigurationError(f"{self.root} cannot be read: {reason_of(error)}") from None
        for name in sorted(taken):
            raise ConfigurationError(
                f"{self.root / name} has the name of a ResourceSync document; move or rename it"
            )

    def uri(self, path: Path) -> str:
        """Return the URI of a file or folder below the root. Its name may contain any bytes."""
        relative = os.fsencode(path.relative_to(self.root))
        return self.base_url + quote(relative, safe=_RAW)

    def prefix(self, folder: Path) -> str:
        """Return the prefix of the URIs of all files below a folder."""
        return self.base_url if folder == self.root else self.uri(folder) + "/"

    def path(self, uri: str) -> Path | None:
        """Return the path for a URI, or None if no file can have that URI."""
        if not uri.startswith(self.base_url):
            return None
        return self.path_of(uri[len(self.base_url) :])

    def path_of(self, relative: str) -> Path | None:
        """Return the path for a percent-encoded reference relative to the base URL.

        Return None if the reference contains an encoded slash, a null byte, or a name such as `..`.
        """
        parts = [unquote_to_bytes(part) for part in relative.split("/")]
        if any(b"/" in part or b"\0" in part or part == b"" for part in parts):
            return None
        names = [os.fsdecode(part) for part in parts]
        return self.root.joinpath(*names) if _may_be_published(names) else None

    def may_be_published(self, path: Path) -> bool:
        """Return whether a file at a path below the root would be published."""
        return _may_be_published(path.relative_to(self.root).parts)

    def is_published(self, path: Path) -> bool:
        """Return whether a path is a file that is published.

        A file may be a symbolic link to another published file. A folder may not be a link.
        """
        # For names that are too long or not accessible, os.path returns False where Path raises.
        if not (self.may_be_published(path) and os.path.isfile(path)):
            return False
        resolved = os.path.realpath(path)
        if resolved == str(path):
            return True
        real = Path(resolved)
        if path.parent.resolve() != path.parent:
            return False
        return real.is_relative_to(self.root) and self.may_be_published(real)


def _may_be_published(names: Sequence[str]) -> bool:
    return (
        bool(names) and names[0] not in RESERVED and not any(name.startswith(".") for name in names)
    )


_log = logging.getLogger("rsnotify.source")


class FileStillChanging(RsnotifyError):
    """The file changed while it was being read, so it has to be reread."""


class FolderScanner:
    def __init__(self, names: FileNames, journal: Journal) -> None:
        self._names = names
        self._journal = journal
        #: Files that were being written and have to be reread.
        self.unsettled: set[Path] = set()
        self._revalidated: dict[str, str] = {}

    def baseline(self, on_file: Callable[[], None]) -> Iterator[Record]:
        """Yield every file, for an empty journal. `on_file` is called after each file."""
        for path in self.files(self._names.root):
            if (record := self._read(path)) is not None:
                yield record
            on_file()

    def files(self, folder: Path) -> Iterator[Path]:
        """Yield the published files at any depth, without following links to folders."""
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
        """Yield the changes of all files below a folder, comparing validators first.

        Yield None for a file without a change, so that the caller can pause.
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
        """Yield the changes at some paths, which may be files, folders, or missing."""
        done: set[Path] = set()
        # Sorted, so that a folder comes before its files and they are not read twice.
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
        record = self._read(path)
        if record is None:
            return None
        known = self._journal.resource(uri)
        if known is None or known[0].hash != record.resource.hash:
            change = ChangeType.CREATED if known is None else ChangeType.UPDATED
            # The datetime of the change will be written as lastmod, which readers of 1.0 need.
            return replace(record, resource=replace(record.resource, change=change, lastmod=None))
        if record.validator is not None and record.validator != known[1]:
            self._revalidated[uri] = record.validator
        return None

    def save_validators(self) -> None:
        if self._revalidated:
            with self._journal.transaction():
                for uri, validator in self._revalidated.items():
                    self._journal.revalidate(uri, validator)
            self._revalidated.clear()

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
            return _validator_of(path.stat())
        except OSError:
            return None  # `_read` reports the reason

    def _read(self, path: Path) -> Record | None:
        """Return the file as a resource without a `change`, or None if it is not published now."""
        try:
            uri = self._names.uri(path)
            check_uri(uri)
            return _record_of(path, uri)
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
        _log.warning("%s cannot be read and is skipped: %s", error.filename, reason_of(error))


def _validator_of(status: os.stat_result) -> str:
    return f"{status.st_size}:{status.st_mtime_ns}"


def _record_of(path: Path, uri: str) -> Record:
    """Read a whole file. Raises FileStillChanging if it is being written.

    The validator stays the same until the file changes. It is None if the file could still change
    without changing the validator.
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
    settled = time.time() - after.st_mtime > TICK
    return Record(resource, _validator_of(after) if settled else None)
