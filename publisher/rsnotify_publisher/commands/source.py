"""`rsnotify source`: publishes folders, serves and watches them, and pushes their changes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.command_line import option

#: The groups of options in the help.
_HUBS = "Hubs"
_MQTT = "MQTT"
_XMPP = "XMPP"
_DOCUMENTS = "Documents"


def _flag(name: str, help: str, panel: str) -> Any:
    return typer.Option(name, help=help, rich_help_panel=panel)


def source(
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="The folder to publish.")
    ] = None,
    base_url: Annotated[
        str | None, option("URL", "Public URL of the folder; http://HOST:PORT/ if not given.")
    ] = None,
    host: Annotated[
        str | None, option("HOST", "Address to listen on.", show_default="127.0.0.1")
    ] = None,
    port: Annotated[
        int | None, option("PORT", "Port to listen on; 0 for a free one.", show_default="8000")
    ] = None,
    hub: Annotated[
        list[str] | None,
        option(
            "URL",
            "URL of a hub to push to, or of its nodes with commas between them; may be repeated.",
            _HUBS,
        ),
    ] = None,
    advertise: Annotated[
        list[str] | None,
        option("URL", "URL of the hub for Destinations, if it differs; may be repeated.", _HUBS),
    ] = None,
    config: Annotated[
        Path | None,
        option("FILE", "A file with settings, .toml or .json, for several sets of resources."),
    ] = None,
    data: Annotated[
        Path | None,
        option(
            "DIR",
            "Folder for the state.",
            show_default="DIR.rsnotify/source; with --config, rsnotify-source",
        ),
    ] = None,
    token: Annotated[str | None, option("TOKEN", "Bearer token for the hubs.", _HUBS)] = None,
    mqtt_user: Annotated[
        str | None, option("NAME", "User at hubs that are MQTT brokers.", _MQTT)
    ] = None,
    mqtt_password: Annotated[
        str | None, option("PASSWORD", "Password of that user.", _MQTT)
    ] = None,
    mqtt_ca: Annotated[
        str | None,
        option("FILE", "Certificates of the authorities that may sign a broker's.", _MQTT),
    ] = None,
    mqtt_certificate: Annotated[
        str | None, option("FILE", "Certificate to show to a broker.", _MQTT)
    ] = None,
    mqtt_key: Annotated[
        str | None, option("FILE", "Private key of that certificate.", _MQTT)
    ] = None,
    mqtt_version: Annotated[
        str | None, option("5|3.1.1", "Version of MQTT.", _MQTT, show_default="5")
    ] = None,
    xmpp_jid: Annotated[
        str | None, option("USER@DOMAIN", "Account that publishes at PubSub services.", _XMPP)
    ] = None,
    xmpp_password: Annotated[
        str | None, option("PASSWORD", "Password of that account.", _XMPP)
    ] = None,
    xmpp_server: Annotated[
        str | None, option("HOST:PORT", "Its server, if DNS does not name the server.", _XMPP)
    ] = None,
    xmpp_ca: Annotated[
        str | None,
        option("FILE", "Certificates of the authorities that may sign the server's.", _XMPP),
    ] = None,
    described_by: Annotated[
        str | None, option("URL", "URL of a document about the Source.", _DOCUMENTS)
    ] = None,
    heartbeat: Annotated[
        float | None,
        option(
            "SECONDS", "Seconds of quiet before a heartbeat.", _HUBS, min=0.1, show_default="10"
        ),
    ] = None,
    resource_list_every: Annotated[
        str | None,
        option(
            "SCHEDULE",
            "Seconds between Resource Lists, or a cron expression such as 'cron: 0 * * * *' (UTC).",
            _DOCUMENTS,
            show_default="900",
        ),
    ] = None,
    rotate: Annotated[
        str | None,
        option(
            "BOUNDS",
            "When changes are closed, such as '500 changes or 1 h' or 'cron: 0 3 * * *'.",
            _DOCUMENTS,
        ),
    ] = None,
    keep: Annotated[
        str | None,
        option(
            "BOUNDS",
            "How long closed documents stay, such as '30 days, 1000 lists, 2 GB'; with "
            "'cron: 0 4 * * sun' they are dropped at these times only.",
            _DOCUMENTS,
        ),
    ] = None,
    resource_dump_every: Annotated[
        str | None,
        option(
            "SCHEDULE",
            "Seconds between Resource Dumps, or a cron expression; none if not given.",
            _DOCUMENTS,
        ),
    ] = None,
    change_dump: Annotated[
        bool, _flag("--change-dump", "Offer the content of changes in packages.", _DOCUMENTS)
    ] = False,
    resource_list_archive: Annotated[
        bool, _flag("--resource-list-archive", "Keep former Resource Lists.", _DOCUMENTS)
    ] = False,
    resource_dump_archive: Annotated[
        bool, _flag("--resource-dump-archive", "Keep former Resource Dumps.", _DOCUMENTS)
    ] = False,
    change_dump_archive: Annotated[
        bool, _flag("--change-dump-archive", "Keep older packages of changes.", _DOCUMENTS)
    ] = False,
    views: Annotated[
        list[str] | None,
        option(
            "NAME", "Also write changes in this format (iiif, ldes); may be repeated.", _DOCUMENTS
        ),
    ] = None,
    no_framework: Annotated[
        bool, _flag("--no-framework", "Do not notify hubs of new documents.", _HUBS)
    ] = False,
    framework_url: Annotated[
        bool,
        _flag(
            "--framework-url",
            "Also list the channel of these notices by a <url> in the Source Description.",
            _HUBS,
        ),
    ] = False,
    gzip: Annotated[
        bool, _flag("--gzip", "Keep long documents compressed, as .xml.gz.", _DOCUMENTS)
    ] = False,
    profile: Annotated[
        str | None,
        option(
            "1.1|1.0",
            "The version of ResourceSync to write, 1.1 or 1.0.",
            _DOCUMENTS,
            show_default="1.1",
        ),
    ] = None,
    allow_private_addresses: Annotated[
        bool,
        _flag(
            "--allow-private-addresses",
            "Connect to any address. Hubs named here may have any address even without.",
            _HUBS,
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
        xmpp_jid=xmpp_jid,
        xmpp_password=xmpp_password,
        xmpp_server=xmpp_server,
        xmpp_ca=xmpp_ca,
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
            "views": tuple(views or ()) or None,
            "framework": False if no_framework else None,
            "framework_url": framework_url or None,
            "gzip": gzip or None,
            "profile": profile,
        },
    )
    from rsnotify_publisher.commands.source_run import publish

    publish(folder, settings)
