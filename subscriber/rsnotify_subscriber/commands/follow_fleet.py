"""`rsnotify follow --config`: many Sources in one process, as a file describes them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping
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
from rsnotify_subscriber.commands.callback_server import CallbackServer
from rsnotify_subscriber.commands.fleet_report import FleetView
from rsnotify_subscriber.commands.report import not_level, report_for
from rsnotify_subscriber.commands.running import follow_and_show
from rsnotify_subscriber.fleet.building import build
from rsnotify_subscriber.fleet.configuration import FleetConfiguration
from rsnotify_subscriber.fleet.fleet import Fleet
from rsnotify_subscriber.fleet.member import SOURCE_NAME
from rsnotify_subscriber.fleet.parsing import load
from rsnotify_subscriber.fleet.reloading import ConfigurationWatcher, FleetReloader

#: The files that one Source keeps open: those of its state, and a connection to a hub.
_FILES_PER_SOURCE = 16
_OTHER_FILES = 256
_FROM_THE_USER = ("COMMANDLINE", "ENVIRONMENT")
#: The options that describe how the command works, and not how a Source is followed.
_OF_THE_COMMAND = ("config", "once", "json")
#: The options that only one Source can have.
_OF_ONE_SOURCE = ("url", "dest", "state", "login", "bearer", "header")
_FILES = {"mqtt_ca", "mqtt_certificate", "mqtt_key", "xmpp_ca"}


def given(context: typer.Context) -> dict[str, Any]:
    """Return the options that were given, as settings of a file for all Sources."""
    found = {
        name: value
        for name, value in context.params.items()
        if (source := context.get_parameter_source(name)) is not None
        and source.name in _FROM_THE_USER
        and name not in _OF_THE_COMMAND
    }
    for name in _OF_ONE_SOURCE:
        if name in found:
            raise ConfigurationError(
                f"with --config, {name} is set in the file, in the [[source]] that it is for"
            )
    for name in _FILES & found.keys():
        found[name] = os.path.abspath(found[name])  # not relative to the folder of the file
    if "excluded" in found:
        found["except"] = found.pop("excluded")
    return dict(msgspec.to_builtins(found))


def follow_all(path: Path, options: Mapping[str, Any], *, once: bool, json: bool) -> None:
    """Follow all Sources in a file; with `once`, end when all are level.

    The options override its `[defaults]` and `[websub]`.
    """
    read = partial(_read, path, options)
    configuration = read()
    websub = configuration.websub
    report = report_for(FleetView(), json=json)
    with CallbackServer(websub.url, websub.host, websub.port, websub.terms) as server:
        fleet = Fleet(configuration.limits)
        make = partial(build, shared=fleet.shared, callbacks=server.callbacks)
        reloader = FleetReloader(fleet, make, configuration)
        with name_sources():
            watch = partial(_watch_files, reloader, read)
            follow_and_show(fleet, server, report, once=once, beside=None if once else watch)
    if once:
        report.show(fleet.status)
        _end(fleet)


def _read(path: Path, options: Mapping[str, Any]) -> FleetConfiguration:
    configuration = load(path, options)
    sources = len(configuration.sources)
    needed = sources * _FILES_PER_SOURCE + 2 * configuration.limits.requests + _OTHER_FILES
    allowed = allow_files(needed)
    if allowed < needed:
        complain(
            f"{counted(sources, 'Source')} may need {needed:,} files and connections at once, "
            f"and the system allows {allowed:,}; raise that (ulimit -n)",
            0,
        )
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
        raise complain(f"{len(wrong)} of {len(fleet.status)} Sources are not in step:{each}", 1)


@contextmanager
def name_sources() -> Iterator[None]:
    """Begin each log line with the name of the Source that it is about, within the context."""
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
    if name and not hasattr(record, "source"):  # the filter of another handler may have added it
        record.source = name
        # Wrong arguments are reported where logging formats them.
        record.msg = f"{name.replace('%', '%%') if record.args else name}: {record.msg}"
    return True
