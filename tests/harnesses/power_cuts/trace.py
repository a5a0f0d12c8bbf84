"""What a program did to the disk and sent to others, from a trace of its system calls."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.running import Running

#: Calls that change files or folders, that flush them, and that send; and those that make
#: descriptors and processes. What of it the disk does not understand is an error there.
CALLS = (
    "open,openat,creat,close,dup,dup2,dup3,fcntl,lseek,write,pwrite64,writev,pwritev,pwritev2,"
    "truncate,ftruncate,fallocate,fsync,fdatasync,sync,syncfs,sync_file_range,msync,mmap,"
    "rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,mkdir,mkdirat,rmdir,"
    "socket,accept,accept4,getpeername,sendto,sendmsg,sendmmsg,sendfile,copy_file_range,"
    "splice,"
    "clone,clone3,fork,vfork,chdir,fchdir"
)
_LINE = re.compile(r"(\d+) +(\d+)\.(\d{6}) (.*)", re.DOTALL)
_WHOLE = re.compile(r"(\w+)\((.*)\) += (-?\d+|0x[0-9a-f]+|\?)(.*)", re.DOTALL)
_RESUMED = re.compile(r"<\.\.\. (\w+) resumed>(.*)", re.DOTALL)
_UNFINISHED = " <unfinished ...>"
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


class Call(NamedTuple):
    """A system call that succeeded, from the line where it began to the one where it ended."""

    begin: int
    end: int
    thread: int
    #: When the last of its lines was written, in microseconds.
    time: int
    name: str
    arguments: str
    result: int

    def texts(self) -> list[bytes]:
        return [bytes.fromhex(text.replace("\\x", "")) for text in _TEXT.findall(self.arguments)]

    def argument(self, index: int) -> str:
        """Return an argument that no structure precedes."""
        return self.arguments.split(", ")[index]

    def number(self, index: int) -> int:
        return int(self.argument(index), 0)


def why_untraceable() -> str | None:
    """Return why no program can be traced here, if none can."""
    if shutil.which("strace") is None:
        return "strace is missing"
    tried = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False)
    return None if tried.returncode == 0 else f"strace may not trace: {tried.stderr.decode()}"


def traced(to: Path, command: Sequence[str], environment: Mapping[str, str]) -> Running:
    """Start a program whose calls are written to a file; `read_calls` reads it after its end."""
    how = ("strace", "-f", "--seccomp-bpf", "-qq", "-ttt", "-xx", "-s", "99999999")
    what = ("-e", "signal=none", "-e", f"trace={CALLS}", "-o", str(to))
    return Running([*how, *what, *command], environment, Path(__file__).parents[3])


def read_calls(trace: Path, *, after: Sequence[Call] = ()) -> list[Call]:
    """Return the calls that succeeded, in the order in which they ended."""
    begun: dict[int, tuple[int, str]] = {}
    calls = list(after)
    first = after[-1].end + 1 if after else 0
    with trace.open(encoding="ascii") as lines:
        for number, line in enumerate(lines, first):
            found = _LINE.match(line.rstrip("\n"))
            if found is None:
                raise ValueError(f"line {number} of the trace is not a call: {line[:200]}")
            thread, time, text = int(found[1]), int(found[2] + found[3]), found[4]
            if text.endswith(_UNFINISHED):
                begun[thread] = (number, text.removesuffix(_UNFINISHED))
                continue
            begin = number
            if resumed := _RESUMED.match(text):
                begin, before = begun.pop(thread)
                text = before + resumed[2]
            whole = _WHOLE.fullmatch(text)
            if whole is None:
                if text.startswith(("+++", "---", "exit", "???")):
                    continue
                raise ValueError(f"line {number} of the trace is not a call: {text[:200]}")
            if whole[3] != "?" and int(whole[3], 0) >= 0:
                result = int(whole[3], 0)
                calls.append(Call(begin, number, thread, time, whole[1], whole[2], result))
    return calls


class Moment(NamedTuple):
    """The begin or the end of a call, at which the disk or the knowledge of others changes."""

    is_end: bool
    call: Call


def moments(calls: Sequence[Call]) -> Iterator[Moment]:
    """Yield the begin and the end of each call, in the order in which they happened."""
    both = [Moment(False, call) for call in calls] + [Moment(True, call) for call in calls]
    return iter(
        sorted(both, key=lambda one: (one.call.end if one.is_end else one.call.begin, one.is_end))
    )
