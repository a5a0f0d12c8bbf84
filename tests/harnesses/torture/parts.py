"""Processes that are started again whenever they end, and what is done to them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from tests.hub.test_disk_full import allow_files

#: Seconds between the end of a process and its next start, as a service manager waits.
_RESTART = 0.2
#: Seconds in which it has to end after SIGTERM.
_ENDS = 40.0
#: The size of the disk of each process.
_DISK = "48m"
_LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
#: Whether clocks can be wrong.
CLOCKS = _LIBRARY is not None


def false_clocks() -> dict[str, str]:
    """Return the variables with which processes must be started so that clocks can be wrong."""
    if _LIBRARY is None:
        return {}
    return {
        "LD_PRELOAD": str(_LIBRARY),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
    }


class Disk:
    """A folder that is a file system of its own, if this process may mount one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mounted = False
        self._filler = folder / ".filler"

    def mount(self) -> None:
        if os.environ.get("TORTURE_MOUNTS") == "1":
            command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "torture", str(self.folder)]
            self.mounted = subprocess.run(command, check=False).returncode == 0

    def fill(self) -> None:
        with suppress(OSError), self._filler.open("wb", buffering=0) as filler:
            while filler.write(bytes(1 << 20)):
                pass

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)

    def unmount(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=False)


class Resources(NamedTuple):
    """What a process uses; `bytes` are resident, `files` are open descriptors."""

    bytes: float
    files: float
    threads: float


class Part:
    """A process that is started again whenever it ends."""

    def __init__(
        self,
        name: str,
        command: list[str],
        folder: Path,
        disk: Disk,
        on_line: Callable[[bytes], None],
    ) -> None:
        self.name = name
        self.disk = disk
        self.excused = False
        self.ended: list[str] = []
        self.starts = 0
        self.log = folder / f"{name}.log"
        #: Variables of its next start, beside those of this process.
        self.environment: Mapping[str, str] = {}
        self._command = command
        self._on_line = on_line
        self._clock = folder / f"{name}.clock"
        self._may_run = asyncio.Event()
        self._may_run.set()
        self._process: asyncio.subprocess.Process | None = None
        self._killed = False
        self.set_clock(None)

    async def run(self) -> None:
        try:
            while True:
                await self._may_run.wait()
                environment = {**os.environ, **self.environment}
                if CLOCKS:
                    environment["FAKETIME_TIMESTAMP_FILE"] = str(self._clock)
                self._killed = False
                with self.log.open("ab") as log:
                    self._process = await asyncio.create_subprocess_exec(
                        *(sys.executable, "-m", *self._command),
                        stdin=asyncio.subprocess.PIPE,
                        stdout=asyncio.subprocess.PIPE,
                        stderr=log,
                        start_new_session=True,
                        env=environment,
                    )
                self.starts += 1
                assert self._process.stdout is not None
                async for line in self._process.stdout:
                    self._on_line(line)
                code = await self._process.wait()
                if not (self._killed or self.excused):
                    self.ended.append(f"{self.name} ended by itself with {code}: {self._tail()}")
                await asyncio.sleep(_RESTART)
        finally:
            self.kill()

    def _tail(self) -> str:
        return " / ".join(self.log.read_text(errors="replace").splitlines()[-3:])

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def send(self, line: str) -> None:
        if self.pid is not None:
            assert self._process is not None
            assert self._process.stdin is not None
            self._process.stdin.write(line.encode() + b"\n")

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self._killed = True
        self._signal(signal.SIGKILL)

    async def end_for(self, seconds: float, how: signal.Signals | str) -> None:
        """Kill it, or end it in order or by a command, and start it again after a time."""
        self._may_run.clear()
        ending = self._process
        self._killed = True
        if isinstance(how, str):
            self.send(how)
        else:
            self._signal(how)
        await asyncio.sleep(seconds)
        if ending is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_ENDS):
                    await ending.wait()
            if ending.returncode is None:
                self.ended.append(f"{self.name} does not end within {_ENDS:.0f} s")
                self.kill()
        self._may_run.set()

    async def stop_for(self, seconds: float) -> None:
        """Suspend it for a time."""
        self._signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        self._signal(signal.SIGCONT)

    async def fill_for(self, seconds: float) -> None:
        """Fill its disk for a time."""
        self.excused = True
        await asyncio.to_thread(self.disk.fill)
        await asyncio.sleep(seconds)
        self.disk.free()

    async def limit_for(self, seconds: float, size: int) -> None:
        """Make every write beyond a file size fail for a time, which SQLite reports as EIO."""
        self.excused = True
        limited = self.pid
        self._limit(limited, size)
        await asyncio.sleep(seconds)
        if limited == self.pid:
            self._limit(limited, None)

    def _limit(self, pid: int | None, size: int | None) -> None:
        with suppress(ProcessLookupError):
            if pid is not None:
                allow_files(pid, size)

    def set_clock(self, offset: float | None, *, frozen: bool = False) -> None:
        """Set its clock so many seconds ahead of the right one, or let it stand still."""
        text = f"{offset or 0:+.0f}"
        if frozen:
            text = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
        temporary = self._clock.with_suffix(".new")
        temporary.write_text(text + "\n")
        temporary.replace(self._clock)  # which is read at any time

    async def clock_for(self, seconds: float, offset: float, *, frozen: bool) -> None:
        """Set its clock wrong for a time."""
        self.set_clock(offset, frozen=frozen)
        await asyncio.sleep(seconds)
        self.set_clock(None)

    def resources(self) -> Resources | None:
        """Return what the process uses now; None while there is no process."""
        with suppress(OSError):
            process = Path(f"/proc/{self.pid}")
            pages = int((process / "statm").read_text().split()[1])
            return Resources(
                pages * os.sysconf("SC_PAGE_SIZE"),
                len(os.listdir(process / "fd")),
                len(os.listdir(process / "task")),
            )
        return None
