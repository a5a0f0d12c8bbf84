"""Log lines and live displays share a terminal, and leave each other whole."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

#: Seconds; only what hangs takes them.
PATIENCE = 60.0
RSNOTIFY = (sys.executable, "-m", "rsnotify")
#: Where nothing listens: each attempt fails, and is logged.
NOWHERE = "http://127.0.0.1:1/"
LOGGED = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+[+-]\d\d:\d\d (?:INFO|WARNING) rsnotify")


class Terminal:
    """A terminal in which a command runs, and all that the command has written there."""

    def __init__(self, command: tuple[str, ...], errors: Path | None) -> None:
        self._main, other = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200", "LINES": "50"}
        with (errors or Path(os.devnull)).open("wb") as file:
            self._process = subprocess.Popen(
                command,
                stdin=other,
                stdout=other,
                stderr=file if errors is not None else other,
                env=environment,
                start_new_session=True,
            )
        os.close(other)
        self._written = b""
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError):  # raised by Linux when no process has the terminal open for writing
            while part := os.read(self._main, 65_536):
                with self._news:
                    self._written += part
                    self._news.notify_all()

    def shows(self, pattern: str, times: int = 1) -> None:
        """Wait until something was written so many times."""
        with self._news:
            found = self._news.wait_for(
                lambda: len(re.findall(pattern, self._written.decode(errors="replace"))) >= times,
                PATIENCE,
            )
        assert found, self._written.decode(errors="replace")

    @property
    def text(self) -> str:
        return self._written.decode(errors="replace")

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE)
        self._process.kill()
        self._process.wait()
        self._reader.join()
        os.close(self._main)

    def lines(self) -> list[str]:
        lines, row, column = [""], 0, 0
        for part in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", self.text):
            if part == "\n":
                row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
            elif part == "\r":
                column = 0
            elif part == "\x1b[2K":
                lines[row] = ""
            elif move := re.fullmatch(r"\x1b\[(\d*)A", part):
                row -= int(move[1] or 1)
            elif part[0] != "\x1b":
                line = lines[row].ljust(column)
                lines[row] = line[:column] + part + line[column + len(part) :]
                column += len(part)
        return lines


@contextmanager
def terminal(*arguments: str, errors: Path | None = None) -> Iterator[Terminal]:
    opened = Terminal((*RSNOTIFY, *arguments), errors)
    try:
        yield opened
    finally:
        opened.end()


def source(folder: Path) -> tuple[str, ...]:
    (folder / "data").mkdir()
    return ("-v", "source", str(folder / "data"), "--port", "0", "--hub", NOWHERE)


def follow(folder: Path) -> tuple[str, ...]:
    return ("-v", "follow", NOWHERE, str(folder / "copy"), "--poll", "0.1")


COMMANDS = [
    pytest.param(source, "recorded since the start", id="source"),
    pytest.param(follow, "looking for the Source", id="follow"),
]


@pytest.mark.parametrize(("command", "shown"), COMMANDS)
def test_a_log_line_appears_above_the_live_display(
    tmp_path: Path, command: Callable[[Path], tuple[str, ...]], shown: str
):
    with terminal(*command(tmp_path)) as screen:
        screen.shows(shown)
        screen.shows(LOGGED.pattern, times=3)
        screen.shows(shown, times=8)
    lines = [line.rstrip() for line in screen.lines()]
    logged = [line for line in lines if LOGGED.search(line)]
    assert len(logged) >= 3
    assert all(LOGGED.match(line) for line in logged), lines
    assert not any(shown in line for line in logged), lines
    assert sum(shown in line for line in lines) == 1, lines


def test_a_log_in_a_file_does_not_appear_in_the_terminal(tmp_path: Path):
    errors = tmp_path / "errors"
    with terminal(*follow(tmp_path), errors=errors) as screen:
        screen.shows("looking for the Source", times=5)
    assert LOGGED.match(errors.read_text())
    assert not any(LOGGED.search(line) for line in screen.lines())
