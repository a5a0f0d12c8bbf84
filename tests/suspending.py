"""A Python process that suspends itself at a chosen point, as by SIGSTOP or a frozen container."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.fork_server import forked

#: Seconds; on a busy machine even a process takes long to start.
PATIENCE = 120.0
#: What a program begins with: the first `suspend()` returns when the test resumes the process.
PROLOGUE = """
import signal, sys, threading
from itertools import count

calls = count()

def suspend():
    if next(calls) == 0:
        # To this very thread: after a signal to the process it might run on for a moment.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
"""


class Suspended:
    """A process that has suspended itself."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "it ended instead"

    def resume(self) -> int:
        """Resume it and wait until it ends; return its exit code."""
        self._process.send_signal(signal.SIGCONT)
        return self._process.wait(PATIENCE)


@contextmanager
def suspended(program: str, *arguments: str) -> Iterator[Suspended]:
    """Run a program until it calls `suspend()`; kill it at the end if it still runs."""
    command = [*forked(PROLOGUE + program), *arguments]
    process = subprocess.Popen(command, text=True)
    try:
        yield Suspended(process)
    finally:
        process.kill()
        process.wait(PATIENCE)
