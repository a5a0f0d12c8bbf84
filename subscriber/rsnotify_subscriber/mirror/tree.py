"""The paths of the resources of a mirror on disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from rsnotify.errors import StorageError
from rsnotify_subscriber.mirror.paths import FALLBACKS, MirrorLayout, PathNames

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
        for folder, _, names in os.walk(self.root):
            for name in names:
                yield Path(folder, name)


def _is_folder(path: str) -> bool:
    """Return whether a path is a folder, and not a symbolic link to one."""
    mode = _mode(path)
    return mode is not None and stat.S_ISDIR(mode)


def _mode(path: str) -> int | None:
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return None
