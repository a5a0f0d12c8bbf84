"""How `rsnotify follow --config` shows the status of many Sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from rich.console import Group
from rich.table import Table
from rich.text import Text

from rsnotify.plural import counted
from rsnotify.runtime.cli.running import printable
from rsnotify_subscriber.commands.report import status_facts
from rsnotify_subscriber.fleet.status import FollowedSourceStatus, Phase, totals

#: The most Sources that a terminal shows.
_ROWS = 15
#: The most characters of a name that a terminal shows.
_NAME_WIDTH = 30

Statuses = Mapping[str, FollowedSourceStatus]


class FleetView:
    """The statuses of many Sources. JSON has those that changed, and lines have new failures."""

    def __init__(self) -> None:
        self._last: dict[str, FollowedSourceStatus] = {}
        self._failing: tuple[str, ...] = ()
        self._limits: dict[str, tuple[str, ...]] = {}

    def sentence(self, statuses: Statuses) -> str:
        sums = totals(statuses)
        wrong = f", {sums.wrong} in trouble" if sums.wrong else ""
        return (
            f"{sums.level:,} of {counted(sums.sources, 'Source')} in step{wrong}, "
            f"pushed to by {sums.pushed:,}, "
            f"{counted(sums.resources, 'resource')}, {counted(sums.applied, 'change')} applied, "
            f"{sums.pending:,} pending"
        )

    def state(self, statuses: Statuses) -> object:
        sums = totals(statuses)
        return sums.sources, sums.level, sums.pushed, sums.wrong

    def counts(self, statuses: Statuses) -> object:
        sums = totals(statuses)
        return sums.resources, sums.applied, sums.pending

    def news(self, statuses: Statuses) -> Iterator[str]:
        """Yield a line for each Source that has begun to fail, has recovered or has new limits."""
        failing = {name: one.error for name, one in statuses.items() if one.error is not None}
        for name in self._failing:
            if name in statuses and name not in failing:
                yield f"{name}: out of trouble"
        for name, error in failing.items():
            if name not in self._failing:
                yield f"{name}: {error}"
        self._failing = tuple(failing)
        limits = {name: one.status.limits for name, one in statuses.items() if one.status.limits}
        for name, sentences in limits.items():
            if sentences != self._limits.get(name):
                yield f"{name}: {'; '.join(sentences)}"
        self._limits = limits

    def facts(self, statuses: Statuses) -> dict[str, Any]:
        facts = msgspec.structs.asdict(totals(statuses))
        facts["changed"] = {
            name: {**status_facts(one.status), "phase": one.phase, "error": one.error}
            for name, one in statuses.items()
            if self._last.get(name) != one
        }
        facts["gone"] = [name for name in self._last if name not in statuses]
        self._last = dict(statuses)
        return facts

    def display(self, statuses: Statuses) -> Group:
        """Return a table of the Sources that most need attention, above the totals."""
        table = Table(box=None, expand=True)
        table.add_column("Source", no_wrap=True, max_width=_NAME_WIDTH)
        table.add_column("", no_wrap=True, ratio=1)  # errors get the remaining width
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
        # A caption would be padded to the width of the terminal: the ^C that a terminal shows would
        # then begin a new line, and the display could not erase its first line.
        return Group(table, Text(self.sentence(statuses)))


def _standing(one: FollowedSourceStatus) -> str:
    if one.phase is not Phase.FOLLOWED:
        return str(one.phase)
    if one.status.level:
        return "in step"
    return printable("; ".join(one.status.doubts)) or "behind"


def _urgency(one: FollowedSourceStatus) -> tuple[bool, bool, int]:
    return (one.error is None, one.status.level, -one.status.pending)
