"""`rsnotify source`: publish folders, serve them, watch them, and push what changes."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rsnotify.errors import ConfigurationError
from rsnotify.plural import counted
from rsnotify.runtime.cli.forced_shutdown import ForcedShutdown
from rsnotify.runtime.cli.listening import address, listen
from rsnotify.runtime.cli.running import complain, run
from rsnotify.runtime.open_files import allow_files

if TYPE_CHECKING:
    from aiohttp import web

    from rsnotify_publisher.config import SourceConfiguration
    from rsnotify_publisher.description import SourceDescription
    from rsnotify_publisher.folder.publishing import FolderPublishing
    from rsnotify_publisher.publisher import Publisher

#: Files that one set keeps open: its journal, three times, and connections to hubs.
_FILES_OF_A_SET = 20
_OTHER_FILES = 256
#: Seconds in which hundreds of sets write their last documents, though the disk is busy.
_TO_END = 90.0
_LEFT = "the Source has not ended in order, so it is left as it is; what was recorded is kept"

#: The groups of options in the help.
_HUBS = "Hubs"
_MQTT = "MQTT"
_DOCUMENTS = "Documents"


def source(
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="The folder to publish.")
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="URL of the folder for others; http://HOST:PORT/ if not given."
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="Address to listen on.", show_default="127.0.0.1"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", help="Port to listen on; 0 takes a free one.", show_default="8000"
        ),
    ] = None,
    hub: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL", rich_help_panel=_HUBS, help="URL of a hub to push to; may be repeated."
        ),
    ] = None,
    advertise: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            rich_help_panel=_HUBS,
            help="URL of the hub for Destinations, if it is another; may be repeated.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file with settings, .toml or .json, for several sets of resources.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for the state.",
            show_default="DIR.rsnotify/source; with --config, rsnotify-source",
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", rich_help_panel=_HUBS, help="Bearer token for the hubs."),
    ] = None,
    mqtt_user: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", rich_help_panel=_MQTT, help="User at hubs that are MQTT brokers."
        ),
    ] = None,
    mqtt_password: Annotated[
        str | None,
        typer.Option(metavar="PASSWORD", rich_help_panel=_MQTT, help="Password of that user."),
    ] = None,
    mqtt_ca: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=_MQTT,
            help="Certificates that a broker's has to come from.",
        ),
    ] = None,
    mqtt_certificate: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", rich_help_panel=_MQTT, help="Certificate to show to a broker."
        ),
    ] = None,
    mqtt_key: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", rich_help_panel=_MQTT, help="Private key of that certificate."
        ),
    ] = None,
    mqtt_version: Annotated[
        str | None,
        typer.Option(
            metavar="5|3.1.1", rich_help_panel=_MQTT, help="Version of MQTT.", show_default="5"
        ),
    ] = None,
    described_by: Annotated[
        str | None,
        typer.Option(
            metavar="URL", rich_help_panel=_DOCUMENTS, help="URL of a document about the Source."
        ),
    ] = None,
    heartbeat: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            rich_help_panel=_HUBS,
            help="Seconds of quiet before a heartbeat.",
            min=0.1,
            show_default="10",
        ),
    ] = None,
    resource_list_every: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            rich_help_panel=_DOCUMENTS,
            help="Seconds between refreshes of the Resource List.",
            min=0.1,
            show_default="900",
        ),
    ] = None,
    rotate: Annotated[
        str | None,
        typer.Option(
            metavar="BOUNDS",
            rich_help_panel=_DOCUMENTS,
            help="When changes are closed, such as '500 changes or 1 h'.",
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="BOUNDS",
            rich_help_panel=_DOCUMENTS,
            help="How long what is closed stays, such as '30 days, 1000 lists, 2 GB'.",
        ),
    ] = None,
    resource_dump_every: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            rich_help_panel=_DOCUMENTS,
            help="Seconds between Resource Dumps; none if not given.",
        ),
    ] = None,
    change_dump: Annotated[
        bool,
        typer.Option(
            "--change-dump",
            rich_help_panel=_DOCUMENTS,
            help="Offer the content of changes in packages.",
        ),
    ] = False,
    resource_list_archive: Annotated[
        bool,
        typer.Option(
            "--resource-list-archive",
            rich_help_panel=_DOCUMENTS,
            help="Keep former Resource Lists.",
        ),
    ] = False,
    resource_dump_archive: Annotated[
        bool,
        typer.Option(
            "--resource-dump-archive",
            rich_help_panel=_DOCUMENTS,
            help="Keep former Resource Dumps.",
        ),
    ] = False,
    change_dump_archive: Annotated[
        bool,
        typer.Option(
            "--change-dump-archive",
            rich_help_panel=_DOCUMENTS,
            help="Keep older packages of changes.",
        ),
    ] = False,
    no_framework: Annotated[
        bool,
        typer.Option(
            "--no-framework", rich_help_panel=_HUBS, help="Do not tell hubs of new documents."
        ),
    ] = False,
    framework_url: Annotated[
        bool,
        typer.Option(
            "--framework-url",
            rich_help_panel=_HUBS,
            help="Name where that is told by a <url> of the Source Description, too.",
        ),
    ] = False,
    gzip: Annotated[
        bool,
        typer.Option(
            "--gzip", rich_help_panel=_DOCUMENTS, help="Keep long documents compressed, as .xml.gz."
        ),
    ] = False,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="1.1|1.0",
            rich_help_panel=_DOCUMENTS,
            help="The ResourceSync that is written, 1.1 or 1.0.",
            show_default="1.1",
        ),
    ] = None,
    allow_private_addresses: Annotated[
        bool,
        typer.Option(
            "--allow-private-addresses",
            rich_help_panel=_HUBS,
            help="Dial any address. A hub named here may be anywhere even without.",
        ),
    ] = False,
) -> None:
    """Publish a folder as a Source, and push its changes to hubs.

    It serves the files and the ResourceSync documents, and watches the folder.

    Examples:
        rsnotify source data --base-url https://source.example/
        rsnotify source data --hub http://127.0.0.1:8080/
        rsnotify source --config source.toml
    """
    from rsnotify_publisher.config import load_configuration

    if (folder is None) == (config is None):
        raise ConfigurationError("name either a folder to publish, or a --config file of sets")
    settings = load_configuration(
        config,
        base_url=base_url,
        host=host,
        port=port,
        hubs=hub or None,
        advertise=advertise or None,
        data=None if data is None else str(data),
        token=token,
        mqtt_user=mqtt_user,
        mqtt_password=mqtt_password,
        mqtt_ca=mqtt_ca,
        mqtt_certificate=mqtt_certificate,
        mqtt_key=mqtt_key,
        mqtt_version=mqtt_version,
        described_by=described_by,
        options={
            "heartbeat": heartbeat,
            "resource_list_every": resource_list_every,
            "rotate": rotate,
            "keep": keep,
            "resource_dump_every": resource_dump_every,
            "change_dump": change_dump or None,
            "resource_list_archive": resource_list_archive or None,
            "resource_dump_archive": resource_dump_archive or None,
            "change_dump_archive": change_dump_archive or None,
            "framework": False if no_framework else None,
            "framework_url": framework_url or None,
            "gzip": gzip or None,
            "profile": profile,
        },
    )
    _publish(folder, settings)


def _publish(root: Path | None, settings: SourceConfiguration) -> None:
    from rsnotify_publisher.commands.source_report import show_status
    from rsnotify_publisher.folder.publishing import FolderPublishing
    from rsnotify_publisher.folder.server import server
    from rsnotify_publisher.folder.sets import claim, one_folder, several_folders

    with listen(settings.host, settings.port) as listening:
        base_url = settings.base_url or address(settings.host, listening)
        published: Publisher | SourceDescription
        if root is None:
            published, folders = several_folders(base_url, settings)
        else:
            published, folders = one_folder(root, base_url, settings)
        with claim(folders):
            _allow_files(len(folders))
            app = server(published, folders)
            leaving = ForcedShutdown(lambda: _LEFT, _TO_END)
            at = address(settings.host, listening)
            publishers = [folder.publisher for folder in folders]

            async def main(stop: asyncio.Event) -> None:
                publishing = FolderPublishing(folders, at)
                showing = asyncio.create_task(show_status(publishers, publishing.published))
                try:
                    await _serve(app, publishing, listening, stop)
                finally:
                    showing.cancel()
                    await asyncio.gather(showing, return_exceptions=True)

            run(main, leaving)


def _allow_files(sets: int) -> None:
    wanted = sets * _FILES_OF_A_SET + _OTHER_FILES
    allowed = allow_files(wanted)
    if allowed < wanted:
        complain(
            f"{counted(sets, 'set')} may need {wanted:,} files and connections at once, and the "
            f"system allows {allowed:,}; raise that (ulimit -n)",
            0,
        )


async def _serve(
    app: web.Application,
    publishing: FolderPublishing,
    listening: socket.socket,
    stop: asyncio.Event,
) -> None:
    from aiohttp import web

    runner = web.AppRunner(app, access_log=None, shutdown_timeout=2)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        await publishing.run(stop, typer.echo)
    finally:
        await runner.cleanup()
