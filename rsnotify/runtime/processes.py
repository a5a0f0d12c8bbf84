"""Running the other subcommands as processes of their own, as a user would."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import random
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from rsnotify.errors import RsnotifyError

#: Seconds a process gets to say that it is ready, or to end in its own order.
PATIENCE = 60.0

#: Loaded before a child is forked, which must not load anything.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1

#: Below those that systems give to clients, and to servers that ask for any.
_PORTS = range(20_000, 32_000)


class ProcessError(RsnotifyError):
    """A subcommand did not do what it was started for."""


def free_port() -> int:
    """Return a port of loopback that nothing listens on, and that stays free until it is used.

    It is none of those that a system hands out by itself, so no other program is given it
    meanwhile. Nor does this return it again, in any process, as long as this one lives.

    Raises:
        ProcessError: There is none.
    """
    for _ in _PORTS:
        port = random.choice(_PORTS)
        if _claim(port):
            return port
    raise ProcessError("no port of this machine is free")


def _claim(port: int) -> bool:
    """Claim a port by the datagram port of the same number, until this process ends."""
    with socket.socket(type=socket.SOCK_DGRAM) as claim, socket.socket() as listener:
        try:
            claim.bind(("127.0.0.1", port))
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        claim.detach()
        return True


def _end_with_parent() -> None:
    """Ask Linux to send this process SIGTERM when its parent dies; call it in the child."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Process:
    """One running subcommand; make it with `start`.

    Args:
        name: The subcommand.
        process: The process.
        log: Where its messages go.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, *arguments: str, log: Path) -> Process:
        """Start `rsnotify ARGUMENTS`, its messages appended to the file `log`."""
        with log.open("ab") as messages:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "rsnotify",
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=messages,
                # Ctrl-C is for the caller, which stops its processes in order.
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )
        name = next(argument for argument in arguments if argument[0] != "-")
        return cls(name, process, log)

    @property
    def pid(self) -> int:
        """Its number in the system."""
        return self._process.pid

    async def lines(self) -> AsyncIterator[str]:
        """Yield what it prints, line by line, until it ends."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            yield line.decode(errors="replace").rstrip()

    async def url(self) -> str:
        """Wait for the line that says where it serves, and return that URL.

        Raises:
            ProcessError: It ended, or said nothing, instead.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                async for line in self.lines():
                    if match := re.search(r"https?://\S+", line):
                        return match.group()
        raise ProcessError(f"rsnotify {self.name} did not start: {self._last_words()}")

    def _last_words(self) -> str:
        words = self._log.read_text(errors="replace").strip().splitlines()
        return words[-1] if words else f"see {self._log}"

    async def stop(self) -> int:
        """Ask it to end, see to it that it does, and return its exit code."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(PATIENCE):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
        return await self._process.wait()

    async def kill(self) -> None:
        """End it at once, as a crash would."""
        self._process.kill()
        await self._process.wait()

    async def wait(self) -> int:
        """Wait until it ends of itself, and return its exit code."""
        return await self._process.wait()
