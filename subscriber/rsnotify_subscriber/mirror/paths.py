"""The paths of resources in a mirror.

`MirrorLayout` maps URIs to paths. The mapping is injective and never leaves the root. A URI below
the base keeps its path, percent-decoded: `a%20b.ttl` becomes `a b.ttl`. To be injective, it decodes
only one spelling of each name: the one that percent-encodes, in upper case, exactly the characters
that must not be raw in a path segment (RFC 3986, pchar). Any other segment (`..`, an empty one,
`%2F`, `%41`) is percent-encoded again and prefixed with `@@`, with which no decoded name begins:

    data/a%20b.ttl      a b.ttl                 below the base http://example.com/data/
    data/a/             a/@@
    data/%2e%2e/b       @@%252e%252e/b
    http://other/x      @@http/other/x          not below the base
    too long            @@@/@<sha-256>
    in the way          @@@/<escaped URI>       of a directory: `a`, where there is `a/b`

On Windows, and on file systems that ignore case, a name is decoded only if it consists of
lower-case letters and other harmless characters, and is not a device name.

`MirrorTree` finds the paths on disk, where a file, a folder or a symbolic link may be in the way.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote, unquote, unquote_to_bytes

from msgspec import Struct

from rsnotify.errors import StorageError

_MARK = "@@"
_PCHAR = "!$&'()*+,;=:@"  # in addition to the unreserved characters, which `quote` never encodes
_ELSEWHERE = re.compile(r"(https?)://([^/?#]+)/(.*)", re.DOTALL)
#: The folder for resources that cannot be at their natural paths. No other name equals this one.
FALLBACKS = _MARK + "@"
#: Maximum number of bytes of a name and of a path, with a margin for the root.
_MAX_NAME_BYTES, _MAX_PATH_BYTES = 240, 800
#: Segments that are used as names unchanged. Nearly all are.
_PLAIN = re.compile(r"(?!\.{1,2}\Z|@@)[A-Za-z0-9_.~!$&'()*+,;=:@-]++")
_HARMLESS = re.compile(r"[a-z0-9 !#$&'()+,;=@_.-]*[a-z0-9!#$&'()+,;=@_-]")
_DEVICE = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9])(?:[ .].*)?")

#: A path below the root, as a sequence of names.
PathNames = tuple[str, ...]


class MirrorLayout(Struct, frozen=True):
    """The mapping from URIs to paths.

    Args:
        base: The URI, ending in `/`, that corresponds to the root.
        portable: Whether names must differ in more than case, and be valid on Windows.
    """

    base: str
    portable: bool = False

    def natural(self, uri: str) -> PathNames | None:
        """Return the path of a resource, or None if it would be too long."""
        if uri.startswith(self.base):
            names = self._names(uri.removeprefix(self.base))
        else:
            match = _ELSEWHERE.fullmatch(uri)
            if match is None:
                return None
            scheme, host, path = match.groups()
            names = (_MARK + scheme, self._name(host), *self._names(path))
        sizes = [len(name.encode()) for name in names]
        fits = max(sizes) <= _MAX_NAME_BYTES and sum(sizes) + len(sizes) <= _MAX_PATH_BYTES
        return names if fits else None

    def fallback(self, uri: str) -> PathNames:
        """Return the path for a resource whose natural path cannot be used."""
        name = _escaped(uri, self.portable)
        if len(name) > _MAX_NAME_BYTES or "://" not in uri:
            name = "@" + sha256(uri.encode("utf-8", "surrogatepass")).hexdigest()
        return (FALLBACKS, name)

    @staticmethod
    def uri_of_fallback(name: str) -> str | None:
        """Return the URI with a fallback path of this name, or None if the name is a digest."""
        return None if name.startswith("@") else unquote(name, errors="strict")

    def is_plain(self, name: str) -> bool:
        """Return whether the last segment of a URI is used as the name of its file, unchanged."""
        return (
            _PLAIN.fullmatch(name) is not None
            and len(name) <= _MAX_NAME_BYTES
            and (not self.portable or _is_portable(name))
        )

    def _names(self, path: str) -> PathNames:
        return tuple(self._name(segment) for segment in path.split("/"))

    def _name(self, segment: str) -> str:
        name = _decoded(segment)
        if name is not None and (not self.portable or _is_portable(name)):
            return name
        return _MARK + _escaped(segment, self.portable)


def _decoded(segment: str) -> str | None:
    """Decode a segment if it is the canonical spelling of a name that all file systems allow."""
    if _PLAIN.fullmatch(segment):
        return segment
    try:
        name = unquote_to_bytes(segment).decode()
    except UnicodeError:
        return None
    if name in ("", ".", "..") or name.startswith(_MARK) or "/" in name or "\0" in name:
        return None
    return name if quote(name, safe=_PCHAR) == segment else None


def _is_portable(name: str) -> bool:
    return _HARMLESS.fullmatch(name) is not None and _DEVICE.fullmatch(name) is None


def _escaped(segment: str, portable: bool) -> str:
    data = segment.encode("utf-8", "surrogatepass")
    if portable:
        return re.sub(rb"[^a-z0-9_-]", lambda m: b"%%%02x" % m.group()[0], data).decode()
    return quote(data, safe="")


#: Maximum number of characters of a folder's path to which every plain name can be added.
_SHORT_PATH_LENGTH = 100
#: Maximum number of bytes of a file to read at once.
_MAX_PIECE_BYTES = 1 << 20
#: The name of a temporary test file, which no resource has.
PROBE = "@@rsnotify"


def ignores_case(folder: Path, *, probe: bool) -> bool:
    """Return whether `A` and `a` are the same name in a folder, or the system is Windows.

    With `probe`, creates a temporary file in the folder if no existing file gives the answer.
    """
    if os.name == "nt":
        return True
    paths = (folder, *folder.parents)
    both = (_exists_in_both_cases(path) for path in paths)
    above = next((found for found in both if found is not None), False)
    return above or _ignores_case_inside(folder, probe=probe)


def _ignores_case_inside(folder: Path, *, probe: bool) -> bool:
    """Examine what is in the folder, because it may be a mount point."""
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
    """Return whether a path exists in both cases, or None if it has no case or does not exist."""
    name = path.name.swapcase()
    if name == path.name or not path.exists():
        return None
    swapped = path.with_name(name)
    return swapped.exists() and swapped.samefile(path)


class MirrorTree:
    """The paths of resources on disk.

    A resource is at its fallback path if it already exists there, or if a file or folder is in the
    way of its natural path, because the resources `a` and `a/b` may both exist.

    `base` is the URI that corresponds to the root. `probe` is as in `ignores_case`.
    """

    def __init__(self, root: Path, base: str, *, probe: bool = True) -> None:
        self.root = root.absolute()
        self._layout = MirrorLayout(base, portable=ignores_case(self.root, probe=probe))
        # Strings, because `Path` objects are too slow.
        self._root = str(self.root)
        self._fallbacks = os.path.join(self._root, FALLBACKS)

    def find(self, uri: str) -> str:
        """Return the path of a resource, whether or not it exists.

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
                f"{self._fallbacks} is a symbolic link or a file instead of a folder; remove it"
            )
        return natural or self._fallback(uri)

    def leftover(self, uri: str) -> str | None:
        """Return the fallback path of a resource that can be at its natural path, or None."""
        return self._fallback(uri) if _is_folder(self._fallbacks) and self._natural(uri) else None

    def find_free(self, uri: str) -> str:
        """Return a free path for a resource. Remove an empty folder that is in its way."""
        path = self.find(uri)
        if os.path.dirname(path) != self._fallbacks or os.path.lexists(path):
            return path
        names = self._layout.natural(uri)
        if names is not None and (beside := self._path((*names[:-1], PROBE))) is not None:
            with suppress(OSError):  # not an empty folder
                os.rmdir(os.path.join(os.path.dirname(beside), names[-1]))
        return self.find(uri)

    def plain_paths(self) -> PlainPaths:
        """Return a finder for simple paths. It caches the folders, so use it for one batch only."""
        return PlainPaths(self._layout, self._root, self._fallbacks)

    def freed_paths(self) -> Iterator[tuple[str, str]]:
        """Yield the fallback and the natural path of each resource whose natural path is free."""
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
        """Return a path, or None if a file or symbolic link is in its way."""
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

    def paths(self) -> Iterator[str]:
        """Yield the paths of everything but folders. Entries removed meanwhile are skipped."""
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
        """Yield the path of each resource, and the `stat` result of its file, or None if missing.

        For sorted URIs, this needs only one `stat` each.
        """
        leftovers: set[str] = set()
        if _is_folder(self._fallbacks):
            with suppress(FileNotFoundError):  # the folder was just removed
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
        if names is None or sum(map(len, names)) > _SHORT_PATH_LENGTH:
            return None
        path = self._path((*names[:-1], PROBE))
        if path is None:
            return None
        folder = os.path.dirname(path)
        return folder if _is_folder(folder) else None


class PlainPaths:
    """Finds the paths of resources with plain names in existing folders.

    Consecutive URIs in the same folder need no `stat`. A folder with the name of a resource is not
    detected, because the system refuses to replace it with a file.
    """

    #: The folder of the last path.
    folder: str | None = None

    def __init__(self, layout: MirrorLayout, root: str, fallbacks: str) -> None:
        self._layout = layout
        self._root = root
        self._above = ""
        # Fallbacks that the batch itself creates are for its other resources.
        self._has_fallbacks = _mode(fallbacks) is not None

    def invalidate(self, path: str) -> None:
        """Forget the folder after other code found a path, creating or removing folders."""
        if os.path.dirname(path) != self.folder:
            self._above, self.folder = "", None

    def find(self, uri: str) -> str | None:
        """Return the path of a resource, or None if `MirrorTree.find_free` must find it."""
        above, _, name = uri.rpartition("/")
        if above != self._above:
            self._above, self.folder = above, None if self._has_fallbacks else self._folder(above)
        if self.folder is None or not self._layout.is_plain(name):
            return None
        return f"{self.folder}{os.sep}{name}"

    def _folder(self, above: str) -> str | None:
        path, base = self._root, self._layout.base
        if f"{above}/" == base:
            return path
        if not above.startswith(base) or len(above) - len(base) > _SHORT_PATH_LENGTH:
            return None
        for name in above[len(base) :].split("/"):
            path = f"{path}{os.sep}{name}"
            if not self._layout.is_plain(name) or not _is_folder(path):
                return None
        return path


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


def pieces_of(path: str, size: int) -> Iterator[bytes]:
    """Yield the content of a file in pieces, given its last known size."""
    # For most files, allocating a large buffer would take longer than reading.
    most = min(_MAX_PIECE_BYTES, size + 1)
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(most):
            yield piece


def _mode(path: str) -> int | None:
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return None
