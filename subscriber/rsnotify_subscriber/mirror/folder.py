"""A folder that mirrors a set of resources: the handler that ships with rsnotify.

The mapping from URIs to paths is injective and stays inside the root. A URI below the base keeps
its path, percent-decoded: `a%20b.ttl` becomes `a b.ttl`. This is injective because only one
spelling of each name is decoded: the one in which every character that may appear raw in a path
segment (RFC 3986, pchar) is raw, and every other is percent-encoded in upper case. Any other
segment (`..`, an empty one, `%2F`, `%41`) is percent-encoded once more as it is written, and
prefixed with `@@`, with which no decoded name begins:

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
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from urllib.parse import quote, unquote, unquote_to_bytes

from msgspec import Struct

from rsnotify.errors import ConfigurationError, StorageError
from rsnotify.runtime.arguments import require
from rsnotify.runtime.reasons import reason_of
from rsnotify.runtime.state_folders import flush, make_durably
from rsnotify_subscriber.handlers import Received

_MARK = "@@"
_PCHAR = "!$&'()*+,;=:@"  # in addition to the unreserved characters, which `quote` never encodes
_ELSEWHERE = re.compile(r"(https?)://([^/?#]+)/(.*)", re.DOTALL)
#: The folder of resources that cannot be at their natural paths. No other name is equal to it.
FALLBACKS = _MARK + "@"
#: The longest name and path in bytes that file systems allow, minus a margin for the root.
_NAME_BYTES = 240
_PATH_BYTES = 800
#: Segments that serve as names unchanged, as nearly all do.
_PLAIN = re.compile(r"(?!\.{1,2}\Z|@@)[A-Za-z0-9_.~!$&'()*+,;=:@-]++")
_HARMLESS = re.compile(r"[a-z0-9 !#$&'()+,;=@_.-]*[a-z0-9!#$&'()+,;=@_-]")
_DEVICE = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9])(?:[ .].*)?")

#: A path below the root, as the names that lead to it.
PathNames = tuple[str, ...]


class MirrorLayout(Struct, frozen=True):
    """The mapping from URIs to paths.

    Args:
        base: The URI, ending in `/`, that the root stands for.
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
        fits = max(sizes) <= _NAME_BYTES and sum(sizes) + len(sizes) <= _PATH_BYTES
        return names if fits else None

    def fallback(self, uri: str) -> PathNames:
        """Return the path of a resource whose natural path cannot be used."""
        name = _escaped(uri, self.portable)
        if len(name) > _NAME_BYTES or "://" not in uri:
            name = "@" + sha256(uri.encode("utf-8", "surrogatepass")).hexdigest()
        return (FALLBACKS, name)

    @staticmethod
    def uri_of_fallback(name: str) -> str | None:
        """Return the URI whose fallback path has this name, or None if the name is a digest."""
        return None if name.startswith("@") else unquote(name, errors="strict")

    def is_plain(self, name: str) -> bool:
        """Return whether the last segment of a URI is the name of its file, unchanged."""
        return (
            _PLAIN.fullmatch(name) is not None
            and len(name) <= _NAME_BYTES
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


#: The longest path of folders, in characters, to which any plain name can be added.
_SHORT = 100
#: Number of bytes of a file read at once.
_PIECE = 1 << 20
#: The name of a short-lived test file. No resource has this name; see `MirrorLayout`.
PROBE = "@@rsnotify"


def ignores_case(folder: Path, *, probe: bool) -> bool:
    """Return whether `A` and `a` are the same name in a folder, or the system is Windows.

    `probe` allows a temporary file to be made in the folder if no existing file shows the answer.
    """
    if os.name == "nt":
        return True
    paths = (folder, *folder.parents)
    both = (_exists_in_both_cases(path) for path in paths)
    above = next((found for found in both if found is not None), False)
    return above or _ignores_case_inside(folder, probe=probe)


def _ignores_case_inside(folder: Path, *, probe: bool) -> bool:
    """Examine the folder's content, because another file system may be mounted there."""
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
    """Return whether a path exists in both cases, or None if it has no case or is missing."""
    name = path.name.swapcase()
    if name == path.name or not path.exists():
        return None
    swapped = path.with_name(name)
    return swapped.exists() and swapped.samefile(path)


class MirrorTree:
    """The paths of resources in a mirror, as they are on disk.

    A resource is at its fallback path if it exists there already, or if its natural path needs a
    directory where there is a file, or a file where there is a directory. The resources `a` and
    `a/b` may both exist.

    `base` is the URI that the root stands for. `probe` is as for `ignores_case`.
    """

    def __init__(self, root: Path, base: str, *, probe: bool = True) -> None:
        self.root = root.absolute()
        self._layout = MirrorLayout(base, portable=ignores_case(self.root, probe=probe))
        # Strings, because path objects would take most of the time.
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
                f"{self._fallbacks} is not a folder of the copy, but a symbolic link or a file; "
                "remove it"
            )
        return natural or self._fallback(uri)

    def leftover(self, uri: str) -> str | None:
        """Return the fallback path of a resource that can be, or is, at its natural path."""
        return self._fallback(uri) if _is_folder(self._fallbacks) and self._natural(uri) else None

    def find_free(self, uri: str) -> str:
        """Return a free path for a resource, removing an empty folder that is in its way."""
        path = self.find(uri)
        if os.path.dirname(path) != self._fallbacks or os.path.lexists(path):
            return path
        names = self._layout.natural(uri)
        if names is not None and (beside := self._path((*names[:-1], PROBE))) is not None:
            with suppress(OSError):  # it is not empty, or not a folder
                os.rmdir(os.path.join(os.path.dirname(beside), names[-1]))
        return self.find(uri)

    def plain_paths(self) -> PlainPaths:
        """Return the paths that need no search. For one batch only: they cache the disk's state."""
        return PlainPaths(self._layout, self._root, self._fallbacks)

    def freed_paths(self) -> Iterator[tuple[str, str]]:
        """Yield (fallback, natural) paths of the resources whose natural path has become free."""
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
        """Yield the path of everything that is not a folder. Skip concurrently removed entries."""
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
        """Yield each resource's path and the status of its file, which is None without a file.

        If the URIs are sorted, each takes one `stat`, because URIs in the same folder are adjacent.
        """
        leftovers: set[str] = set()
        if _is_folder(self._fallbacks):
            with suppress(FileNotFoundError):  # its last file has just been removed
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


class PlainPaths:
    """The paths of resources in existing folders, under the same names as in their URIs.

    Successive URIs in the same folder need no `stat` each. There is no check for a folder that has
    a resource's name, because the system refuses to replace it with a file.
    """

    #: The folder of the last path that was found.
    folder: str | None = None

    def __init__(self, layout: MirrorLayout, root: str, fallbacks: str) -> None:
        self._layout = layout
        self._root = root
        self._above = ""
        # Checked only here: a batch makes fallbacks just for its own resources, each once.
        self._has_fallbacks = _mode(fallbacks) is not None

    def note(self, path: str) -> None:
        """Record a path that was found elsewhere: folders may have been made or removed for it."""
        if os.path.dirname(path) != self.folder:
            self._above, self.folder = "", None

    def find(self, uri: str) -> str | None:
        """Return the path, or None if `MirrorTree.find_free` must find it."""
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
        if not above.startswith(base) or len(above) - len(base) > _SHORT:
            return None
        for name in above[len(base) :].split("/"):
            path = f"{path}{os.sep}{name}"
            if not self._layout.is_plain(name) or not _is_folder(path):
                return None
        return path


def _is_folder(path: str) -> bool:
    """Return whether a path is a folder, rather than a symbolic link to one."""
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
    # Most files are small, and allocating a large buffer takes longer than reading them.
    most = min(_PIECE, size + 1)
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(most):
            yield piece


def _mode(path: str) -> int | None:
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return None


#: Maximum number of files flushed at once by all mirrors of a process.
_FLUSHES = 8
#: Minimum number of paths per thread if nothing waits for the flush. With fewer, the flush would
#: end sooner, but delay concurrent commits by a few milliseconds.
_MOST_ALONE = 256


def default_state(folder: str | os.PathLike[str]) -> Path:
    """Return the state folder of a mirror: next to it, so that `diff -r` sees only copies."""
    folder = Path(folder).absolute()
    return folder.with_name(folder.name + ".rsnotify")


class FolderMirror:
    """Keeps a folder equal to the Source's resources. Implements `DeferredHandler`.

    `apply` flushes content before it renames it into place, and flushes the folders afterwards. A
    subscriber flushes small content later, several files at once, and keeps it in the state until
    then. Every resource of the state is therefore on disk, or is restored to disk when the state is
    next opened.

    Args:
        folder: The root of the mirror, made if it does not exist.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        require("folder", folder, str | os.PathLike, "the path of a folder")
        self._root = Path(folder).absolute()
        self._prepared: MirrorTree | None = None
        self._place = ""
        self._top = str(self._root)
        #: Held while the paths below are read or written.
        self._lock = Lock()
        self._unflushed = _TouchedPaths()
        #: Held during a flush, so that a concurrent `flush` returns only after it.
        self._flushing = Lock()
        self._flush_failed = False

    def prepare(self, base: str, temporary: Path) -> None:
        """Prepare the folder for a set of resources. Called once, before the first `apply`.

        Args:
            base: The URI that the root stands for.
            temporary: The folder from which content is renamed into the mirror.

        Raises:
            ConfigurationError: The folder cannot be made or written, or is on another file system
                than `temporary`.
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
        """Make the folder and a temporary file in it, to reject an unusable folder at once."""
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
    def _tree(self) -> MirrorTree:
        assert self._prepared is not None, "prepare is called first"
        return self._prepared

    @property
    def place(self) -> str:
        """The device and inode of the folder, or an empty string if it does not exist."""
        try:
            found = self._root.stat()
        except OSError:
            return ""
        return f"{found.st_dev}:{found.st_ino}"

    def held_content(self, uri: str) -> Path | None:
        """Return the file of a resource, if there is one."""
        path = Path(self._tree.find(uri))
        return path if path.is_file() and not path.is_symlink() else None

    def find_files(self, uris: Sequence[str]) -> Iterator[tuple[str, os.stat_result | None]]:
        """Yield each resource's path and the status of its file, which is None without a file."""
        return self._tree.find_files(uris)

    def paths(self) -> Iterator[str]:
        """Yield the paths of all files of the folder."""
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
        """Do the same as `apply`, but leave it to the next `flush` to make the result durable."""
        self._put(changes, flushed=False)

    def apply_again(self, changes: Sequence[Received]) -> None:
        """Apply durably all changes that may have been applied but not flushed before a crash."""
        for change in changes:
            # The resource was moved between its two paths, and may be at both.
            if (leftover := self._tree.leftover(change.uri)) is not None:
                self._remove(leftover, self._unflushed)
        self._put(changes, flushed=False)
        for folder in list(self._unflushed.folders):  # the crash may have come after `mkdir`
            while folder != self._top:
                folder = os.path.dirname(folder)
                self._unflushed.folders.add(folder)
        self._flush()

    def remove_files(self, names: Iterable[str]) -> None:
        """Durably remove files that are not part of the copy, and the folders this leaves empty.

        Args:
            names: Paths relative to the folder. Anything behind a symbolic link stays.
        """
        touched = _TouchedPaths()
        for name in names:
            path = self._root / name
            if path.parent.resolve() == self._root.resolve() / Path(name).parent:
                self._remove(str(path), touched)
        _flush_all(touched.folders)

    def flush(self) -> None:
        """Flush everything that was put or removed before. May be called in another thread.

        Raises:
            StorageError: This flush or an earlier one failed. A later flush would not reveal what
                was lost.
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
        """Put each resource in its place, or remove it. If `flushed`, the contents already are."""
        if self.place != self._place:
            raise StorageError(f"{self._root} is not there any more, or not the folder it was")
        touched, freed = _TouchedPaths(), False
        try:
            deleted = [change for change in changes if change.content is None]
            # Deletions come first, since a file may have become a folder of the same name.
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
            self._flush()  # the state does not have their content

    def _place_content(
        self, uri: str, source: str, plain: PlainPaths, touched: _TouchedPaths
    ) -> str:
        """Rename a file to the path of a resource, and return that path."""
        target = plain.find(uri)
        if target is not None and plain.folder is not None:
            with suppress(OSError):  # a folder is in its place, or its folder was removed
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
        # NotADirectoryError: a folder on the path is a file.
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
                pass  # it was never made, or an earlier change removed it
            except OSError:
                return  # not empty
            folder = os.path.dirname(folder)
            touched.folders.add(folder)


class _TouchedPaths:
    """The files that were put in place, and the folders whose entries changed."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.folders: set[str] = set()


def _flush_all(paths: Iterable[str], alone: int = 1) -> None:
    """Flush files and folders, several at once, so that the file system can merge its own commits.

    Skips paths that no longer exist. One thread flushes up to `alone` paths by itself.
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
    """Return the threads that flush for all mirrors of a process. A forked process has its own."""
    return ThreadPoolExecutor(_FLUSHES, "rsnotify-flush")
