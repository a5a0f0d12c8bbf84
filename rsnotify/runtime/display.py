"""What a command shows in a terminal while it runs; imported only then, as rich takes time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


def live(first: RenderableType) -> Live:
    """Return a live display; log lines appear above it if they go to the terminal too."""
    return Live(first, refresh_per_second=4, redirect_stderr=sys.stderr.isatty())


class ProgressBar:
    """A bar for a known number of things, with the time since it was made."""

    def __init__(self, text: str) -> None:
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
    with live(bar.rendered) as display:
        display.transient = True
        yield bar.show
