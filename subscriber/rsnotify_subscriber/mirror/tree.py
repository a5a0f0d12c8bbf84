"""The paths of the resources of a mirror on disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile

from rsnotify.errors import StorageError
from rsnotify_subscriber.mirror.paths import FALLBACKS, MirrorLayout, PathNames


def ignores_case(folder: Path) -> bool:
    """Return whether `A` and `a` are the same name on the file system, or it is that of Windows."""
    if os.name == "nt":
        return True
    paths = (folder, *folder.parents)
    both = (_exists_in_both_cases(path) for path in paths)
    above = next((found for found in both if found is not None), False)
    return above or _ignores_case_inside(folder)


def _ignores_case_inside(folder: Path) -> bool:
    """Examine the content, as another file system may be mounted at the folder."""
    try:
        for path in folder.iterdir():
            if (found := _exists_in_both_cases(path)) is not None:
                return found
        with NamedTemporaryFile(dir=folder, prefix="rsnotify-") as file:
            return _exists_in_both_cases(Path(file.name)) is True
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
    """

    def __init__(self, root: Path, base: str) -> None:
        self.root = root.absolute()
        self._layout = MirrorLayout(base, portable=ignores_case(self.root))

    def find(self, uri: str) -> Path:
        """Return the path of a resource, whether it exists or not.

        Raises:
            StorageError: The path is behind a symbolic link.
        """
        fallback = self.root.joinpath(*self._layout.fallback(uri))
        has_fallbacks = _is_folder(fallback.parent)
        if has_fallbacks and os.path.lexists(fallback):
            return fallback
        natural = self._natural(uri)
        if natural is None and not has_fallbacks and os.path.lexists(fallback.parent):
            raise StorageError(
                f"{fallback.parent} is no folder of the copy, but a symbolic link or a file; "
                "remove it"
            )
        return natural or fallback

    def freed_paths(self) -> Iterator[tuple[Path, Path]]:
        """Yield (fallback, natural) paths of resources whose natural path has become free."""
        folder = self.root / FALLBACKS
        for name in os.listdir(folder) if _is_folder(folder) else ():
            uri = self._layout.uri_of_fallback(name)
            natural = None if uri is None else self._natural(uri)
            if natural is not None:
                yield folder / name, natural

    def _natural(self, uri: str) -> Path | None:
        names = self._layout.natural(uri)
        return self.root.joinpath(*names) if names and self._is_free(names) else None

    def _is_free(self, names: PathNames) -> bool:
        path = self.root
        for name in names[:-1]:
            path = path / name
            mode = _mode(path)
            if mode is None:
                return True
            if not stat.S_ISDIR(mode):  # nor a symbolic link, which may lead anywhere
                return False
        mode = _mode(path / names[-1])
        return mode is None or not stat.S_ISDIR(mode)

    def files(self) -> Iterator[Path]:
        for folder, _, names in os.walk(self.root):
            for name in names:
                yield Path(folder, name)


def _is_folder(path: Path) -> bool:
    """Return whether a path is a folder, and not a symbolic link to one."""
    mode = _mode(path)
    return mode is not None and stat.S_ISDIR(mode)


def _mode(path: Path) -> int | None:
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return None
