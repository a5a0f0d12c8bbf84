"""How `rsnotify follow --config` shows its status: in a terminal, as lines, or as JSON."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from rsnotify.plural import counted
from rsnotify.runtime.cli.display import live
from rsnotify.runtime.cli.running import printable
from rsnotify_subscriber.commands.report import Quiet
from rsnotify_subscriber.fleet.status import FollowedSourceStatus, Phase, totals

#: Calls of `show`, one about each second, between two plain lines while only counts change.
_LINE_EVERY = 10
#: How many Sources a terminal shows at most.
_ROWS = 15
#: Characters of a name that a terminal shows.
_NAME_WIDTH = 30

Statuses = Mapping[str, FollowedSourceStatus]


def sentence(statuses: Statuses) -> str:
    """Write how all are doing, as one line."""
    sums = totals(statuses)
    wrong = f", {sums.wrong} in trouble" if sums.wrong else ""
    return (
        f"{sums.level:,} of {counted(sums.sources, 'Source')} in step{wrong}, "
        f"pushed to by {sums.pushed:,}, "
        f"{counted(sums.resources, 'resource')}, {counted(sums.applied, 'change')} applied, "
        f"{sums.pending:,} pending"
    )


class JsonReport(Quiet):
    """One JSON object each time: how all are doing, and each of which something has changed."""

    def __init__(self) -> None:
        self._last: dict[str, FollowedSourceStatus] = {}

    def show(self, statuses: Statuses) -> None:
        """Write it."""
        changed = {name: one for name, one in statuses.items() if self._last.get(name) != one}
        facts = msgspec.structs.asdict(totals(statuses))
        facts["changed"] = {name: _facts(one) for name, one in changed.items()}
        facts["gone"] = [name for name in self._last if name not in statuses]
        self._last = dict(statuses)
        typer.echo(msgspec.json.encode(facts).decode())


def _facts(one: FollowedSourceStatus) -> dict[str, object]:
    facts = msgspec.structs.asdict(one.status)
    del facts["baseline"]
    return {**facts, "phase": one.phase, "error": one.error}


class LineReport(Quiet):
    """A line when a Source gets into trouble or out of it, and one for all now and then."""

    def __init__(self) -> None:
        self._wrong: dict[str, str] = {}
        self._last: tuple[int, ...] = ()
        self._counts: tuple[int, ...] = ()
        self._quiet_for = 0

    def show(self, statuses: Statuses) -> None:
        """Write what there is to say."""
        wrong = {name: one.error for name, one in statuses.items() if one.error is not None}
        for name in self._wrong:
            if name in statuses and name not in wrong:
                typer.echo(printable(f"{name}: out of trouble"))
        for name, error in wrong.items():
            if name not in self._wrong:
                typer.echo(printable(f"{name}: {error}"))
        self._wrong = wrong
        self._show_all(statuses)

    def _show_all(self, statuses: Statuses) -> None:
        sums = totals(statuses)
        facts = (sums.sources, sums.level, sums.pushed, sums.wrong)
        counts = (sums.resources, sums.applied, sums.pending)
        self._quiet_for += 1
        is_due = counts != self._counts and self._quiet_for >= _LINE_EVERY
        if facts != self._last or is_due:
            typer.echo(sentence(statuses))
            self._last, self._counts, self._quiet_for = facts, counts, 0


class TerminalReport:
    """A line for all, and a table of those that most need to be looked at."""

    def __init__(self) -> None:
        self._live = live("")

    def __enter__(self) -> None:
        self._live.start()

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, statuses: Statuses) -> None:
        """Renew what is shown."""
        self._live.update(table_of(statuses))


def table_of(statuses: Statuses) -> Table:
    """Make a table of those that most need to be looked at, with a line for all below it."""
    caption = Text(sentence(statuses))
    table = Table(caption=caption, caption_justify="left", box=None, expand=True)
    table.add_column("Source", no_wrap=True, max_width=_NAME_WIDTH)
    table.add_column("", no_wrap=True, ratio=1)  # what is wrong has all the room that is left
    for title in ("resources", "pending", "push"):
        table.add_column(title, no_wrap=True, justify="right")
    table.add_column("synced through", no_wrap=True)
    first = sorted(statuses.items(), key=lambda item: _urgency(item[1]))
    for name, one in first[:_ROWS]:
        status = one.status
        table.add_row(
            Text(printable(name)),
            Text(printable(one.error) if one.error else _standing(one)),
            str(status.resources),
            str(status.pending),
            str(status.push),
            f"{status.through:%Y-%m-%d %H:%M:%S}" if status.through else "not yet",
        )
    return table


def _standing(one: FollowedSourceStatus) -> str:
    if one.phase is not Phase.FOLLOWED:
        return str(one.phase)
    if one.status.level:
        return "in step"
    return printable("; ".join(one.status.doubts)) or "behind"


def _urgency(one: FollowedSourceStatus) -> tuple[bool, bool, int]:
    return (one.error is None, one.status.level, -one.status.pending)
