"""A folder that mirrors a set of resources: the handler that ships with rsnotify."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.runtime.arguments import require
from rsnotify_subscriber.handlers import Received
from rsnotify_subscriber.mirror.tree import MirrorTree
from rsnotify_subscriber.storage.disk import flush, make_durably

#: How many files are flushed at once, by all mirrors of a process.
_FLUSHES = 8


def default_state(folder: str | os.PathLike[str]) -> Path:
    """Return the folder of the state of a mirror: beside it, so that `diff -r` sees only copies."""
    folder = Path(folder).absolute()
    return folder.with_name(folder.name + ".rsnotify")


class FolderMirror:
    """Keeps a folder equal to the Source's resources; a `Handler`.

    Content is flushed before it is renamed into place, and the folders after it, before `apply`
    returns. So every resource of the state is on the disk.

    Args:
        folder: The root of the mirror; made if it does not exist.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        require("folder", folder, str | os.PathLike, "the path of a folder")
        self._root = Path(folder).absolute()
        self._tree: MirrorTree | None = None
        self._place = ""

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
        self._tree = MirrorTree(self._root, base)
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
                f"the mirror {self._root} cannot be {done}: {error.strerror}"
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
        path = self._tree.find(uri)
        return path if path.is_file() and not path.is_symlink() else None

    async def apply(self, changes: Sequence[Received]) -> None:
        """Write the files of changes durably."""
        await asyncio.to_thread(self.apply_blocking, changes)

    def apply_blocking(self, changes: Sequence[Received]) -> None:
        """Put each resource in its place, or remove it, durably.

        Raises:
            StorageError: The folder was removed, unmounted or replaced since `prepare`.
        """
        assert self._tree is not None, "prepare is called first"
        if self.place != self._place:
            raise StorageError(f"{self._root} is not there any more, or not the folder it was")
        touched: set[Path] = set()
        deleted = [change for change in changes if change.content is None]
        _flush_all(change.content for change in changes if change.content is not None)
        # First, since a file may have become a folder of the same name.
        for change in deleted:
            self._remove(self._tree.find(change.uri), touched)
        for change in changes:
            if change.content is not None:
                self._move(change.content, self._tree.find(change.uri), touched)
        if deleted:
            for source, target in self._tree.freed_paths():
                self._move(source, target, touched)
                self._remove_empty(source.parent, touched)
        _flush_all(folder for folder in touched if folder.exists())

    def _move(self, source: Path, target: Path, touched: set[Path]) -> None:
        self._make_folder(target.parent, touched)
        source.replace(target)
        touched.add(target.parent)

    def _make_folder(self, folder: Path, touched: set[Path]) -> None:
        if not folder.is_dir():
            self._make_folder(folder.parent, touched)
            folder.mkdir(exist_ok=True)
            touched.add(folder.parent)

    def _remove(self, path: Path, touched: set[Path]) -> None:
        # NotADirectoryError: a folder of the path is a file.
        with suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()
        touched.add(path.parent)
        self._remove_empty(path.parent, touched)

    def _remove_empty(self, folder: Path, touched: set[Path]) -> None:
        while folder != self._root:
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass  # it was never made, or removed with an earlier change
            except OSError:
                return  # not empty
            folder = folder.parent
            touched.add(folder)


def _flush_all(paths: Iterable[Path]) -> None:
    """Flush files and folders, several at once, so that the file system joins its own commits."""
    waiting = list(paths)
    if len(waiting) < 2:
        for path in waiting:
            flush(path)
        return
    list(_flushers(os.getpid()).map(flush, waiting))


@cache
def _flushers(process: int) -> ThreadPoolExecutor:
    """Return the threads that flush for all mirrors of a process; a forked one makes its own."""
    return ThreadPoolExecutor(_FLUSHES, "rsnotify-flush")
