"""`FolderMirror`, the handler that mirrors a set of resources in a folder."""

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

#: Maximum number of concurrent flushes, for all mirrors of a process.
_FLUSH_THREADS = 8
#: Minimum number of paths per thread when nothing waits for the flush. Fewer would speed up the
#: flush, but delay concurrent commits by a few milliseconds.
_MIN_PATHS_PER_THREAD = 256


def default_state(folder: str | os.PathLike[str]) -> Path:
    """Return the folder for the state of a mirror, which is next to the mirror."""
    folder = Path(folder).absolute()
    return folder.with_name(folder.name + ".rsnotify")


class FolderMirror:
    """Keeps a folder equal to the Source's resources. Implements `DeferredHandler`.

    `apply` flushes content before renaming it into place, and then flushes the folders. A
    subscriber flushes small content later, many files at once, and keeps it in the state until
    then. So all content that the state records is on disk, or is restored when the state is next
    opened.

    Args:
        folder: The root of the mirror. It is created if it does not exist.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        require("folder", folder, str | os.PathLike, "the path of a folder")
        self._root = Path(folder).absolute()
        self._prepared: MirrorTree | None = None
        self._place = ""
        self._top = str(self._root)
        #: Protects `_unflushed`.
        self._lock = Lock()
        self._unflushed = _TouchedPaths()
        #: Held during a flush, so that a concurrent `flush` waits for it.
        self._flushing = Lock()
        self._flush_failed = False

    def prepare(self, base: str, temporary: Path) -> None:
        """Prepare the folder for a set of resources. Called once, before the first `apply`.

        Args:
            base: The URI that corresponds to the root.
            temporary: The folder from which content is renamed into the mirror.

        Raises:
            ConfigurationError: The folder cannot be created or written, or is not on the file
                system of `temporary`.
        """
        self.check(temporary)
        (self._root / PROBE).unlink(missing_ok=True)  # left by a run that was killed
        self._prepared = MirrorTree(self._root, base)
        self._unflushed, self._flush_failed = _TouchedPaths(), False
        self._place = self.place

    def check(self, temporary: Path) -> None:
        """Run the checks of `prepare` before the set of resources is known."""
        self._make_root()
        if self._root.stat().st_dev != temporary.stat().st_dev:
            raise ConfigurationError(
                f"{temporary} and {self._root} are not on the same file system; "
                "choose another folder for the state"
            )
        if temporary.resolve().is_relative_to(self._root.resolve()):
            raise ConfigurationError(f"the state cannot be kept inside the mirror {self._root}")

    def _make_root(self) -> None:
        """Create the folder and a temporary file in it, to reject an unusable folder early."""
        done = "created"
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
    def _tree(self) -> MirrorTree:
        assert self._prepared is not None, "prepare is called first"
        return self._prepared

    @property
    def place(self) -> str:
        """The device and inode of the folder, or an empty string if the folder does not exist."""
        try:
            found = self._root.stat()
        except OSError:
            return ""
        return f"{found.st_dev}:{found.st_ino}"

    def held_content(self, uri: str) -> Path | None:
        """Return the file of a resource, or None if there is none."""
        path = Path(self._tree.find(uri))
        return path if path.is_file() and not path.is_symlink() else None

    def find_files(self, uris: Sequence[str]) -> Iterator[tuple[str, os.stat_result | None]]:
        """Yield the path and the `stat` result of each resource's file, or None for no file."""
        return self._tree.find_files(uris)

    def paths(self) -> Iterator[str]:
        """Yield the paths of all files in the folder."""
        return self._tree.paths()

    def apply(self, changes: Sequence[Received]) -> None:
        """Durably write or remove the file of each resource.

        Raises:
            StorageError: The folder was removed, unmounted or replaced since `prepare`.
        """
        _flush_all(str(change.content) for change in changes if change.content is not None)
        self._put(changes, flushed=True)
        self._flush()

    def apply_unflushed(self, changes: Sequence[Received]) -> None:
        """Write or remove the file of each resource, without flushing."""
        self._put(changes, flushed=False)

    def apply_again(self, changes: Sequence[Received]) -> None:
        """Durably reapply changes that a crash may have left unflushed."""
        for change in changes:
            # If the crash happened while the resource was moved between its paths, it is at both.
            if (leftover := self._tree.leftover(change.uri)) is not None:
                self._remove(leftover, self._unflushed)
        self._put(changes, flushed=False)
        for folder in list(self._unflushed.folders):  # the crash may have followed a `mkdir`
            while folder != self._top:
                folder = os.path.dirname(folder)
                self._unflushed.folders.add(folder)
        self._flush()

    def remove_files(self, names: Iterable[str]) -> None:
        """Durably remove files that are not part of the copy, and the resulting empty folders.

        Args:
            names: Paths relative to the folder. Files behind a symbolic link are kept.
        """
        touched = _TouchedPaths()
        for name in names:
            path = self._root / name
            if path.parent.resolve() == self._root.resolve() / Path(name).parent:
                self._remove(str(path), touched)
        _flush_all(touched.folders)

    def flush(self) -> None:
        """Flush all files that were written or removed. Callable in any thread.

        Raises:
            StorageError: This flush or an earlier one failed: after a failure, the system does not
                report lost data again.
        """
        self._flush(_MIN_PATHS_PER_THREAD)

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
        """Write or remove the file of each resource. `flushed` contents need no flush."""
        if self.place != self._place:
            raise StorageError(f"{self._root} was removed, unmounted or replaced")
        touched, freed = _TouchedPaths(), False
        try:
            deleted = [change for change in changes if change.content is None]
            # Deletions first, because a folder may replace a file of the same name.
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
            self._flush()  # the state does not contain the moved files

    def _place_content(
        self, uri: str, source: str, plain: PlainPaths, touched: _TouchedPaths
    ) -> str:
        """Rename a file to the path of a resource. Return this path."""
        target = plain.find(uri)
        if target is not None and plain.folder is not None:
            with suppress(OSError):  # a folder has its name, or its folder was removed
                os.replace(source, target)
                touched.folders.add(plain.folder)
                return target
        target = self._tree.find_free(uri)
        self._move(source, target, touched)
        plain.invalidate(target)
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
        # NotADirectoryError: a folder of the path is now a file.
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
                pass  # it never existed, or an earlier change removed it
            except OSError:
                return  # not empty
            folder = os.path.dirname(folder)
            touched.folders.add(folder)


class _TouchedPaths:
    """Written files, and folders whose entries have changed."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.folders: set[str] = set()


def _flush_all(paths: Iterable[str], alone: int = 1) -> None:
    """Flush files and folders concurrently, so that the file system can combine its commits.

    Paths that no longer exist are skipped. A single thread flushes up to `alone` paths.
    """
    waiting = list(paths)
    if len(waiting) <= alone:
        _flush_each(waiting)
        return
    threads = min(_FLUSH_THREADS, -(-len(waiting) // alone))
    parts = [waiting[start::threads] for start in range(threads)]
    list(_flushers(os.getpid()).map(_flush_each, parts))


def _flush_each(paths: Iterable[str]) -> None:
    for path in paths:
        with suppress(FileNotFoundError, NotADirectoryError):
            flush(path)


@cache
def _flushers(process: int) -> ThreadPoolExecutor:
    """Return the threads that flush for all mirrors. Each forked process has its own."""
    return ThreadPoolExecutor(_FLUSH_THREADS, "rsnotify-flush")
