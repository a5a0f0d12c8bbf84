"""Long work shows how far it is: in a terminal with a bar, elsewhere with a line now and then."""

from __future__ import annotations

import re
import sys
from threading import Event

import pytest
from rich.console import Console

from rsnotify.runtime import command_reports
from rsnotify.runtime.command_reports import (
    DisplayLine,
    ProgressMeter,
    Work,
    can_draw,
    duration,
    progress_of,
)
from tests.test_terminal import Terminal

#: Seconds; only what hangs takes them.
PATIENCE = 60.0


def files(done: int, *, total: int | None = 1_000, size: int = 0) -> Work:
    return Work("reading", "files", done, total, bytes=size)


@pytest.mark.parametrize(
    ("samples", "sentence"),
    [
        ([(0, files(0, total=None))], "reading: "),
        ([(0, files(5, total=None))], "reading: 5 files"),
        ([(0, files(0))], "reading: 0 of 1,000 files"),
        # Too short to tell.
        ([(0, files(0)), (1, files(900))], "reading: 900 of 1,000 files"),
        (
            [(0, files(0)), (10, files(100, size=5_000_000))],
            "reading: 100 of 1,000 files, 90 s left, 10/s, 5.0 MB, 500.0 kB/s",
        ),
        # By the last 20 seconds.
        (
            [(0, files(0)), (100, files(100)), (110, files(150)), (120, files(200))],
            "reading: 200 of 1,000 files, 3 min left, 5.0/s",
        ),
        # It has begun again.
        ([(0, files(0)), (10, files(500)), (20, files(1))], "reading: 1 of 1,000 files"),
        (
            [(0, Work("copying", total=3_000)), (2, Work("copying", done=1_000, total=3_000))],
            "copying: 1.0 kB of 3.0 kB, 4 s left, 500 bytes/s",
        ),
        ([(0, files(0)), (10, files(1_000))], "reading: 1,000 of 1,000 files, 100/s"),
        ([(0, files(0)), (10, files(0))], "reading: 0 of 1,000 files"),
    ],
)
def test_a_meter_computes_rates_and_the_time_left(
    samples: list[tuple[float, Work]], sentence: str
) -> None:
    times = iter([time for time, _ in samples])
    meter = ProgressMeter(lambda: next(times))
    for _, work in samples:
        meter.update(work)
    assert meter.sentence == sentence


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (99, "99 s"), (180, "3 min"), (7_200, "2 h"), (3_600_000, "1,000 h")],
)
def test_a_duration_has_one_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


LINE = DisplayLine("copying", ["500 of 1,000", "9 s left", "50/s"], 0.5)


@pytest.mark.parametrize(
    ("width", "ascii_only", "line"),
    [
        (80, False, "copying ━━━━━━━━━━━━──────────── 500 of 1,000 · 9 s left · 50/s"),
        (45, False, "copying ━━━━━━─────── 500 of 1,000 · 9 s left"),
        (30, False, "copying ━━━━────")[:0] or (30, False, "copying ━━━━───── 500 of 1,000"),
        (22, False, "copying 500 of 1,000"),
        (40, True, "copying ####.... 500 of 1,000 | 9 s left"),
    ],
)
def test_a_narrow_terminal_shows_less(width: int, ascii_only: bool, line: str) -> None:
    shown = "".join(LINE.parts(width, ascii_only=ascii_only))
    assert len(shown) <= width
    assert shown == line


def test_a_line_never_fills_the_terminal() -> None:
    """The ^C that a terminal shows would begin a new one."""
    for width in range(10, 100):
        console = Console(width=width)
        with console.capture() as shown:
            console.print(LINE)
        assert all(len(line) < width - 2 for line in shown.get().splitlines())


@pytest.mark.parametrize(
    ("is_terminal", "term", "expected"),
    [(True, "xterm", True), (True, "dumb", False), (False, "xterm", False)],
)
def test_only_a_terminal_that_can_overwrite_lines_is_drawn_on(
    is_terminal: bool, term: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)
    assert can_draw(sys.stdout) is expected


def shown_of(looks: int, *, quiet: bool = False) -> None:
    """Show work until it was looked at so many times."""
    seen, enough = [0], Event()

    def measure() -> Work:
        seen[0] += 1
        if seen[0] >= looks:
            enough.set()
        return files(seen[0])

    with progress_of(measure, quiet=quiet):
        assert quiet or enough.wait(PATIENCE)


def test_without_a_terminal_long_work_writes_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command_reports, "_SAMPLE_INTERVAL", 0.001)
    monkeypatch.setattr(command_reports, "_LINE_INTERVAL", 3_600.0)
    shown_of(20)
    assert capsys.readouterr() == ("", ""), "it was over soon"
    monkeypatch.setattr(command_reports, "_LINE_INTERVAL", 0.0)
    shown_of(20, quiet=True)
    assert capsys.readouterr() == ("", "")
    shown_of(20)
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("reading: 1 of 1,000 files\nreading: 2 of 1,000 files\n")


#: Draws work until it was looked at ten times, and then prints a result.
DRAWN = """
from threading import Event
from rsnotify.runtime import command_reports as shown
shown._SAMPLE_INTERVAL, shown._DISPLAY_DELAY = 0.01, 0.0
looks, enough = [], Event()
def measure():
    looks.append(None)
    if len(looks) == 10:
        enough.set()
    return shown.Work("reading", "files", len(looks), 1_000)
with shown.progress_of(measure):
    enough.wait()
print("the result")
"""


@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}])
def test_a_bar_in_a_terminal_is_removed_before_the_result(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    screen = Terminal((sys.executable, "-c", DRAWN), None)
    try:
        screen.shows("the result")
    finally:
        screen.end()
    assert len(re.findall(r"\d of 1,000", screen.text)) >= 2
    assert ("\x1b[36m" in screen.text) is not bool(variables)
    assert [line.rstrip() for line in screen.lines() if line.strip()] == ["the result"]
