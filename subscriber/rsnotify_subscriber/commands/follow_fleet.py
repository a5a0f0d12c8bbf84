"""`rsnotify follow --config`: many Sources in one process, as a file says."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import typer

from rsnotify.errors import ConfigurationError
from rsnotify.plural import counted
from rsnotify.runtime.cli.running import complain
from rsnotify.runtime.open_files import allow_files
from rsnotify_subscriber.commands.fleet_report import JsonReport, LineReport, TerminalReport
from rsnotify_subscriber.commands.options import CallbackServer
from rsnotify_subscriber.commands.report import not_level
from rsnotify_subscriber.commands.running import follow_and_show, report_for
from rsnotify_subscriber.fleet.building import build, terms_of
from rsnotify_subscriber.fleet.configuration import FleetConfiguration
from rsnotify_subscriber.fleet.fleet import Fleet
from rsnotify_subscriber.fleet.loading import load
from rsnotify_subscriber.fleet.member import SOURCE_NAME
from rsnotify_subscriber.fleet.reloading import ConfigurationWatcher, FleetReloader

#: Files that one Source keeps open: those of its state, and a connection to a hub.
_FILES_OF_A_SOURCE = 16
_OTHER_FILES = 256
_FROM_THE_USER = ("COMMANDLINE", "ENVIRONMENT")
#: Options that say how the command works, and not how a Source is followed.
_OF_THE_COMMAND = ("config", "once", "json")
#: What is said of each Source, and cannot be of all.
_OF_ONE_SOURCE = ("url", "dest", "state", "login", "bearer", "header")
_FILES = {"mqtt_ca", "mqtt_certificate", "mqtt_key"}


def given(context: typer.Context) -> dict[str, Any]:
    """Return the options that were given, as settings of a file.

    Raises:
        ConfigurationError: One of them cannot be meant for all Sources.
    """
    found = {
        name: value
        for name, value in context.params.items()
        if _is_given(context, name) and name not in _OF_THE_COMMAND
    }
    for name in _OF_ONE_SOURCE:
        if name in found:
            raise ConfigurationError(
                f"with --config, {name} is set in the file, in the [[source]] that it is for"
            )
    for name in _FILES & found.keys():
        found[name] = os.path.abspath(found[name])  # and not from the folder of the file
    if "excluded" in found:
        found["except"] = found.pop("excluded")
    return dict(msgspec.to_builtins(found))


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name in _FROM_THE_USER


def follow_all(path: Path, options: Mapping[str, Any], *, once: bool, json: bool) -> None:
    """Follow all Sources that a file names.

    Args:
        path: The file.
        options: Settings that go over its `[defaults]` and `[websub]`.
        once: Whether to end when all are level; exit code 1 says that some could not be.
        json: Whether to write JSON.

    Raises:
        ConfigurationError: A setting is wrong.
    """
    read = partial(_read, path, options)
    configuration = read()
    websub = configuration.websub
    report = report_for(JsonReport, TerminalReport, LineReport, wants_json=json)
    with CallbackServer(websub.url, websub.host, websub.port, terms_of(websub)) as hearing:
        fleet = Fleet(configuration.limits)
        making = partial(build, shared=fleet.shared, callbacks=hearing.callbacks)
        keeper = FleetReloader(fleet, making, configuration)
        with name_sources():
            beside = None if once else _reloading(keeper, read)
            follow_and_show(fleet, hearing, report, once=once, beside=beside)
    if once:
        report.show(fleet.status)
        _end(fleet)


def _read(path: Path, options: Mapping[str, Any]) -> FleetConfiguration:
    configuration = load(path, options)
    _allow_files(configuration)
    return configuration


def _allow_files(configuration: FleetConfiguration) -> None:
    sources = len(configuration.sources)
    wanted = sources * _FILES_OF_A_SOURCE + 2 * configuration.limits.requests + _OTHER_FILES
    allowed = allow_files(wanted)
    if allowed < wanted:
        complain(
            f"{counted(sources, 'Source')} may need {wanted:,} files and connections at once, "
            f"and the system allows {allowed:,}; raise that (ulimit -n)",
            0,
        )


def _reloading(
    keeper: FleetReloader, read: Callable[[], FleetConfiguration]
) -> Callable[[], Coroutine[None, None, None]]:
    async def reload() -> None:
        reloading = ConfigurationWatcher(keeper, read)
        if hasattr(signal, "SIGHUP"):  # not on Windows
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reloading.ask)
        await reloading.run()

    return reload


def _end(fleet: Fleet) -> None:
    wrong = {
        name: one.error or not_level(one.status)
        for name, one in fleet.status.items()
        if one.error is not None or not one.status.level
    }
    if wrong:
        each = "".join(f"\n  {name}: {error}" for name, error in wrong.items())
        raise complain(f"{len(wrong)} of {len(fleet.status)} Sources are not in step:{each}", 1)


@contextmanager
def name_sources() -> Iterator[None]:
    """Let every line that is logged within the context say which Source it is about."""
    handlers = logging.getLogger().handlers
    for handler in handlers:
        handler.addFilter(_named)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(_named)


def _named(record: logging.LogRecord) -> bool:
    name = SOURCE_NAME.get()
    if name and not hasattr(record, "source"):  # another handler may have had it
        record.source = name
        # What is wrong with the arguments is told where they are put in.
        record.msg = f"{name.replace('%', '%%') if record.args else name}: {record.msg}"
    return True
