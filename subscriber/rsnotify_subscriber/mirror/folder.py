"""A folder that mirrors a set of resources: the handler that ships with rsnotify."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.runtime.arguments import require
from rsnotify.runtime.reasons import reason_of
from rsnotify.runtime.state_folders import flush, make_durably
from rsnotify_subscriber.handlers import Received
from rsnotify_subscriber.mirror.paths import PROBE, MirrorTree, PlainPaths

#: How many files are flushed at once, by all mirrors of a process.
_FLUSHES = 8
#: How many paths each thread has at least where nothing waits for the flush. With fewer, it would
#: end sooner, and delay the commits beside it by some milliseconds.
_MOST_ALONE = 256


def default_state(folder: str | os.PathLike[str]) -> Path:
    """Return the folder of the state of a mirror: beside it, so that `diff -r` sees only copies."""
    folder = Path(folder).absolute()
    return folder.with_name(folder.name + ".rsnotify")


class FolderMirror:
    """Keeps a folder equal to the Source's resources; a `DeferredHandler`.

    `apply` flushes content before it renames it into place, and the folders after it. A subscriber
    flushes small content later, several files at once, and keeps it in the state until then. So
    every resource of the state is on the disk, or is put there when the state is opened again.

    Args:
        folder: The root of the mirror; made if it does not exist.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        require("folder", folder, str | os.PathLike, "the path of a folder")
        self._root = Path(folder).absolute()
        self._tree: MirrorTree | None = None
        self._place = ""
        self._top = str(self._root)
        #: Held while the paths below are read or written.
        self._lock = Lock()
        self._unflushed = _TouchedPaths()
        #: Held during a flush, so that another returns only after it.
        self._flushing = Lock()
        self._flush_failed = False

    def prepare(self, base: str, temporary: Path) -> None:
        """Prepare the folder for a set of resources; called once, before the first `apply`.

        Args:
            base: The URI that the root stands for.
            temporary: The folder from which content is renamed into the mirror.

        Raises:
            ConfigurationError: The folder cannot be made or written, or is on another file system
                than `temporary`.
        """
        self.check(temporary)
        (self._root / PROBE).unlink(missing_ok=True)  # of a run that was killed
        self._tree = MirrorTree(self._root, base)
        self._unflushed, self._flush_failed = _TouchedPaths(), False
        self._place = self.place

    def check(self, temporary: Path) -> None:
        """Make the checks of `prepare`, before the set of resources is known.

        Args:
            temporary: As for `prepare`.

        Raises:
            ConfigurationError: As for `prepare`.
        """
        self._make_root()
        if self._root.stat().st_dev != temporary.stat().st_dev:
            raise ConfigurationError(
                f"{temporary} and {self._root} are not on the same file system; "
                "choose another folder for the state"
            )
        if temporary.resolve().is_relative_to(self._root.resolve()):
            raise ConfigurationError(f"the state cannot be kept inside the mirror {self._root}")

    def _make_root(self) -> None:
        """Make the folder, and a temporary file in it, so that a wrong one is refused at once."""
        done = "made"
        try:
            make_durably(self._root)
            done = "written"
            with TemporaryFile(dir=self._root):
                pass
        except OSError as error:
            raise ConfigurationError(
                f"the mirror {self._root} cannot be {done}: {reason_of(error)}"
            ) from error

    @property
    def place(self) -> str:
        """The device and inode of the folder; empty if it does not exist."""
        try:
            found = self._root.stat()
        except OSError:
            return ""
        return f"{found.st_dev}:{found.st_ino}"

    def held_content(self, uri: str) -> Path | None:
        """Return the file of a resource, if there is one."""
        assert self._tree is not None, "prepare is called first"
        path = Path(self._tree.find(uri))
        return path if path.is_file() and not path.is_symlink() else None

    def find_files(self, uris: Sequence[str]) -> Iterator[tuple[str, os.stat_result | None]]:
        """Yield the path of each resource, and the status of its file; None if there is no file."""
        assert self._tree is not None, "prepare is called first"
        return self._tree.find_files(uris)

    def paths(self) -> Iterator[str]:
        """Yield the paths of all files of the folder."""
        assert self._tree is not None, "prepare is called first"
        return self._tree.paths()

    def apply(self, changes: Sequence[Received]) -> None:
        """Put each resource in its place, or remove it, durably.

        Raises:
            StorageError: The folder was removed, unmounted or replaced since `prepare`.
        """
        _flush_all(str(change.content) for change in changes if change.content is not None)
        self._put(changes, flushed=True)
        self._flush()

    def apply_unflushed(self, changes: Sequence[Received]) -> None:
        """Put each resource in its place, or remove it, as durably as the next `flush` makes it.

        Raises:
            StorageError: As for `apply`.
        """
        self._put(changes, flushed=False)

    def apply_again(self, changes: Sequence[Received]) -> None:
        """Apply durably what may have been applied, and not flushed, before a crash."""
        assert self._tree is not None, "prepare is called first"
        for change in changes:
            # The resource was moved from one of its paths to the other, and it may be at both.
            if (leftover := self._tree.leftover(change.uri)) is not None:
                self._remove(leftover, self._unflushed)
        self._put(changes, flushed=False)
        for folder in list(self._unflushed.folders):  # the crash may have come after `mkdir`
            while folder != self._top:
                folder = os.path.dirname(folder)
                self._unflushed.folders.add(folder)
        self._flush()

    def remove_files(self, names: Iterable[str]) -> None:
        """Remove files durably that are not part of the copy, and folders that are empty then.

        Args:
            names: Their paths relative to the folder; what is behind a symbolic link stays.
        """
        touched = _TouchedPaths()
        for name in names:
            path = self._root / name
            if path.parent.resolve() == self._root.resolve() / Path(name).parent:
                self._remove(str(path), touched)
        _flush_all(touched.folders)

    def flush(self) -> None:
        """Flush all that was put or removed before; may be called in another thread.

        Raises:
            StorageError: It failed, now or earlier. A later flush would not show what was lost.
        """
        self._flush(_MOST_ALONE)

    def _flush(self, alone: int = 1) -> None:
        with self._flushing:
            if self._flush_failed:
                raise StorageError(f"{self._root}: an earlier flush failed")
            with self._lock:
                touched, self._unflushed = self._unflushed, _TouchedPaths()
            self._flush_failed = True
            _flush_all(touched.files, alone)
            _flush_all(touched.folders, alone)
            self._flush_failed = False

    def _put(self, changes: Sequence[Received], *, flushed: bool) -> None:
        """Put each resource in its place, or remove it; `flushed` is whether the contents are."""
        assert self._tree is not None, "prepare is called first"
        if self.place != self._place:
            raise StorageError(f"{self._root} is not there any more, or not the folder it was")
        touched, freed = _TouchedPaths(), False
        try:
            deleted = [change for change in changes if change.content is None]
            # First, since a file may have become a folder of the same name.
            for change in deleted:
                self._remove(self._tree.find(change.uri), touched)
            plain = self._tree.plain_paths()
            for change in changes:
                if change.content is not None:
                    target = self._place_content(change.uri, str(change.content), plain, touched)
                    if not flushed:
                        touched.files.add(target)
            for source, target in self._tree.freed_paths() if deleted else ():
                freed = True
                self._move(source, target, touched)
                touched.files.add(target)
                touched.folders.add(os.path.dirname(source))
                self._remove_empty(os.path.dirname(source), touched)
        finally:
            with self._lock:
                self._unflushed.files |= touched.files
                self._unflushed.folders |= touched.folders
        if freed:
            self._flush()  # the state has no content of these

    def _place_content(
        self, uri: str, source: str, plain: PlainPaths, touched: _TouchedPaths
    ) -> str:
        """Rename a file to the path of a resource; return that."""
        assert self._tree is not None, "prepare is called first"
        target = plain.find(uri)
        if target is not None and plain.folder is not None:
            with suppress(OSError):  # a folder is in its place, or was removed
                os.replace(source, target)
                touched.folders.add(plain.folder)
                return target
        target = self._tree.find_free(uri)
        self._move(source, target, touched)
        plain.note(target)
        return target

    def _move(self, source: str, target: str, touched: _TouchedPaths) -> None:
        folder = os.path.dirname(target)
        try:
            os.replace(source, target)
        except FileNotFoundError:
            self._make_folder(folder, touched)
            os.replace(source, target)
        touched.folders.add(folder)

    def _make_folder(self, folder: str, touched: _TouchedPaths) -> None:
        if not os.path.isdir(folder):
            above = os.path.dirname(folder)
            self._make_folder(above, touched)
            with suppress(FileExistsError):
                os.mkdir(folder)
            touched.folders.add(above)

    def _remove(self, path: str, touched: _TouchedPaths) -> None:
        # NotADirectoryError: a folder of the path is a file.
        with suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(path)
        folder = os.path.dirname(path)
        touched.folders.add(folder)
        self._remove_empty(folder, touched)

    def _remove_empty(self, folder: str, touched: _TouchedPaths) -> None:
        while folder != self._top:
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                pass  # it was never made, or removed with an earlier change
            except OSError:
                return  # not empty
            folder = os.path.dirname(folder)
            touched.folders.add(folder)


class _TouchedPaths:
    """The files that were put in place, and the folders with entries that were changed."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.folders: set[str] = set()


def _flush_all(paths: Iterable[str], alone: int = 1) -> None:
    """Flush files and folders, several at once, so that the file system joins its own commits.

    What was removed meanwhile is left out. One thread flushes so many paths `alone`.
    """
    waiting = list(paths)
    if len(waiting) <= alone:
        _flush_each(waiting)
        return
    threads = min(_FLUSHES, -(-len(waiting) // alone))
    parts = [waiting[start::threads] for start in range(threads)]
    list(_flushers(os.getpid()).map(_flush_each, parts))


def _flush_each(paths: Iterable[str]) -> None:
    for path in paths:
        with suppress(FileNotFoundError, NotADirectoryError):
            flush(path)


@cache
def _flushers(process: int) -> ThreadPoolExecutor:
    """Return the threads that flush for all mirrors of a process; a forked one makes its own."""
    return ThreadPoolExecutor(_FLUSHES, "rsnotify-flush")
