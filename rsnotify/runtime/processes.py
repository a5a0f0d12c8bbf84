"""Runs other subcommands as child processes, and raises the open-file limit."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from rsnotify.errors import RsnotifyError

#: Maximum time for a process to start or to shut down, in seconds.
PROCESS_TIMEOUT = 60.0

#: Loaded before a fork, because the child must not load libraries.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


class ProcessError(RsnotifyError):
    """A subcommand that runs as a child process has failed."""


def _end_with_parent() -> None:
    """Make Linux send SIGTERM to this child process when its parent dies."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Process:
    """A running subcommand, created by `start`. Its standard error goes to the file `log`."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, *arguments: str, log: Path) -> Process:
        """Start `rsnotify ARGUMENTS`, and append its standard error to the file `log`."""
        with log.open("ab") as messages:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "rsnotify",
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=messages,
                # Ctrl-C interrupts only the caller, which then stops its processes cleanly.
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )
        name = next(argument for argument in arguments if argument[0] != "-")
        return cls(name, process, log)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def lines(self) -> AsyncIterator[str]:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            yield line.decode(errors="replace").rstrip()

    async def url(self) -> str:
        """Wait until the process prints the URL that it serves, and return it.

        Raises ProcessError if the process ends, or does not print a URL in time.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PROCESS_TIMEOUT):
                async for line in self.lines():
                    if match := re.search(r"https?://\S+", line):
                        return match.group()
        raise ProcessError(f"rsnotify {self.name} did not start: {self._last_message()}")

    def _last_message(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"see {self._log}"

    async def stop(self) -> int:
        """Terminate the process, or kill it after a timeout. Return its exit code."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(PROCESS_TIMEOUT):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
        return await self._process.wait()

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()

    async def wait(self) -> int:
        return await self._process.wait()


def allow_files(wanted: int) -> int:
    """Raise the open-file limit to `wanted`, if the system allows it. Return the limit."""
    try:
        import resource  # not needed for `rsnotify --help`
    except ImportError:  # on Windows
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else soft
