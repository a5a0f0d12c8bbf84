"""What commands print: a status while they run, and a result at their end.

Rich is imported only for a terminal, as that takes time.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, Self, TypeVar

import msgspec
import typer

from rsnotify.runtime.command_line import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

S = TypeVar("S")


def print_result(facts: object, lines: Iterable[str], *, json: bool) -> None:
    """Print the facts as JSON, or the lines."""
    if json:
        typer.echo(msgspec.json.encode(facts).decode())
        return
    for line in lines:
        typer.echo(printable(line))


class StatusReport(ABC, Generic[S]):
    """Shows a status about once a second: live in a terminal, else as lines, or as JSON.

    A line is written when the state changes, and now and then while only counts change: a service
    manager stores all lines, so a program to which nothing happens writes none.

    A subclass describes one kind of status.
    """

    #: The number of calls of `show` between two lines while only counts change.
    line_every = 10

    def __init__(self, first: str = "", *, json: bool = False) -> None:
        self._json = json
        self._live = _live(first) if not json and sys.stdout.isatty() else None
        self._state: object = None
        self._counts: object = None
        self._calls = 0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, status: S) -> None:
        if self._json:
            print_result(self.facts(status), (), json=True)
        elif self._live is not None:
            self._live.update(self.display(status))
        else:
            self._write_lines(status)

    def _write_lines(self, status: S) -> None:
        print_result(None, self.news(status), json=False)
        state, counts = self.state(status), self.counts(status)
        self._calls += 1
        if state != self._state or (counts != self._counts and self._calls >= self.line_every):
            typer.echo(self.sentence(status))
            self._state, self._counts, self._calls = state, counts, 0

    @abstractmethod
    def sentence(self, status: S) -> str:
        """Return the status as one line."""

    def state(self, status: S) -> object:
        """Return the part of the status whose changes are shown at once; None if there is none."""
        return None

    def counts(self, status: S) -> object:
        """Return the part whose changes are shown now and then; None if there is none."""
        return None

    def news(self, status: S) -> Iterable[str]:
        """Yield lines about what has changed since the last call."""
        return ()

    def facts(self, status: S) -> object:
        """Return the status for JSON."""
        return status

    def display(self, status: S) -> RenderableType:
        """Return what a terminal shows."""
        from rich.text import Text

        return Text(self.sentence(status))


def _live(first: RenderableType) -> Live:
    """Return a live display; log lines appear above it if they go to the terminal too."""
    from rich.live import Live

    return Live(first, refresh_per_second=4, redirect_stderr=sys.stderr.isatty())


class ProgressBar:
    """A bar for a known number of things, with the time since it was made."""

    def __init__(self, text: str) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        self.text = text
        self.rendered = Progress(
            TextColumn(text), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        )
        self._task = self.rendered.add_task(text, total=None)

    def show(self, done: int, total: int) -> None:
        self.rendered.update(self._task, completed=done, total=total)


@contextmanager
def progress_bar(text: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar until the block ends; call what it yields with the numbers done, and of all."""
    bar = ProgressBar(text)
    with _live(bar.rendered) as display:
        display.transient = True
        yield bar.show
