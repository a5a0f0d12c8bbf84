"""How `rsnotify follow` shows its status: in a terminal, as lines, or as JSON."""

from __future__ import annotations

import msgspec
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from rsnotify.format.datetimes import format_datetime
from rsnotify.plural import counted
from rsnotify.runtime.cli.display import live
from rsnotify.runtime.cli.running import printable
from rsnotify_subscriber.status import Status

#: Seconds, that is calls of `show`, between two plain lines while only counts change.
_LINE_EVERY = 10
#: How a copy that is level is described, by the result of the last audit (docs/audit.md).
_LEVEL = {None: "in step", True: "in step (audited)", False: "other than the Source says"}


def sentence(status: Status) -> str:
    """Write a status as one line."""
    lag = "" if status.lag_ms is None else f", lag {status.lag_ms:.1f} ms"
    by = f" by {', '.join(status.way)}" if status.way else ""
    doubts = f": {'; '.join(status.doubts)}" if status.doubts else ""
    return (
        f"{counted(status.resources, 'resource')}, {counted(status.applied, 'change')} "
        f"applied{lag}, "
        f"{_standing(status)}, synced through {_through(status)}, {_compared(status)}, "
        f"push {status.push}{by}{printable(doubts)}"
    )


def outcome(status: Status) -> str:
    """Write how a run ended that catches up and exits."""
    if not status.level:
        return sentence(status)
    differs = f"; {printable(status.difference)}" if status.difference else ""
    return (
        f"{_LEVEL[status.in_step]}: {counted(status.resources, 'resource')}, "
        f"synced through {_through(status)}, {_compared(status)}{differs}"
    )


def _standing(status: Status) -> str:
    if status.level:
        return _LEVEL[status.in_step]
    return f"{status.pending} pending" if status.pending else "not in step"


def _through(status: Status) -> str:
    return format_datetime(status.through) if status.through else "not yet"


def _compared(status: Status) -> str:
    """Return when the copy was last compared with the whole set, to the second."""
    if status.compared is None:
        return "never compared with the whole set"
    return f"compared with the whole set at {status.compared:%Y-%m-%dT%H:%M:%SZ}"


def not_level(status: Status) -> str:
    """Write why a run ended before the copy was level."""
    stopped = "it was stopped before the copy was level"
    return f"{stopped}: {'; '.join(status.doubts)}" if status.doubts else stopped


class Quiet:
    """Nothing to begin or end."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


class JsonReport(Quiet):
    """One JSON object for each status."""

    def show(self, status: Status) -> None:
        """Write it."""
        facts = msgspec.structs.asdict(status)
        del facts["baseline"]
        typer.echo(msgspec.json.encode(facts).decode())


class LineReport(Quiet):
    """A line when the state changes, and now and then while resources do.

    A service manager keeps all of them, so a copy that has nothing to do writes none.
    """

    def __init__(self) -> None:
        self._last: tuple[object, ...] = ()
        self._counts: tuple[int, ...] = ()
        self._quiet_for = 0

    def show(self, status: Status) -> None:
        """Write a line if it is time."""
        facts = (
            status.push,
            status.way,
            status.level,
            len(status.doubts),
            status.baseline,
            status.in_step,
        )
        counts = (status.resources, status.applied, status.pending)
        self._quiet_for += 1
        is_due = counts != self._counts and self._quiet_for >= _LINE_EVERY
        if facts != self._last or is_due:
            typer.echo(sentence(status))
            self._last, self._counts, self._quiet_for = facts, counts, 0


class TerminalReport:
    """A progress bar during a baseline, one line that renews itself while following."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("baseline"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        )
        self._bar = self._progress.add_task("baseline", total=None)
        self._live = live(Text("looking for the Source"))

    def __enter__(self) -> None:
        self._live.start()

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, status: Status) -> None:
        """Renew what is shown."""
        if status.baseline:
            done = status.applied
            self._progress.update(self._bar, completed=done, total=done + status.pending)
            self._live.update(self._progress)
        else:
            self._live.update(Text(sentence(status)))
