"""The command `rsnotify source`: publishes, serves and watches folders, and pushes changes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.command_line import option, with_arguments
from rsnotify.runtime.command_status import StatusArguments

ROLE = "publish"

# The groups of options in the help text.
_publishing = partial(option, "Publishing")
_hubs = partial(option, "Hubs")
_rare_hubs = partial(_hubs, advanced=True)
_mqtt = partial(option, "MQTT", advanced=True)
_xmpp = partial(option, "XMPP", advanced=True)
_documents = partial(option, "Documents")
_rare_documents = partial(_documents, advanced=True)


class PublishingArguments(Struct, frozen=True, kw_only=True):
    """The options of every command that publishes. Each corresponds to a setting."""

    base_url: Annotated[
        str | None, _publishing("URL", "Public URL; http://HOST:PORT/ by default.")
    ] = None
    host: Annotated[
        str | None, _publishing("HOST", "Address to listen on.", show_default="127.0.0.1")
    ] = None
    port: Annotated[
        int | None,
        _publishing("PORT", "Port to listen on; 0 for any free one.", show_default="8000"),
    ] = None
    hub: Annotated[
        list[str] | None,
        _hubs(
            "URL",
            "URL of a hub to push to, or of its nodes, separated by commas; may be repeated.",
        ),
    ] = None
    token: Annotated[str | None, _hubs("TOKEN", "Bearer token for the hubs.")] = None

    def settings(self) -> dict[str, Any]:
        """Return the settings; options that were not given are None."""
        found = {name: _plain(getattr(self, name)) for name in self.__struct_fields__}
        found["hubs"] = found.pop("hub")
        return found


def _plain(value: object) -> object:
    """Return the value of an option as in a settings file."""
    if isinstance(value, list):
        return tuple(value) or None
    return str(value) if isinstance(value, Path) else value


class SourceArguments(PublishingArguments, frozen=True, kw_only=True):
    """The options of `rsnotify source` that are settings; some are in the table `options`."""

    data: Annotated[
        Path | None,
        option(
            None,
            "DIR",
            "Folder for the state.",
            show_default="DIR.rsnotify/source; with --config, rsnotify-source",
        ),
    ] = None
    advertise: Annotated[
        list[str] | None,
        _rare_hubs("URL", "URL of the hub for Destinations, if it differs; may be repeated."),
    ] = None
    mqtt_user: Annotated[str | None, _mqtt("NAME", "User name at hubs that are MQTT brokers.")] = (
        None
    )
    mqtt_password: Annotated[str | None, _mqtt("PASSWORD", "Password of that user.")] = None
    mqtt_ca: Annotated[
        str | None, _mqtt("FILE", "Certificates of the authorities to trust for brokers.")
    ] = None
    mqtt_certificate: Annotated[str | None, _mqtt("FILE", "Client certificate for brokers.")] = None
    mqtt_key: Annotated[str | None, _mqtt("FILE", "Private key of that certificate.")] = None
    mqtt_version: Annotated[str | None, _mqtt("5|3.1.1", "Version of MQTT.", show_default="5")] = (
        None
    )
    xmpp_jid: Annotated[
        str | None, _xmpp("USER@DOMAIN", "Account that publishes at PubSub services.")
    ] = None
    xmpp_password: Annotated[str | None, _xmpp("PASSWORD", "Password of that account.")] = None
    xmpp_server: Annotated[
        str | None, _xmpp("HOST:PORT", "Server of that account, if DNS does not provide it.")
    ] = None
    xmpp_ca: Annotated[
        str | None, _xmpp("FILE", "Certificates of the authorities to trust for the server.")
    ] = None
    described_by: Annotated[
        str | None, _rare_documents("URL", "URL of a document about the Source.")
    ] = None
    heartbeat: Annotated[
        float | None,
        _rare_hubs(
            "SECONDS", "Seconds without a change before a heartbeat.", min=0.1, show_default="10"
        ),
    ] = None
    resource_list_every: Annotated[
        str | None,
        _documents(
            "SCHEDULE",
            "Seconds between Resource Lists, or a cron expression such as 'cron: 0 * * * *' (UTC).",
            show_default="900",
        ),
    ] = None
    rotate: Annotated[
        str | None,
        _rare_documents(
            "LIMITS", "When changes are closed, such as '500 changes or 1 h' or 'cron: 0 3 * * *'."
        ),
    ] = None
    keep: Annotated[
        str | None,
        _documents(
            "LIMITS",
            "How long closed documents stay, such as '30 days, 1000 lists, 2 GB'; with "
            "'cron: 0 4 * * sun' they are dropped only at these times.",
        ),
    ] = None
    resource_dump_every: Annotated[
        str | None,
        _documents(
            "SCHEDULE", "Seconds between Resource Dumps, or a cron expression; by default, none."
        ),
    ] = None
    change_dump: Annotated[
        bool | None,
        _rare_documents(None, "Offer packages with the content of changes.", "--change-dump"),
    ] = None
    resource_list_archive: Annotated[
        bool | None, _rare_documents(None, "Keep former Resource Lists.", "--resource-list-archive")
    ] = None
    resource_dump_archive: Annotated[
        bool | None, _rare_documents(None, "Keep former Resource Dumps.", "--resource-dump-archive")
    ] = None
    change_dump_archive: Annotated[
        bool | None,
        _rare_documents(None, "Keep older packages of changes.", "--change-dump-archive"),
    ] = None
    views: Annotated[
        list[str] | None,
        _rare_documents("NAME", "Also write changes in this format (iiif, ldes); may be repeated."),
    ] = None
    no_framework: Annotated[
        bool | None, _rare_hubs(None, "Do not notify hubs of new documents.", "--no-framework")
    ] = None
    framework_url: Annotated[
        bool | None,
        _rare_hubs(
            None,
            "Also list the channel for these notices as a <url> in the Source Description.",
            "--framework-url",
        ),
    ] = None
    gzip: Annotated[
        bool | None, _rare_documents(None, "Store long documents compressed, as .xml.gz.", "--gzip")
    ] = None
    profile: Annotated[
        str | None,
        _rare_documents("1.1|1.0", "Version of ResourceSync to write.", show_default="1.1"),
    ] = None

    def settings(self) -> dict[str, Any]:
        """Return the settings in the same tables as in a settings file."""
        from rsnotify_publisher.options import Options

        found = super().settings()
        if (without := found.pop("no_framework")) is not None:
            found["framework"] = not without
        tuning = {name: found.pop(name) for name in found.keys() & set(Options.__struct_fields__)}
        return {**found, "options": tuning}


@with_arguments
def source(
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="The folder to publish.")
    ] = None,
    config: Annotated[
        Path | None,
        option(
            None, "FILE", "A file (.toml or .json) with the settings of several sets of resources."
        ),
    ] = None,
    allow_private_addresses: Annotated[
        bool,
        _rare_hubs(
            None,
            "Has no effect: hubs that you name may have any address.",
            "--allow-private-addresses",
        ),
    ] = False,
    *,
    serving: StatusArguments,
    arguments: SourceArguments,
) -> None:
    """Publish a folder as a Source, and push its changes to hubs.

    The command serves the files and the ResourceSync documents, and watches the folder.

    Examples:
        rsnotify source data --base-url https://source.example/
        rsnotify source data --hub http://127.0.0.1:8080/
        rsnotify source --config source.toml
    """
    from rsnotify_publisher.commands.source_run import publish
    from rsnotify_publisher.config import load_configuration

    if (folder is None) == (config is None):
        raise ConfigurationError("give either a folder to publish, or a --config file with sets")
    settings = load_configuration(config, **arguments.settings())
    with serving.server() as status:
        publish(folder, settings, status)
