"""The files of SQLite: what it flushes, and which connections are kept open.

SQLite writes by its own functions, which no Python code sees. So the function that opens a file is
replaced in its list of functions, and in what that returns the one that flushes a file.
"""

from __future__ import annotations

import ctypes
import sqlite3
from collections.abc import Callable
from typing import Any

from tests.harnesses.simulation.history import Wrong
from tests.harnesses.simulation.loop import current_machine

_SYNC = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
_OPEN = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
)
_CREATE, _MAIN, _WAL = 0x4, 0x100, 0x80000


class _Vfs(ctypes.Structure):
    """`sqlite3_vfs`, as far as it is used."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("size_of_file", ctypes.c_int),
        ("longest_path", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("open", ctypes.c_void_p),
    )


class _Methods(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_int),
        ("close", ctypes.c_void_p),
        ("read", ctypes.c_void_p),
        ("write", ctypes.c_void_p),
        ("truncate", ctypes.c_void_p),
        ("sync", ctypes.c_void_p),
        ("others", ctypes.c_void_p * 13),
    )


class _File(ctypes.Structure):
    _fields_ = (("methods", ctypes.POINTER(_Methods)),)


class FlushHook:
    """Calls a function instead of each flush of a file by SQLite.

    The function is called with the path, and with whether the name of the file is flushed too.
    """

    def __init__(self, on_flush: Callable[[str, bool], None]) -> None:
        self._on_flush = on_flush
        #: The path of each open file, and whether SQLite flushes the folder with it.
        self._files: dict[int, tuple[str, bool]] = {}
        self._methods: dict[int, _Methods] = {}
        library = ctypes.CDLL("libsqlite3.so.0")
        library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        vfs = library.sqlite3_vfs_find(None).contents
        self._really_open = _OPEN(vfs.open)
        self._open, self._sync = _OPEN(self._opened), _SYNC(self._synced)
        vfs.open = ctypes.cast(self._open, ctypes.c_void_p)

    def _opened(self, vfs: int, name: int | None, file: int, flags: int, out: int) -> int:
        result: int = self._really_open(vfs, name, file, flags, out)
        if result == 0 and name is not None and flags & (_MAIN | _WAL):
            self._files[file] = (
                ctypes.string_at(name).decode(),
                bool(flags & _CREATE and flags & _WAL),
            )
            opened = ctypes.cast(file, ctypes.POINTER(_File)).contents
            original = ctypes.addressof(opened.methods.contents)
            if original not in self._methods:
                methods = _Methods.from_buffer_copy(opened.methods.contents)
                methods.sync = ctypes.cast(self._sync, ctypes.c_void_p)
                self._methods[original] = methods
            opened.methods = ctypes.pointer(self._methods[original])
        return result

    def _synced(self, file: int, flags: int) -> int:
        path, with_name = self._files[file]
        self._files[file] = (path, False)
        try:
            self._on_flush(path, with_name)
        except Exception as error:  # SQLite would ignore it
            Wrong(f"{path} could not be flushed: {error!r}")
            return sqlite3.SQLITE_IOERR
        return 0


class KeptConnection(sqlite3.Connection):
    """A connection that is used again, while another one of the machine to the file is open.

    Otherwise most of the time of a seed would pass with reading the schema.
    """

    siblings: list[KeptConnection]
    is_idle = False

    def close(self) -> None:
        if self.in_transaction:
            self.rollback()
        self.is_idle = True
        if all(each.is_idle for each in self.siblings):
            for each in self.siblings:
                each.really_close()
            self.siblings.clear()

    def really_close(self) -> None:
        super().close()


_connect = sqlite3.connect


def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
    """Open a database, which is closed without a commit when the machine is killed."""
    machine = current_machine()
    if machine is None or "factory" in options:
        connection: sqlite3.Connection = _connect(*arguments, **options)
        if machine is not None:
            machine.on_kill.append(connection.close)
        return connection
    siblings = machine.databases.setdefault((str(arguments[0]), tuple(options)), [])
    for each in siblings:
        if each.is_idle:
            each.is_idle = False
            kept: sqlite3.Connection = each
            return kept
    opened = _connect(*arguments, factory=KeptConnection, **options)
    opened.siblings = siblings
    siblings.append(opened)
    machine.on_kill.append(opened.really_close)
    return opened
