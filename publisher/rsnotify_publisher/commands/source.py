"""`rsnotify source`: publishes folders, serves and watches them, and pushes their changes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rsnotify.errors import ConfigurationError

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
            metavar="PORT", help="Port to listen on; 0 for a free one.", show_default="8000"
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
            help="URL of the hub for Destinations, if it differs; may be repeated.",
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
            help="Certificates of the authorities that may sign a broker's.",
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
        str | None,
        typer.Option(
            metavar="SCHEDULE",
            rich_help_panel=_DOCUMENTS,
            help="Seconds between Resource Lists, or a cron expression such as 'cron: 0 * * * *'.",
            show_default="900",
        ),
    ] = None,
    rotate: Annotated[
        str | None,
        typer.Option(
            metavar="BOUNDS",
            rich_help_panel=_DOCUMENTS,
            help="When changes are closed: '500 changes or 1 h', 'cron: 0 3 * * *' (UTC).",
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="BOUNDS",
            rich_help_panel=_DOCUMENTS,
            help="How long closed documents stay: '30 days, 1000 lists, 2 GB'; a cron expression "
            "such as 'cron: 0 4 * * sun' says when they are dropped.",
        ),
    ] = None,
    resource_dump_every: Annotated[
        str | None,
        typer.Option(
            metavar="SCHEDULE",
            rich_help_panel=_DOCUMENTS,
            help="Seconds between Resource Dumps, or a cron expression; none if not given.",
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
            "--no-framework", rich_help_panel=_HUBS, help="Do not notify hubs of new documents."
        ),
    ] = False,
    framework_url: Annotated[
        bool,
        typer.Option(
            "--framework-url",
            rich_help_panel=_HUBS,
            help="Also list the channel of these notices by a <url> in the Source Description.",
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
            help="The version of ResourceSync to write, 1.1 or 1.0.",
            show_default="1.1",
        ),
    ] = None,
    allow_private_addresses: Annotated[
        bool,
        typer.Option(
            "--allow-private-addresses",
            rich_help_panel=_HUBS,
            help="Connect to any address. Hubs named here may have any address even without.",
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
    from rsnotify_publisher.commands.source_run import publish

    publish(folder, settings)
