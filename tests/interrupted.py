"""Runs pytest, interrupts it while a program runs, and prints what is left of all it started.

    python -m tests.interrupted PROGRAM WHOM PYTEST-ARGUMENTS

WHOM is `group`, as Ctrl-C in a terminal does, or `first`, the process of pytest alone. What the run
started and did not end becomes a child of this process, whatever its session and environment.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.running import children_of

_PR_SET_CHILD_SUBREAPER = 36
#: Seconds: until the program runs, and until all has ended after the interruption.
_BEGINS, _ENDS = 100.0, 60.0
#: The interruption comes at most so many seconds after the program has begun.
_LATEST = 1.5


def _descendants(pid: int) -> list[int]:
    found = []
    with suppress(OSError):  # it has just ended
        for child in children_of(pid):
            found += [child, *_descendants(child)]
    return found


def _command(pid: int) -> str:
    """Return the command of a process; nothing if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
    return ""


def main() -> None:
    program, whom, *arguments = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + _BEGINS
    running = False
    while not running and process.poll() is None and time.monotonic() < deadline:
        running = any(program in _command(pid) for pid in _descendants(process.pid))
        time.sleep(0.02)  # another program is watched, which reports nothing
    # At any instant: this wait stands for no event.
    time.sleep(random.uniform(0, _LATEST))
    interrupted = process.poll() is None
    if interrupted:
        (os.killpg if whom == "group" else os.kill)(process.pid, signal.SIGINT)
    deadline = time.monotonic() + _ENDS
    while (left := children_of(os.getpid())) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.02)
    print(json.dumps({"ran": running, "interrupted": interrupted, "left": [*map(_command, left)]}))
    for pid in _descendants(os.getpid()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
