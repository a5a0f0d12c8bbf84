"""Options that several commands share."""

from __future__ import annotations

import socket
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from rsnotify.errors import ConfigurationError
from rsnotify.format.vocabulary import ChangeType
from rsnotify.runtime.cli.listening import listen
from rsnotify_subscriber.push.websub.terms import DEFAULT_TERMS, WebSubTerms
from rsnotify_subscriber.via import Via

if TYPE_CHECKING:
    from rsnotify_subscriber.push.websub.callbacks import Callbacks

#: The groups of options in the help.
_SELECTION = "What to follow"
_PUSH = "Push and polling"
_NETWORK = "Network"
_CALLBACKS = "WebSub callbacks"
_MQTT = "MQTT"

Url = Annotated[
    str, typer.Argument(metavar="URL", help="A site, a Capability List, a Change List, ...")
]
Dest = Annotated[
    Path, typer.Argument(metavar="DEST", help="The folder of the mirror.", file_okay=False)
]
MaybeUrl = Annotated[
    str | None, typer.Argument(metavar="URL", help="A site, a Capability List, a Change List, ...")
]
MaybeDest = Annotated[
    Path | None, typer.Argument(metavar="DEST", help="The folder of the mirror.", file_okay=False)
]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Follow all Sources that this file names, .toml or .json; other options are then "
        "over its [defaults].",
        dir_okay=False,
    ),
]
State = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="The folder of the state.",
        show_default="DEST.rsnotify",
        file_okay=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON.")]
ViaOption = Annotated[
    Via,
    typer.Option(
        metavar="auto|websocket|mqtt|websub|poll",
        rich_help_panel=_PUSH,
        help="How changes are heard of.",
    ),
]
Hubs = Annotated[
    int,
    typer.Option(
        metavar="N",
        rich_help_panel=_PUSH,
        help="Ways to hear of changes that are kept up at once.",
        min=1,
    ),
]
Poll = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        rich_help_panel=_PUSH,
        help="Seconds between polls without push.",
        min=0.1,
    ),
]
Compare = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        rich_help_panel=_PUSH,
        help="Time between two comparisons of the whole copy with what the Source lists.",
        min=0,
    ),
]
Spread = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        rich_help_panel=_PUSH,
        help="Ask for what was pushed within this time, by chance, and not at once.",
        show_default="by how many listen",
        min=0,
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(
        metavar="N",
        rich_help_panel=_PUSH,
        help="Ask for N resources a second at most.",
        show_default="any number",
        min=0.001,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN",
        rich_help_panel=_SELECTION,
        help="Follow only URIs like this, as *.ttl or maps/; may be repeated.",
    ),
]
Except = Annotated[
    list[str] | None,
    typer.Option(
        "--except",
        metavar="PATTERN",
        envvar="RSNOTIFY_EXCEPT",
        rich_help_panel=_SELECTION,
        help="Follow no URIs like this; may be repeated.",
    ),
]
Type = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TYPE",
        rich_help_panel=_SELECTION,
        help="Follow only this media type, as text/turtle or text/*; may be repeated.",
    ),
]
Change = Annotated[
    list[ChangeType] | None,
    typer.Option(
        metavar="created|updated|deleted",
        rich_help_panel=_SELECTION,
        help="Follow only this type of change; may be repeated.",
    ),
]
Collection = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URI",
        rich_help_panel=_SELECTION,
        help="Follow only members of this collection; may be repeated.",
    ),
]
Prefer = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TYPE",
        rich_help_panel=_SELECTION,
        help="Hold this media type of a resource where it is offered; may be repeated, best first.",
    ),
]
Exact = Annotated[
    bool,
    typer.Option(
        "--exact",
        rich_help_panel=_SELECTION,
        help="Fetch the version of each change where the Source keeps versions.",
    ),
]
Private = Annotated[
    bool,
    typer.Option(
        "--allow-private-addresses",
        rich_help_panel=_NETWORK,
        help="Let documents name hosts at loopback and private addresses.",
    ),
]
Login = Annotated[
    str | None,
    typer.Option(
        metavar="USER:PASSWORD",
        envvar="RSNOTIFY_LOGIN",
        allow_from_autoenv=False,
        rich_help_panel=_NETWORK,
        help="User and password for the Source.",
    ),
]
Bearer = Annotated[
    str | None,
    typer.Option(
        metavar="TOKEN",
        envvar="RSNOTIFY_BEARER",
        allow_from_autoenv=False,
        rich_help_panel=_NETWORK,
        help="Bearer token for the Source.",
    ),
]
#: Its environment variable has one header field on each line, so that typer does not split it.
Header = Annotated[
    list[str] | None,
    typer.Option(
        metavar="'NAME: VALUE'",
        rich_help_panel=_NETWORK,
        help="Header field to send to the Source; may be repeated. RSNOTIFY_HEADER has one a line.",
        allow_from_autoenv=False,
    ),
]

CallbackUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        rich_help_panel=_CALLBACKS,
        help="Where hubs reach this process from outside, for WebSub.",
        show_default=False,
    ),
]
CallbackHost = Annotated[
    str,
    typer.Option(metavar="HOST", rich_help_panel=_CALLBACKS, help="Address to listen on for hubs."),
]
CallbackPort = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        rich_help_panel=_CALLBACKS,
        help="Port to listen on for hubs.",
        show_default="that of --callback-url",
    ),
]

CallbackLease = Annotated[
    int,
    typer.Option(
        metavar="SECONDS", rich_help_panel=_CALLBACKS, help="Lease that hubs are asked for.", min=1
    ),
]
CallbackSecret = Annotated[
    bool, typer.Option(rich_help_panel=_CALLBACKS, help="Give hubs a secret, each another.")
]
CallbackSignature = Annotated[
    list[str] | None,
    typer.Option(
        metavar="METHOD",
        rich_help_panel=_CALLBACKS,
        help="Take signatures made like this, as sha256; may be repeated.",
        show_default=", ".join(DEFAULT_TERMS.signatures),
    ),
]
CallbackRefuse = Annotated[
    bool,
    typer.Option(
        rich_help_panel=_CALLBACKS, help="Answer content whose signature is wrong with 403."
    ),
]
CallbackPatience = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        rich_help_panel=_CALLBACKS,
        help="How long a hub may take to ask back.",
        min=0.1,
    ),
]
CallbackSettle = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        rich_help_panel=_CALLBACKS,
        help="How long a hub may take to begin to deliver.",
        min=0.1,
    ),
]
CallbackQuiet = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        rich_help_panel=_CALLBACKS,
        help="Ask a hub anew after such a silence.",
        min=0.1,
    ),
]

MqttUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        rich_help_panel=_MQTT,
        help="MQTT broker to use instead of the one the Source names.",
    ),
]
MqttUser = Annotated[
    str | None, typer.Option(metavar="NAME", rich_help_panel=_MQTT, help="User at the MQTT broker.")
]
MqttPassword = Annotated[
    str | None,
    typer.Option(metavar="PASSWORD", rich_help_panel=_MQTT, help="Password of that user."),
]
MqttCa = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=_MQTT,
        help="Certificates that the broker's has to come from.",
    ),
]
MqttCertificate = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", rich_help_panel=_MQTT, help="Certificate to show to the MQTT broker."
    ),
]
MqttKey = Annotated[
    str | None,
    typer.Option(metavar="FILE", rich_help_panel=_MQTT, help="Private key of that certificate."),
]
MqttSession = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        rich_help_panel=_MQTT,
        help="Session that the MQTT broker keeps while this is away.",
        show_default=False,
    ),
]
MqttVersion = Annotated[
    str, typer.Option(metavar="5|3.1.1", rich_help_panel=_MQTT, help="Version of MQTT.")
]


class CallbackServer:
    """How hubs reach this process; a context manager that takes the port at once.

    Args:
        url: Where that is from outside; None where they need not.
        host: The address to listen on.
        port: The port to listen on; None for that of the URL.
        terms: What is asked of hubs, and what is taken from them.

    Raises:
        ConfigurationError: The URL can be no callback, or no port is named or to be had.
    """

    def __init__(
        self,
        url: str | None,
        host: str,
        port: int | None,
        terms: WebSubTerms = DEFAULT_TERMS,
    ) -> None:
        self.callbacks: Callbacks | None = None
        self._socket: socket.socket | None = None
        if url is not None:
            from rsnotify_subscriber.push.websub.callbacks import Callbacks

            self.callbacks = Callbacks(url, terms)
            port = port or urlsplit(url).port
            if port is None:
                raise ConfigurationError("name the port to listen on with --callback-port")
            self._socket = listen(host, port, "another --callback-host or --callback-port")

    def __enter__(self) -> CallbackServer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            self._socket.close()

    def answering(self) -> AbstractAsyncContextManager[None]:
        """Answer hubs, within the context."""
        if self.callbacks is None or self._socket is None:
            return nullcontext()
        from rsnotify_subscriber.push.websub.listener import listening

        return listening(self.callbacks, self._socket)
