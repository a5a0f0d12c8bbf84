"""A process whose every line is read, so that it never waits for a reader, and is shown."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

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

    def ends(self) -> int:
        """Wait until it has ended, and return its exit code."""
        try:
            code = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        self._reader.join(PATIENCE)
        return code

    def show(self) -> None:
        """Print what it printed: pytest keeps that for a test that fails."""
        print(f"--- {' '.join(self._command)}\n{self.output()}")


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started and that have not ended; on Linux."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(one) for task in tasks for one in (task / "children").read_text().split()]


def wait_for_end(process: int) -> None:
    """Wait until a process has ended that need not be a child, by its pidfd, and close that."""
    ended, _, _ = select.select([process], [], [], PATIENCE)
    os.close(process)
    assert ended, "it is still there"
