"""Ends whatever a test run has started, however the run itself ends.

A run that is interrupted, or killed, or whose worker pytest-xdist drops, tears down no fixture: a
Chromium of its own session would stay for good. So a process of its own receives the number of
each process that is started, and kills those that are left when its pipe closes, with all their
descendants. A parent-death signal would not do: it comes when the *thread* ends that started a
process.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

_PROC = Path("/proc")
_ROUNDS = 10

_pipe: int | None = None


class _Process(NamedTuple):
    parent: int
    session: int
    started: str


def start() -> None:
    """Have all processes ended that are started from now on, where there is a /proc."""
    global _pipe
    if _pipe is not None or not _PROC.joinpath("self/stat").exists():
        return
    watchdog = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is not for it
    )
    assert watchdog.stdin is not None
    _pipe = watchdog.stdin.fileno()
    atexit.register(watchdog.communicate)
    _report_each_process()


def _report_each_process() -> None:
    begin = subprocess.Popen.__init__

    def begin_and_report(self: subprocess.Popen[Any], *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named)
        watch(self.pid)

    subprocess.Popen.__init__ = begin_and_report  # type: ignore[method-assign]


def watch(pid: int) -> None:
    """Have a process ended that was started otherwise than by `subprocess` or asyncio."""
    found = _look(pid)  # now, as the process may soon have ended, and orphans be left
    if _pipe is not None and found is not None:
        with suppress(OSError):
            os.write(_pipe, f"{pid} {found.started}\n".encode())


def _look(pid: int) -> _Process | None:
    try:
        fields = _PROC.joinpath(str(pid), "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return _Process(int(fields[1]), int(fields[3]), fields[19])


def _left(known: dict[int, str]) -> Iterator[int]:
    """Yield what is left of the known processes, of their sessions, and all descendants.

    The watchdogs among them, of the workers of a run, are spared: they kill what their workers have
    started, and end.

    A number may meanwhile be that of another process, which began later.
    """
    numbers = [int(path.name) for path in _PROC.iterdir() if path.name.isdigit()]
    processes = {pid: found for pid in numbers if (found := _look(pid)) is not None}
    ours = {
        pid
        for pid, started in known.items()
        if pid not in processes or processes[pid].started == started
    }
    for pid, one in processes.items():
        line = {pid, one.session}
        parent = one.parent
        while parent in processes:
            line.add(parent)
            parent = processes[parent].parent
        if line & ours and not _is_watchdog(pid):
            yield pid


def _is_watchdog(pid: int) -> bool:
    with suppress(OSError):
        command = _PROC.joinpath(str(pid), "cmdline").read_bytes().split(b"\0")
        return command[1:4] == [b"-I", b"-S", os.fsencode(__file__)]
    return False


def _run() -> None:
    lines = (line.split() for line in sys.stdin)
    known = {int(pid): started for pid, started in lines}
    for _ in range(_ROUNDS):  # one may start another meanwhile
        left = list(_left(known))
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            break


if __name__ == "__main__":
    _run()
