"""The options that several commands share, as annotated types for typer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rsnotify.format.vocabulary import ChangeType
from rsnotify_subscriber.push.websub.terms import DEFAULT_TERMS
from rsnotify_subscriber.via import Via

if TYPE_CHECKING:
    from rsnotify_subscriber.fetching.credentials import Credentials

#: The groups of options in the help.
_SELECTION = "What to follow"
_PUSH = "Push and polling"
_NETWORK = "Network"
_CALLBACKS = "WebSub callbacks"
_MQTT = "MQTT"


def _option(panel: str | None, metavar: str | None, text: str, *flags: str, **settings: Any) -> Any:
    return typer.Option(*flags, metavar=metavar, help=text, rich_help_panel=panel, **settings)


_URL = typer.Argument(metavar="URL", help="A site, a Capability List, a Change List, ...")
_DEST = typer.Argument(metavar="DEST", help="The folder of the mirror.", file_okay=False)

Url = Annotated[str, _URL]
Dest = Annotated[Path, _DEST]
MaybeUrl = Annotated[str | None, _URL]
MaybeDest = Annotated[Path | None, _DEST]
Config = Annotated[
    Path | None,
    _option(
        None,
        "FILE",
        "Follow all Sources in this file, .toml or .json; other options override its [defaults].",
        dir_okay=False,
    ),
]
State = Annotated[
    Path | None,
    _option(None, "DIR", "The folder of the state.", show_default="DEST.rsnotify", file_okay=False),
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON.")]

ViaOption = Annotated[
    Via, _option(_PUSH, "auto|websocket|mqtt|websub|poll", "The transport by which changes arrive.")
]
Hubs = Annotated[
    int, _option(_PUSH, "N", "Connections to hubs that are kept up at the same time.", min=1)
]
Poll = Annotated[float, _option(_PUSH, "SECONDS", "Seconds between polls without push.", min=0.1)]
Compare = Annotated[
    float,
    _option(
        _PUSH,
        "SECONDS",
        "Time between two comparisons of the whole copy with what the Source lists.",
        min=0,
    ),
]
Spread = Annotated[
    float | None,
    _option(
        _PUSH,
        "SECONDS",
        "Request pushed changes after a random delay of up to this time, not at once.",
        show_default="by the number of subscribers",
        min=0,
    ),
]
Rate = Annotated[
    float | None,
    _option(
        _PUSH, "N", "Request at most N resources a second.", show_default="unlimited", min=0.001
    ),
]

Only = Annotated[
    list[str] | None,
    _option(_SELECTION, "PATTERN", "Follow only URIs like this, as *.ttl or maps/; repeatable."),
]
Except = Annotated[
    list[str] | None,
    _option(
        _SELECTION,
        "PATTERN",
        "Follow no URIs like this; repeatable.",
        "--except",
        envvar="RSNOTIFY_EXCEPT",
    ),
]
Type = Annotated[
    list[str] | None,
    _option(
        _SELECTION, "TYPE", "Follow only this media type, as text/turtle or text/*; repeatable."
    ),
]
Change = Annotated[
    list[ChangeType] | None,
    _option(_SELECTION, "created|updated|deleted", "Follow only this type of change; repeatable."),
]
Collection = Annotated[
    list[str] | None,
    _option(_SELECTION, "URI", "Follow only members of this collection; repeatable."),
]
Prefer = Annotated[
    list[str] | None,
    _option(
        _SELECTION,
        "TYPE",
        "Copy this media type of a resource where it is offered; repeatable, best first.",
    ),
]
Exact = Annotated[
    bool,
    _option(
        _SELECTION,
        None,
        "Fetch the version of each change where the Source keeps versions.",
        "--exact",
    ),
]

Private = Annotated[
    bool,
    _option(
        _NETWORK,
        None,
        "Let documents name hosts at loopback and private addresses.",
        "--allow-private-addresses",
    ),
]
Login = Annotated[
    str | None,
    _option(
        _NETWORK,
        "USER:PASSWORD",
        "User and password for the Source.",
        envvar="RSNOTIFY_LOGIN",
        allow_from_autoenv=False,
    ),
]
Bearer = Annotated[
    str | None,
    _option(
        _NETWORK,
        "TOKEN",
        "Bearer token for the Source.",
        envvar="RSNOTIFY_BEARER",
        allow_from_autoenv=False,
    ),
]
#: Its environment variable has one header field on each line, so typer must not split it.
Header = Annotated[
    list[str] | None,
    _option(
        _NETWORK,
        "'NAME: VALUE'",
        "Header field to send to the Source; repeatable. RSNOTIFY_HEADER has one a line.",
        allow_from_autoenv=False,
    ),
]

CallbackUrl = Annotated[
    str | None,
    _option(
        _CALLBACKS,
        "URL",
        "Where hubs reach this process from outside, for WebSub.",
        show_default=False,
    ),
]
CallbackHost = Annotated[str, _option(_CALLBACKS, "HOST", "Address to listen on for hubs.")]
CallbackPort = Annotated[
    int | None,
    _option(
        _CALLBACKS, "PORT", "Port to listen on for hubs.", show_default="that of --callback-url"
    ),
]
CallbackLease = Annotated[int, _option(_CALLBACKS, "SECONDS", "Lease to request from hubs.", min=1)]
CallbackSecret = Annotated[
    bool, _option(_CALLBACKS, None, "Give each hub a secret for its signatures.")
]
CallbackSignature = Annotated[
    list[str] | None,
    _option(
        _CALLBACKS,
        "METHOD",
        "Accept signatures by this method, as sha256; repeatable.",
        show_default=", ".join(DEFAULT_TERMS.signatures),
    ),
]
CallbackRefuse = Annotated[
    bool, _option(_CALLBACKS, None, "Answer content whose signature is wrong with 403.")
]
CallbackPatience = Annotated[
    float,
    _option(_CALLBACKS, "SECONDS", "How long a hub may take to verify a subscription.", min=0.1),
]
CallbackSettle = Annotated[
    float, _option(_CALLBACKS, "SECONDS", "How long a hub may take to begin to deliver.", min=0.1)
]
CallbackQuiet = Annotated[
    float, _option(_CALLBACKS, "SECONDS", "Subscribe again after such a silence.", min=0.1)
]

MqttUrl = Annotated[
    str | None, _option(_MQTT, "URL", "MQTT broker to use instead of the one the Source names.")
]
MqttUser = Annotated[str | None, _option(_MQTT, "NAME", "User at the MQTT broker.")]
MqttPassword = Annotated[str | None, _option(_MQTT, "PASSWORD", "Password of that user.")]
MqttCa = Annotated[
    str | None, _option(_MQTT, "FILE", "CA certificates that verify the certificate of the broker.")
]
MqttCertificate = Annotated[
    str | None, _option(_MQTT, "FILE", "Client certificate for the MQTT broker.")
]
MqttKey = Annotated[str | None, _option(_MQTT, "FILE", "Private key of that certificate.")]
MqttSession = Annotated[
    str,
    _option(
        _MQTT,
        "NAME",
        "Session that the MQTT broker keeps while this process is away.",
        show_default=False,
    ),
]
MqttVersion = Annotated[str, _option(_MQTT, "5|3.1.1", "Version of MQTT.")]


def credentials_of(
    login: str | None, bearer: str | None, header: Sequence[str] | None
) -> Credentials:
    """Return the credentials for a Source.

    Args:
        login: The option `--login`.
        bearer: The option `--bearer`.
        header: The options `--header`; None to read the environment variable.

    Raises:
        ConfigurationError: A header field is not written as one.
    """
    from rsnotify_subscriber.fetching.credentials import Credentials, parse_header_lines

    lines = os.environ.get("RSNOTIFY_HEADER", "").splitlines() if header is None else header
    headers = parse_header_lines(filter(str.strip, lines))
    return Credentials(login=login, bearer=bearer, headers=headers)
