"""The output of commands: their status or progress while they run, and their results.

In a terminal that can move its cursor, the status is a live display by Rich, which respects
`NO_COLOR`. All other output consists of lines, and does not import Rich, because that is slow.
"""

from __future__ import annotations

import os
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Generic, Self, TextIO, TypeVar

import msgspec
import typer
from msgspec import Struct

from rsnotify.runtime.command_line import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.live import Live

S = TypeVar("S")


def print_result(facts: object, lines: Iterable[str], *, json: bool) -> None:
    """Print the facts as JSON if `json` is true, otherwise print the lines."""
    if json:
        typer.echo(msgspec.json.encode(facts).decode())
        return
    for line in lines:
        typer.echo(printable(line))


class StatusReport(ABC, Generic[S]):
    """Shows a status about once a second: as a live display, as lines, or as JSON.

    A line is written when the state changes, and occasionally while only counts change. Because
    service managers store all lines, an idle program writes none.

    A subclass describes one kind of status.

    Args:
        first: The text to display before the first status.
        json: Whether to write each status as JSON.
        quiet: Whether to show nothing.
        transient: Whether to clear the live display at the end, because a result follows.
    """

    #: Number of calls of `show` per line while only counts change.
    line_every = 10

    def __init__(
        self, first: str = "", *, json: bool = False, quiet: bool = False, transient: bool = False
    ) -> None:
        self._json = json
        self._quiet = quiet
        is_drawn = not (json or quiet) and can_draw(sys.stdout)
        self._live = _live(first, transient=transient) if is_drawn else None
        #: The value that `state` returned for the last line.
        self.last_state: object = None
        self._counts: object = None
        self._calls = 0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def is_live(self) -> bool:
        return self._live is not None

    def show(self, status: S) -> None:
        if self._quiet:
            return
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
        if state != self.last_state or (counts != self._counts and self._calls >= self.line_every):
            typer.echo(self.sentence(status))
            self.last_state, self._counts, self._calls = state, counts, 0

    @abstractmethod
    def sentence(self, status: S) -> str:
        """Return the status as one line."""

    def state(self, status: S) -> object:
        """Return the part of the status whose changes are shown immediately, if any."""
        return None

    def counts(self, status: S) -> object:
        """Return the part of the status whose changes are shown occasionally, if any."""
        return None

    def news(self, status: S) -> Iterable[str]:
        """Yield lines about changes since the last call."""
        return ()

    def facts(self, status: S) -> object:
        """Return the status to encode as JSON."""
        return status

    def display(self, status: S) -> RenderableType:
        """Return the status for the live display."""
        from rich.text import Text

        return Text(self.sentence(status))


class Work(Struct, frozen=True):
    """The progress of a long task.

    Args:
        text: A description of the task, such as "copying".
        things: The plural noun for the items in `done` and `total`; empty if these are bytes.
        is_estimate: Whether `total` is an estimate.
        bytes: Number of bytes read or received, if `done` and `total` are not bytes.
    """

    text: str
    things: str = ""
    done: int = 0
    total: int | None = None
    is_estimate: bool = False
    bytes: int = 0


#: Maximum and minimum length of the interval over which to compute rates, in seconds.
_MAX_WINDOW, _MIN_WINDOW = 20.0, 2.0


class ProgressMeter:
    """Estimates the speed and remaining time of a task from its last seconds."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._work = Work("")
        #: Samples: a time, the amount done by then, and the number of bytes received by then.
        self._samples: deque[tuple[float, int, int]] = deque()

    def update(self, work: Work) -> None:
        before, now = self._work, self._clock()
        if work.text != before.text or work.done < before.done:
            self._samples.clear()
        self._work = work
        self._samples.append((now, work.done, work.bytes))
        while now - self._samples[0][0] > _MAX_WINDOW:
            self._samples.popleft()

    @property
    def line(self) -> DisplayLine:
        """The line for the live display."""
        work = self._work
        share = work.done / work.total if work.total else None
        return DisplayLine(work.text, self._figures(""), share)

    @property
    def sentence(self) -> str:
        return f"{self._work.text}: {', '.join(self._figures(self._work.things))}"

    def _figures(self, things: str) -> list[str]:
        """Return the known figures, most important first."""
        work = self._work
        rate, byte_rate = self._rates()
        figures = (
            [_of_all(work) + (f" {things}" if things else "")] if work.done or work.total else []
        )
        if rate and work.total is not None and work.total > work.done:
            figures.append(f"{duration((work.total - work.done) / rate)} left")
        if not work.things:
            return figures + ([f"{_size(rate)}/s"] if rate else [])
        if rate:
            figures.append(f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s")
        if work.bytes:
            figures.append(_size(work.bytes))
        return figures + ([f"{_size(byte_rate)}/s"] if byte_rate else [])

    def _rates(self) -> tuple[float, float]:
        """Return the amount done and the bytes received per second; 0 if unknown."""
        first, last = self._samples[0], self._samples[-1]
        seconds = last[0] - first[0]
        if seconds < _MIN_WINDOW:
            return 0.0, 0.0
        return (last[1] - first[1]) / seconds, (last[2] - first[2]) / seconds


def _of_all(work: Work) -> str:
    shown = "{:,}".format if work.things else _size
    if work.total is None:
        return shown(work.done)
    return f"{shown(work.done)} of {'about ' if work.is_estimate else ''}{shown(work.total)}"


def _size(size: float) -> str:
    from rich.filesize import decimal

    return decimal(int(size))


def duration(seconds: float) -> str:
    minutes, hours = seconds / 60, seconds / 3_600
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if minutes < 100 else f"{hours:,.0f} h"


#: Maximum and minimum width of a bar, and the margin for the ^C that a terminal shows, which must
#: not wrap to a new line.
_MAX_BAR, _MIN_BAR, _MARGIN = 24, 8, 3


class DisplayLine(Struct, frozen=True):
    """A line of a live display: a label, a bar, and as many figures as fit.

    Args:
        figures: The figures, most important first.
        share: The filled share of the bar; None for no bar.
        style: The style of the first figure, in a line without a bar.
        below: Sentences below the line. Below a bar, each is truncated to the width.
    """

    text: str
    figures: Sequence[str] = ()
    share: float | None = None
    style: str = ""
    below: Sequence[str] = ()

    def parts(self, width: int, *, ascii_only: bool = False) -> tuple[str, str, str]:
        """Return the text before the bar, the bar, and the text after it."""
        separator = " | " if ascii_only else " · "
        figures = list(self.figures)
        least = len(self.text) + (_MIN_BAR + 2 if self.share is not None else len(separator))
        while len(figures) > 1 and least + len(separator.join(figures)) > width:
            figures.pop()
        after = separator.join(figures)
        if self.share is None:
            return self.text, "", (separator + after if after else "")
        room = min(_MAX_BAR, width - len(self.text) - len(after) - 2)
        if room < _MIN_BAR:
            return self.text, "", " " + after
        full = int(room * min(1.0, self.share))
        done, left = "#." if ascii_only else "━─"
        return self.text + " ", done * full + left * (room - full), " " + after

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        from rich.text import Text

        width = options.max_width - _MARGIN
        before, bar, after = self.parts(width, ascii_only=options.ascii_only)
        line = Text.assemble(before, (bar, "cyan"), after)
        if self.style and self.figures:
            line.highlight_words([self.figures[0]], self.style)
        line.truncate(width, overflow="ellipsis")
        yield line
        for sentence in self.below:
            text = Text(f"  {printable(sentence)}")
            if self.share is not None:
                text.truncate(width, overflow="ellipsis")
            yield text


def can_draw(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def _live(first: RenderableType, *, on_stderr: bool = False, transient: bool) -> Live:
    """Return a live display. Log messages in the same terminal appear above it.

    A transient display is cleared when it ends.
    """
    from rich.console import Console
    from rich.live import Live

    return Live(
        first,
        console=Console(stderr=on_stderr),
        refresh_per_second=4,
        transient=transient,
        redirect_stdout=sys.stdout.isatty(),
        redirect_stderr=sys.stderr.isatty(),
    )


Quiet = Annotated[
    bool, typer.Option("--quiet", help="Show only results and errors, without progress.")
]

#: Time between two samples, time before the live display appears, and time between two lines, in
#: seconds.
_SAMPLE_INTERVAL, _DISPLAY_DELAY, _LINE_INTERVAL = 0.25, 0.5, 10.0


@contextmanager
def progress_of(measure: Callable[[], Work | None], *, quiet: bool = False) -> Iterator[None]:
    """Show progress on stderr while the context is active, as a live display or as lines.

    `measure` is called in another thread. Nothing is shown for a task that ends quickly.
    """
    if quiet:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_show_progress, args=(measure, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _show_progress(measure: Callable[[], Work | None], ended: threading.Event) -> None:
    meter, is_drawn = ProgressMeter(), can_draw(sys.stderr)
    live: Live | None = None
    due = monotonic() + (_DISPLAY_DELAY if is_drawn else _LINE_INTERVAL)
    with ExitStack() as displays:
        while not ended.wait(_SAMPLE_INTERVAL):
            work = measure()
            if work is None:
                continue
            meter.update(work)
            if monotonic() < due:
                continue
            if not is_drawn:
                due = monotonic() + _LINE_INTERVAL
                typer.echo(printable(meter.sentence), err=True)
            elif live is None:
                live = displays.enter_context(_live(meter.line, on_stderr=True, transient=True))
            else:
                live.update(meter.line)
