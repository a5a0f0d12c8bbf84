"""`rsnotify hub export` and `import`, which move a hub's subscriptions and contents."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from rsnotify.errors import ConfigurationError, counted
from rsnotify.runtime.command_line import from_environment, run_until_stopped

if TYPE_CHECKING:
    from rsnotify_hub.config.configuration import HubConfig
    from rsnotify_hub.store.interface import Store
    from rsnotify_hub.transfer.export_file import ImportReport

T = TypeVar("T")

_Data = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        envvar="RSNOTIFY_HUB_DATA",
        help="The data folder of a stopped hub.",
        show_default="rsnotify-hub",
    ),
]
_StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        envvar="RSNOTIFY_HUB_STORE",
        help="A store such as nats://host:port, instead of --data; its nodes may be running.",
    ),
]
_Config = Annotated[
    str | None,
    typer.Option(metavar="FILE", envvar="RSNOTIFY_HUB_CONFIG", help="The hub's settings file."),
]


def export_hub(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")],
    data: _Data = None,
    store: _StoreUrl = None,
    config: _Config = None,
) -> None:
    """Export a hub's subscriptions to a file.

    The export includes topics with a whole content instead of changes. Only the file's owner can
    read it, because it contains the subscriptions' secrets.

    Examples:
        rsnotify hub export hub.jsonl --data rsnotify-hub
        rsnotify hub export hub.jsonl --store nats://127.0.0.1:4222
    """
    from rsnotify_hub.transfer.export_file import (
        ExportedFragment,
        ExportedSubscription,
        write_export,
    )

    configuration = _configuration(context, config, data=data, store=store)
    folder = Path(configuration.log.data)
    if configuration.store is None and not (folder / "hub.sqlite").exists():
        raise ConfigurationError(f"the folder {folder} has no data of a hub")
    counts = _with_store(configuration, lambda opened: write_export(file, opened))
    typer.echo(
        f"exported {counted(counts[ExportedSubscription], 'subscription')} and "
        f"{counted(counts[ExportedFragment], 'whole content')} to {file}"
    )


def import_hub(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file written by `export`.")],
    data: _Data = None,
    store: _StoreUrl = None,
    config: _Config = None,
) -> None:
    """Import a file with subscriptions and contents into a hub.

    The hub's logs, newer contents and newer leases are kept.

    Examples:
        rsnotify hub import hub.jsonl --store nats://127.0.0.1:4222
        rsnotify hub import hub.jsonl --data rsnotify-hub
    """
    from rsnotify_hub.intake import limits_of
    from rsnotify_hub.transfer.export_file import check_export, read_export

    configuration = _configuration(context, config, data=data, store=store)
    limits = limits_of(configuration.intake)
    check_export(file, limits)  # before the store is opened
    _report(_with_store(configuration, lambda opened: read_export(file, opened, limits)))


def _report(report: ImportReport) -> None:
    typer.echo(
        f"imported {counted(report.subscriptions, 'subscription')} and "
        f"{counted(report.contents, 'whole content')}"
    )
    for number, thing, reason in (
        (report.newer, "subscription", "the hub has the same or a newer lease"),
        (report.expired, "subscription", "the lease has expired"),
        (report.other_contents, "whole content", "the hub has the same content or a newer entry"),
    ):
        if number:
            typer.echo(f"skipped {counted(number, thing)}: {reason}")


def _configuration(context: typer.Context, config: str | None, **options: str | None) -> HubConfig:
    from msgspec.structs import replace

    from rsnotify_hub.config.loading import ConfigurationSource

    # `ConfigurationSource` reads the environment itself, so that its errors name the variable.
    given = {name: value for name, value in options.items() if not from_environment(context, name)}
    configuration = ConfigurationSource(config, os.environ, given).load()
    if given.get("data") is not None and given.get("store") is None:
        # --data takes precedence over a store in the settings file.
        return replace(configuration, store=None)
    return configuration


def _with_store(configuration: HubConfig, work: Callable[[Store], Coroutine[None, None, T]]) -> T:
    from rsnotify_hub.open_store import open_store

    async def main() -> T:
        async with open_store(configuration, lambda: datetime.now(UTC), "") as opened:
            return await work(opened.store)

    return run_until_stopped(main)
