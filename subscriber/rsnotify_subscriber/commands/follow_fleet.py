"""`rsnotify follow --config`, which follows many Sources and shows their status."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from rsnotify.errors import ConfigurationError, counted
from rsnotify.runtime.command_line import complain, given_options, printable, require_files
from rsnotify.runtime.command_reports import DisplayLine, StatusReport, print_result
from rsnotify.runtime.command_status import StatusServer
from rsnotify_subscriber.commands.follow_options import CallbackServer
from rsnotify_subscriber.commands.follow_report import (
    LOOKING,
    follow_and_show,
    not_level,
    status_facts,
    work_of,
)
from rsnotify_subscriber.commands.follow_status import serving_follower
from rsnotify_subscriber.fleet.building import build
from rsnotify_subscriber.fleet.configuration import PATH_SETTINGS, FleetConfiguration, load
from rsnotify_subscriber.fleet.fleet import (
    SOURCE_NAME,
    Fleet,
    FollowedSourceStatus,
    Phase,
    totals,
)
from rsnotify_subscriber.fleet.reloading import ConfigurationWatcher, FleetReloader

#: Maximum number of Sources to show in a terminal, and of characters of their names.
_MAX_ROWS, _MAX_NAME_WIDTH = 15, 30

Statuses = Mapping[str, FollowedSourceStatus]


class FleetReport(StatusReport[Statuses]):
    """Shows the statuses of many Sources: the changed ones as JSON, or failures as lines."""

    def __init__(self, *, json: bool = False, quiet: bool = False, transient: bool = False) -> None:
        super().__init__(LOOKING, json=json, quiet=quiet, transient=transient)
        self._last: dict[str, FollowedSourceStatus] = {}
        self._failing: tuple[str, ...] = ()
        self._limits: dict[str, tuple[str, ...]] = {}

    def sentence(self, statuses: Statuses) -> str:
        sums = totals(statuses)
        wrong = f", {sums.wrong} failing" if sums.wrong else ""
        return (
            f"{sums.level:,} of {counted(sums.sources, 'Source')} level{wrong}, "
            f"{sums.pushed:,} by push, "
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
        """Yield a line for each Source that now fails, has recovered, or has new limits."""
        failing = {name: one.error for name, one in statuses.items() if one.error is not None}
        for name in self._failing:
            if name in statuses and name not in failing:
                yield f"{name}: recovered"
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
        """Return a table of the Sources that most need attention, and the totals."""
        table = Table(box=None, expand=True)
        table.add_column("Source", no_wrap=True, max_width=_MAX_NAME_WIDTH)
        table.add_column("", no_wrap=True, ratio=1)  # errors get the remaining width
        for title in ("resources", "pending", "push"):
            table.add_column(title, no_wrap=True, justify="right")
        table.add_column("synced through", no_wrap=True)
        first = sorted(statuses.items(), key=lambda item: _urgency(item[1]))
        for name, one in first[:_MAX_ROWS]:
            status = one.status
            table.add_row(
                Text(printable(name)),
                Text(printable(one.error) if one.error else _standing(one)),
                str(status.resources),
                str(status.pending),
                str(status.push),
                f"{status.through:%Y-%m-%d %H:%M:%S}" if status.through else "not yet",
            )
        sums = totals(statuses)
        figures = [
            f"{sums.pushed:,} by push",
            f"{sums.pending:,} pending",
            counted(sums.resources, "resource"),
            f"{counted(sums.applied, 'change')} applied",
        ]
        if sums.wrong:
            figures.insert(0, f"{sums.wrong} failing")
        # A caption of the table would be as wide as the terminal.
        level = f"{sums.level:,} of {counted(sums.sources, 'Source')} level"
        return Group(table, DisplayLine(level, figures))


def _standing(one: FollowedSourceStatus) -> str:
    if one.phase is not Phase.FOLLOWED:
        return str(one.phase)
    if (activity := one.status.activity) is not None:
        work = work_of(activity)
        share = f", {work.done / work.total:.0%}" if work.total else ""
        return f"{work.text}{share}"
    if one.status.level:
        return "level"
    return printable("; ".join(one.status.doubts)) or "behind"


def _urgency(one: FollowedSourceStatus) -> tuple[bool, bool, int]:
    return (one.error is None, one.status.level, -one.status.pending)


#: Number of open files per Source (its state and a connection to a hub), per Source with a state in
#: a database (only the connection), and for everything else.
_FILES_PER_SOURCE, _FILES_PER_SHARED_SOURCE, _OTHER_FILES = 16, 2, 256
#: The options of the command that do not apply to Sources.
_COMMAND_OPTIONS = ("config", "once", "json", "quiet", "status", "status_port", "status_host")
#: The options that apply to one Source only.
_SINGLE_SOURCE_OPTIONS = ("url", "dest", "state", "login", "bearer", "header")


def given_settings(context: typer.Context) -> dict[str, Any]:
    """Return the options from the command line that apply to all Sources of a file."""
    given = given_options(context)
    found = {name: value for name, value in given.items() if name not in _COMMAND_OPTIONS}
    for name in _SINGLE_SOURCE_OPTIONS:
        if name in found:
            raise ConfigurationError(
                f"with --config, set {name} in the file, in the [[source]] that it applies to"
            )
    for name in found.keys() & PATH_SETTINGS:
        found[name] = os.path.abspath(found[name])  # not relative to the folder of the file
    return dict(msgspec.to_builtins(found))


def follow_all(
    path: Path,
    options: Mapping[str, Any],
    *,
    once: bool,
    json: bool,
    quiet: bool,
    status: StatusServer,
) -> None:
    """Follow all Sources in a file until stopped or, with `once`, until all are level.

    The options override `[defaults]` and `[websub]` in the file.
    """
    read = partial(_read, path, options)
    configuration = read()
    websub = configuration.websub
    report = FleetReport(json=json, quiet=quiet, transient=once)
    with CallbackServer(websub.url, websub.host, websub.port, websub.terms) as server:
        fleet = Fleet(configuration.limits)
        make = partial(build, shared=fleet.shared, callbacks=server.callbacks)
        reloader = FleetReloader(fleet, make, configuration, once=once)
        with name_sources():
            watch = partial(_watch_files, reloader, read)
            beside, serving = None if once else watch, _serving(reloader, fleet, status)
            follow_and_show(fleet, server, report, once=once, serving=serving, beside=beside)
    if once:
        statuses = fleet.status
        print_result(report.facts(statuses), [report.sentence(statuses)], json=json)
        _end(fleet)


@asynccontextmanager
async def _serving(
    reloader: FleetReloader, fleet: Fleet, status: StatusServer
) -> AsyncIterator[None]:
    async with reloader.sharing(), serving_follower(fleet, status):
        yield


def _read(path: Path, options: Mapping[str, Any]) -> FleetConfiguration:
    configuration = load(path, options)
    sources = len(configuration.sources)
    shared = sum(one.postgresql is not None for one in configuration.sources)
    needed = (sources - shared) * _FILES_PER_SOURCE + shared * _FILES_PER_SHARED_SOURCE
    needed += 2 * configuration.limits.requests + _OTHER_FILES
    require_files(counted(sources, "Source"), needed)
    return configuration


async def _watch_files(reloader: FleetReloader, read: Callable[[], FleetConfiguration]) -> None:
    watcher = ConfigurationWatcher(reloader, read)
    if hasattr(signal, "SIGHUP"):  # not on Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, watcher.reload)
    await watcher.run()


def _end(fleet: Fleet) -> None:
    wrong = {
        name: one.error or not_level(one.status)
        for name, one in fleet.status.items()
        if one.error is not None or one.status.foreign or not one.status.level
    }
    if wrong:
        each = "".join(f"\n  {name}: {error}" for name, error in wrong.items())
        raise complain(f"{len(wrong)} of {len(fleet.status)} Sources are not level:{each}", 1)


@contextmanager
def name_sources() -> Iterator[None]:
    """Prefix each log line with the name of its Source while the context is active."""
    handlers = logging.getLogger().handlers
    for handler in handlers:
        handler.addFilter(_add_name)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(_add_name)


def _add_name(record: logging.LogRecord) -> bool:
    name = SOURCE_NAME.get()
    if name and not hasattr(record, "source"):  # the filter of another handler may have set it
        record.source = name
        record.msg = f"{name.replace('%', '%%') if record.args else name}: {record.msg}"
    return True
