"""Processes whose every line is read, so that they never wait for a reader, and is shown."""

from __future__ import annotations

import asyncio
import os
import re
import select
import signal
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

#: Seconds; only a program that hangs takes them.
PATIENCE = 120


class Running:
    """A process that runs."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path = Path("/")
    ) -> None:
        self._command = command
        self._process = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: list[str] = []
        self._ended = False
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._add(line)
        self._process.stdout.close()
        self._add(None)

    def _add(self, line: str | None) -> None:
        with self._news:
            if line is None:
                self._ended = True
            else:
                self._lines.append(line)
            self._news.notify_all()

    def output(self) -> str:
        with self._news:
            return "".join(self._lines)

    def says(self, text: str | re.Pattern[str]) -> None:
        pattern = re.compile(re.escape(text)) if isinstance(text, str) else text
        with self._news:
            self._news.wait_for(lambda: self._ended or self._has_said(pattern), PATIENCE)
            assert self._has_said(pattern), f"it never said {text!r}: {self._lines}"

    def _has_said(self, pattern: re.Pattern[str]) -> bool:
        return any(pattern.search(line) for line in self._lines)

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, how: signal.Signals) -> None:
        self._process.send_signal(how)

    def stop(self) -> int:
        """Ask it to end, and return its exit code."""
        self.ask(signal.SIGTERM)
        return self.ends()

    def ends(self, patience: float = PATIENCE) -> int:
        """Wait until it has ended, and return its exit code."""
        try:
            code = self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        self._reader.join(PATIENCE)
        return code

    def show(self) -> None:
        """Print what it printed: pytest keeps that for a test that fails."""
        print(f"--- {' '.join(self._command)}\n{self.output()}")


class Suspendable:
    """A server in a process, which can be made unresponsive."""

    _process: subprocess.Popen[bytes] | asyncio.subprocess.Process | None = None

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


class LoggingServer(Suspendable, ABC):
    """A server whose log is read; an async context manager that starts and stops it."""

    _process: asyncio.subprocess.Process | None

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._process = None
        self._reading: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    @abstractmethod
    async def start(self) -> None: ...

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _run(self, *command: object, ready: str, **options: Any) -> None:
        """Start a command, and wait until its log has a line like `ready`."""
        started = len(self.lines)
        self._process = await asyncio.create_subprocess_exec(
            *map(str, command),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            **options,
        )
        self._reading = asyncio.create_task(self._read(self._process))
        async with asyncio.timeout(PATIENCE):
            while not any(re.search(ready, line) for line in self.lines[started:]):
                assert self._process.returncode is None, self.lines
                await self.news()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            self.lines.append(line.decode(errors="replace").rstrip())
            self._news.set()
        self._news.set()

    async def news(self) -> None:
        self._news.clear()
        await self._news.wait()

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it: in order, so that it keeps what it has, or by SIGKILL."""
        if self._process is not None and self._process.returncode is None:
            await self._end(self._process, how)
        if self._reading is not None:
            await self._reading

    async def _end(self, process: asyncio.subprocess.Process, how: signal.Signals) -> None:
        for _ in range(PATIENCE):
            process.send_signal(how)
            process.send_signal(signal.SIGCONT)
            # One that has only just said that it is running loses a signal.
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await process.wait()
                    return
        raise AssertionError(f"it does not end: {self.lines}")


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started and that have not ended; on Linux."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(one) for task in tasks for one in (task / "children").read_text().split()]


def wait_for_end(process: int) -> None:
    """Wait until a process has ended that need not be a child, by its pidfd, and close that."""
    ended, _, _ = select.select([process], [], [], PATIENCE)
    os.close(process)
    assert ended, "it is still there"
