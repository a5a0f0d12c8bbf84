"""The machine on which a traced program ran: its descriptors, its disk, and what it sent."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.harnesses.power_cuts.disk import Disk, File, Folder, Node
from tests.harnesses.power_cuts.trace import Call, Moment, moments

_PORT = re.compile(r"sin_port=htons\((\d+)\)")
#: The stream of a connection whose other end is not known yet.
_ACCEPTED = "accepted"
_SENDS = frozenset({"write", "writev", "sendto", "sendmsg"})
_FLUSHES = frozenset({"fsync", "fdatasync"})
_FORKS = frozenset({"clone", "clone3", "fork", "vfork"})
#: Calls that change the disk only if they are of its files, and are then not understood.
_STRANGE = frozenset(
    (
        *("pwritev", "pwritev2", "sendfile", "copy_file_range", "splice", "fallocate", "sendmmsg"),
        *("symlink", "symlinkat", "sync", "syncfs", "msync", "truncate"),
    )
)


@dataclass(eq=False)
class Description:
    """An open file, folder or connection. Several descriptors may be of the same."""

    node: Node | None
    path: str = ""
    stream: str = ""
    position: int = 0
    appends: bool = False


@dataclass
class _Process:
    files: dict[int, Description] = field(default_factory=dict)
    folder: str = "/"


class Machine:
    """Follows the calls of a program.

    Args:
        root: The folder of the disk; what the program does elsewhere does not matter.
        sent: Called with the name of a stream and what the program begins to send there: `stdout`,
            or the port of the other end of a connection that was accepted, or another name.
    """

    def __init__(
        self, root: Path, calls: Sequence[Call], sent: Callable[[str, bytes], None]
    ) -> None:
        self.disk = Disk()
        self._root = str(root)
        self._calls = calls
        self._sent = sent
        self._forks = {
            call.result: call for call in calls if call.name in _FORKS and call.result > 0
        }
        self._processes: dict[int, _Process] = {}
        #: By call that has begun, the number of its begin, and what it flushes.
        self._flushing: dict[Call, tuple[Node, int]] = {}

    def run(self) -> Iterator[Moment]:
        """Yield after each change of the disk, and each time that something begins to be sent."""
        for moment in moments(self._calls):
            step = self._end if moment.is_end else self._begin
            if step(moment.call):
                yield moment

    def _process(self, thread: int) -> _Process:
        found = self._processes.get(thread)
        if found is None:
            found = _Process({1: Description(None, stream="stdout")})
            if (fork := self._forks.get(thread)) is not None:
                parent = self._process(fork.thread)
                shared = "CLONE_FILES" in fork.arguments
                found = parent if shared else _Process(dict(parent.files), parent.folder)
            self._processes[thread] = found
        return found

    def _opened(self, call: Call, index: int = 0) -> Description | None:
        return self._process(call.thread).files.get(call.number(index))

    def _begin(self, call: Call) -> bool:
        if call.name == "close":
            self._process(call.thread).files.pop(call.number(0), None)
        elif call.name in _SENDS:
            opened = self._opened(call)
            if opened is not None and opened.node is None:
                self._sent(opened.stream, b"".join(call.texts()[: _buffers(call)])[: call.result])
                return True
        elif call.name in _FLUSHES:
            opened = self._opened(call)
            if opened is not None and opened.node is not None:
                self._flushing[call] = opened.node, self.disk.tick()
        return False

    def _end(self, call: Call) -> bool:
        if call in self._flushing:
            self.disk.flush(*self._flushing.pop(call))
            return True
        if call.name in _STRANGE:
            self._refuse_strange(call)
            return False
        act = getattr(self, f"_{call.name}", None)
        return act is not None and bool(act(call))

    def _refuse_strange(self, call: Call) -> None:
        described = [self._process(call.thread).files.get(int(d)) for d in _numbers(call)]
        inside = any(one is not None and one.node is not None for one in described)
        if inside or any(self._root in os.fsdecode(text) for text in call.texts()):
            raise NotImplementedError(f"the disk does not understand {call.name}({call.arguments})")

    # Paths

    def _absolute(self, call: Call, text: bytes, folder: str | None = None) -> str:
        """Return a path; `folder` is the argument with the descriptor to which it is relative."""
        process = self._process(call.thread)
        above = process.folder
        if folder is not None and folder != "AT_FDCWD":
            opened = process.files.get(int(folder))
            above = opened.path if opened is not None else "/unknown"
        return os.path.normpath(os.path.join(above, os.fsdecode(text)))

    def _inside(self, path: str) -> tuple[str, ...] | None:
        """Return the names that lead from the root to a path; None if it is elsewhere."""
        if path == self._root:
            return ()
        if not path.startswith(self._root + "/"):
            return None
        return tuple(path[len(self._root) + 1 :].split("/"))

    # Descriptors

    def _openat(self, call: Call) -> bool:
        return self._open_at(call, self._absolute(call, call.texts()[0], call.argument(0)), 2)

    def _open(self, call: Call) -> bool:
        return self._open_at(call, self._absolute(call, call.texts()[0]), 1)

    def _open_at(self, call: Call, path: str, flags_at: int) -> bool:
        names, flags = self._inside(path), call.argument(flags_at)
        files = self._process(call.thread).files
        if names is None:
            # A pipe or a terminal would be a stream, but none of ours is opened by name.
            files[call.result] = Description(None, path=path, stream=f"file {path}")
            return False
        if "SYNC" in flags.replace("O_ASYNC", ""):
            raise NotImplementedError(f"the disk does not understand {flags}")
        node: Node | None = File() if "O_TMPFILE" in flags else self.disk.find(names)
        changed = False
        if node is None:
            assert "O_CREAT" in flags, f"{path} is opened, and was never made"
            node = File()
            self.disk.name((names, node))
            changed = True
        elif isinstance(node, File) and "O_TRUNC" in flags and node.size:
            self.disk.resize(node, 0)
            changed = True
        files[call.result] = Description(node, path, appends="O_APPEND" in flags)
        return changed

    def _socket(self, call: Call) -> None:
        stream = f"socket {call.end}"
        self._process(call.thread).files[call.result] = Description(None, stream=stream)

    def _accept4(self, call: Call) -> None:
        opened = self._process(call.thread).files[call.result] = Description(None, stream=_ACCEPTED)
        self._name_stream(opened, call)

    _accept = _accept4

    def _getpeername(self, call: Call) -> None:
        if (opened := self._opened(call)) is not None and opened.stream == _ACCEPTED:
            self._name_stream(opened, call)

    def _name_stream(self, opened: Description, call: Call) -> None:
        if (port := _PORT.search(call.arguments)) is not None:
            opened.stream = port[1]

    def _dup(self, call: Call) -> None:
        if (opened := self._opened(call)) is not None:
            self._process(call.thread).files[call.result] = opened

    _dup2 = _dup3 = _dup

    def _fcntl(self, call: Call) -> None:
        if "F_DUPFD" in call.arguments:
            self._dup(call)

    def _lseek(self, call: Call) -> None:
        if (opened := self._opened(call)) is not None:
            opened.position = call.result

    def _chdir(self, call: Call) -> None:
        self._process(call.thread).folder = self._absolute(call, call.texts()[0])

    def _fchdir(self, call: Call) -> None:
        if (opened := self._opened(call)) is not None:
            self._process(call.thread).folder = opened.path

    def _mmap(self, call: Call) -> None:
        if "MAP_SHARED" in call.arguments and "PROT_WRITE" in call.arguments:
            opened = self._opened(call, 4) if call.argument(4) != "-1" else None
            if opened is not None and opened.node is not None and opened.path[-4:] != "-shm":
                raise NotImplementedError(f"{opened.path} is written through memory")

    # Contents

    def _write(self, call: Call) -> bool:
        opened = self._opened(call)
        if opened is None or not isinstance(opened.node, File):
            return False
        if opened.appends:
            opened.position = opened.node.size
        data = b"".join(call.texts())[: call.result]
        self.disk.write(opened.node, opened.position, data)
        opened.position += len(data)
        return True

    _writev = _write

    def _pwrite64(self, call: Call) -> bool:
        opened = self._opened(call)
        if opened is None or not isinstance(opened.node, File):
            return False
        self.disk.write(opened.node, call.number(3), call.texts()[0][: call.result])
        return True

    def _ftruncate(self, call: Call) -> bool:
        opened = self._opened(call)
        if opened is None or not isinstance(opened.node, File):
            return False
        self.disk.resize(opened.node, call.number(1))
        return True

    # Names

    def _rename(self, call: Call) -> bool:
        return self._move(*(self._absolute(call, text) for text in call.texts()))

    def _renameat(self, call: Call) -> bool:
        texts = call.texts()
        source = self._absolute(call, texts[0], call.argument(0))
        return self._move(source, self._absolute(call, texts[1], call.argument(2)))

    def _renameat2(self, call: Call) -> bool:
        if call.argument(4) not in ("0", "RENAME_NOREPLACE"):
            raise NotImplementedError(f"the disk does not understand {call.arguments}")
        return self._renameat(call)

    def _move(self, source: str, target: str) -> bool:
        from_, to = self._inside(source), self._inside(target)
        if from_ is None and to is None:
            return False
        assert from_ is not None, "nothing is moved to the disk from another"
        assert to is not None, "nothing is moved from the disk to another"
        node = self.disk.find(from_)
        if node is self.disk.find(to):  # two names of one file: nothing happens
            return False
        self.disk.name((to, node), (from_, None))
        return True

    def _link(self, call: Call) -> bool:
        source, target = (self._absolute(call, text) for text in call.texts())
        return self._also(source, target)

    def _linkat(self, call: Call) -> bool:
        texts = call.texts()
        source = self._absolute(call, texts[0], call.argument(0))
        return self._also(source, self._absolute(call, texts[1], call.argument(2)))

    def _also(self, source: str, target: str) -> bool:
        from_, to = self._inside(source), self._inside(target)
        if from_ is None or to is None:
            return False
        self.disk.name((to, self.disk.find(from_)))
        return True

    def _unlink(self, call: Call) -> bool:
        return self._remove(self._absolute(call, call.texts()[0]))

    _rmdir = _unlink

    def _unlinkat(self, call: Call) -> bool:
        return self._remove(self._absolute(call, call.texts()[0], call.argument(0)))

    def _remove(self, path: str) -> bool:
        names = self._inside(path)
        if names is not None:
            self.disk.name((names, None))
        return names is not None

    def _mkdir(self, call: Call) -> bool:
        return self._make(self._absolute(call, call.texts()[0]))

    def _mkdirat(self, call: Call) -> bool:
        return self._make(self._absolute(call, call.texts()[0], call.argument(0)))

    def _make(self, path: str) -> bool:
        names = self._inside(path)
        if names is not None:
            self.disk.name((names, Folder()))
        return names is not None


def _buffers(call: Call) -> int | None:
    """Return how many of the strings are sent; the others are addresses."""
    return 1 if call.name in ("write", "sendto") else None


def _numbers(call: Call) -> list[str]:
    return [text for text in call.arguments.split(", ") if text.isdigit()]
