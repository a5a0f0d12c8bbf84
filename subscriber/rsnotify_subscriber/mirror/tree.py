"""The paths of the resources of a mirror on disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from rsnotify.errors import StorageError
from rsnotify_subscriber.mirror.paths import FALLBACKS, MirrorLayout, PathNames

#: A path of folders that leaves enough of the longest path to any plain name, in characters.
_SHORT = 100
#: A file that is made for a moment. No resource has this name, see `MirrorLayout`.
PROBE = "@@rsnotify"


def ignores_case(folder: Path, *, probe: bool) -> bool:
    """Return whether `A` and `a` are the same name on the file system, or it is that of Windows.

    Args:
        folder: A folder of the file system.
        probe: Whether a file may be made in it for a moment if none shows the answer.
    """
    if os.name == "nt":
        return True
    paths = (folder, *folder.parents)
    both = (_exists_in_both_cases(path) for path in paths)
    above = next((found for found in both if found is not None), False)
    return above or _ignores_case_inside(folder, probe=probe)


def _ignores_case_inside(folder: Path, *, probe: bool) -> bool:
    """Examine the content, as another file system may be mounted at the folder."""
    try:
        for path in folder.iterdir():
            if (found := _exists_in_both_cases(path)) is not None:
                return found
        if not probe:
            return False
        made = folder / PROBE
        try:
            made.touch()
            return _exists_in_both_cases(made) is True
        finally:
            made.unlink(missing_ok=True)
    except OSError:
        return False  # the folder does not exist, or is read-only


def _exists_in_both_cases(path: Path) -> bool | None:
    """Return whether a path exists in both cases; None if it has no case, or does not exist."""
    name = path.name.swapcase()
    if name == path.name or not path.exists():
        return None
    swapped = path.with_name(name)
    return swapped.exists() and swapped.samefile(path)


class MirrorTree:
    """The paths of resources in a mirror, as they are on disk.

    A resource is at its fallback path if it exists there already, or if its natural path needs a
    directory where there is a file, or a file where there is a directory: the resources `a` and
    `a/b` may both exist.

    Args:
        root: The root of the mirror.
        base: The URI that the root stands for.
        probe: Whether a file may be made in the root for a moment, to find out whether the file
            system ignores case.
    """

    def __init__(self, root: Path, base: str, *, probe: bool = True) -> None:
        self.root = root.absolute()
        self._layout = MirrorLayout(base, portable=ignores_case(self.root, probe=probe))
        # Text, as objects for paths would take most of the time.
        self._root = str(self.root)
        self._fallbacks = os.path.join(self._root, FALLBACKS)

    def find(self, uri: str) -> str:
        """Return the path of a resource, whether it exists or not.

        Raises:
            StorageError: The path is behind a symbolic link.
        """
        mode = _mode(self._fallbacks)
        if mode is not None and stat.S_ISDIR(mode):
            fallback = self._fallback(uri)
            return fallback if os.path.lexists(fallback) else self._natural(uri) or fallback
        natural = self._natural(uri)
        if natural is None and mode is not None:
            raise StorageError(
                f"{self._fallbacks} is no folder of the copy, but a symbolic link or a file; "
                "remove it"
            )
        return natural or self._fallback(uri)

    def leftover(self, uri: str) -> str | None:
        """Return the fallback path of a resource that can be, or is, at its natural path."""
        return self._fallback(uri) if _is_folder(self._fallbacks) and self._natural(uri) else None

    def find_free(self, uri: str) -> str:
        """Return the path for a resource; remove an empty folder, which may be in its way."""
        path = self.find(uri)
        if os.path.dirname(path) != self._fallbacks or os.path.lexists(path):
            return path
        names = self._layout.natural(uri)
        if names is not None and (beside := self._path((*names[:-1], PROBE))) is not None:
            with suppress(OSError):  # it is not empty, or no folder
                os.rmdir(os.path.join(os.path.dirname(beside), names[-1]))
        return self.find(uri)

    def freed_paths(self) -> Iterator[tuple[str, str]]:
        """Yield (fallback, natural) paths of resources whose natural path has become free."""
        for name in os.listdir(self._fallbacks) if _is_folder(self._fallbacks) else ():
            uri = self._layout.uri_of_fallback(name)
            natural = None if uri is None else self._natural(uri)
            if natural is not None:
                yield os.path.join(self._fallbacks, name), natural

    def _fallback(self, uri: str) -> str:
        return os.path.join(self._root, *self._layout.fallback(uri))

    def _natural(self, uri: str) -> str | None:
        names = self._layout.natural(uri)
        return self._path(names) if names else None

    def _path(self, names: PathNames) -> str | None:
        """Return a path; None if a file or a symbolic link is in its way."""
        path = self._root
        exists = True
        for name in names[:-1]:
            path = f"{path}{os.sep}{name}"
            mode = _mode(path) if exists else None
            exists = mode is not None
            if mode is not None and not stat.S_ISDIR(mode):  # a symbolic link may lead anywhere
                return None
        path = f"{path}{os.sep}{names[-1]}"
        mode = _mode(path) if exists else None
        return path if mode is None or not stat.S_ISDIR(mode) else None

    def files(self) -> Iterator[Path]:
        return map(Path, self.paths())

    def paths(self) -> Iterator[str]:
        """Yield the path of everything that is not a folder; one that is removed is left out."""
        folders = [self._root]
        while folders:
            with (
                suppress(FileNotFoundError, NotADirectoryError),
                os.scandir(folders.pop()) as found,
            ):
                for entry in found:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        yield entry.path

    def find_files(self, uris: Iterable[str]) -> Iterator[tuple[str, os.stat_result | None]]:
        """Yield the path of each resource, and the status of its file; None if there is no file.

        URIs in their order take one `stat` each, as those of one folder follow each other.
        """
        leftovers: set[str] = set()
        if _is_folder(self._fallbacks):
            with suppress(FileNotFoundError):  # its last file was just removed
                leftovers.update(os.listdir(self._fallbacks))
        above, folder = "", None
        for uri in uris:
            parent, _, name = uri.rpartition("/")
            if parent != above:
                above, folder = parent, self._folder_of(parent)
            found = None
            is_fallback = bool(leftovers) and self._layout.fallback(uri)[1] in leftovers
            if folder is not None and not is_fallback and self._layout.is_plain(name):
                path = f"{folder}{os.sep}{name}"
                found = _file(path)
            if found is None:
                try:
                    path = self.find(uri)
                except StorageError:  # its folder is a symbolic link
                    path = self._fallback(uri)
                found = _file(path)
            yield path, found

    def _folder_of(self, parent: str) -> str | None:
        """Return the folder of the resources below a URI, if it exists."""
        names = self._layout.natural(f"{parent}/")
        if names is None or sum(map(len, names)) > _SHORT:
            return None
        path = self._path((*names[:-1], PROBE))
        if path is None:
            return None
        folder = os.path.dirname(path)
        return folder if _is_folder(folder) else None


def _is_folder(path: str) -> bool:
    """Return whether a path is a folder, and not a symbolic link to one."""
    mode = _mode(path)
    return mode is not None and stat.S_ISDIR(mode)


def _file(path: str) -> os.stat_result | None:
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _mode(path: str) -> int | None:
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return None
