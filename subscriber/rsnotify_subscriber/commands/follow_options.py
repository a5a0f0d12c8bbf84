"""Options of the commands that follow a Source, and options shared by several commands."""

from __future__ import annotations

import os
import socket
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError
from rsnotify.format.model import ChangeType
from rsnotify.runtime.command_line import option
from rsnotify.sync.pace import Pace
from rsnotify_subscriber.push_options import DEFAULT_TERMS, Via, WebSubTerms

if TYPE_CHECKING:
    from rsnotify_subscriber.fetching.credentials import Credentials
    from rsnotify_subscriber.fleet.configuration import SourceSettings, WebSubSettings
    from rsnotify_subscriber.options import FollowOptions
    from rsnotify_subscriber.push.websub_callbacks import Callbacks


_network = partial(option, "Network")

_URL = typer.Argument(metavar="URL", help="A site, a Capability List, a Change List, ...")
_DEST = typer.Argument(metavar="DEST", help="The folder of the mirror.", file_okay=False)

Url = Annotated[str, _URL]
Dest = Annotated[Path, _DEST]
MaybeUrl = Annotated[str | None, _URL]
MaybeDest = Annotated[Path | None, _DEST]
State = Annotated[
    Path | None,
    option(None, "DIR", "The folder of the state.", show_default="DEST.rsnotify", file_okay=False),
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON.")]


class NetworkArguments(Struct, frozen=True, kw_only=True):
    """The options of every command that reads a Source. Each field is an option."""

    allow_private_addresses: Annotated[
        bool,
        _network(
            None,
            "Let documents name hosts at loopback and private addresses.",
            "--allow-private-addresses",
        ),
    ] = False
    login: Annotated[
        str | None,
        _network(
            "USER:PASSWORD",
            "User and password for the Source.",
            envvar="RSNOTIFY_LOGIN",
            allow_from_autoenv=False,
        ),
    ] = None
    bearer: Annotated[
        str | None,
        _network(
            "TOKEN",
            "Bearer token for the Source.",
            envvar="RSNOTIFY_BEARER",
            allow_from_autoenv=False,
        ),
    ] = None
    # `credentials` reads the environment variable, because typer would split it at spaces.
    header: Annotated[
        list[str] | None,
        _network(
            "'NAME: VALUE'",
            "Header field to send to the Source; repeatable. RSNOTIFY_HEADER: one per line.",
            allow_from_autoenv=False,
        ),
    ] = None

    @property
    def credentials(self) -> Credentials:
        """The credentials. `--header` takes precedence over `RSNOTIFY_HEADER`."""
        from rsnotify_subscriber.fetching.credentials import Credentials, parse_header_lines

        lines = self.header
        if lines is None:
            lines = os.environ.get("RSNOTIFY_HEADER", "").splitlines()
        headers = parse_header_lines(filter(str.strip, lines))
        return Credentials(login=self.login, bearer=self.bearer, headers=headers)


class CallbackServer:
    """A listener for hubs. The port is bound on creation, and closed when the context exits.

    Without `url`, nothing listens. `port` defaults to the port of the URL.
    """

    def __init__(
        self, url: str | None, host: str, port: int | None, terms: WebSubTerms = DEFAULT_TERMS
    ) -> None:
        self.callbacks: Callbacks | None = None
        self._socket: socket.socket | None = None
        if url is not None:
            from rsnotify.runtime.listening import listen
            from rsnotify_subscriber.push.websub_callbacks import Callbacks

            self.callbacks = Callbacks(url, terms)
            port = port or urlsplit(url).port
            if port is None:
                raise ConfigurationError("give the port to listen on with --callback-port")
            self._socket = listen(host, port, "another --callback-host or --callback-port")

    def __enter__(self) -> CallbackServer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            self._socket.close()

    def serving(self) -> AbstractAsyncContextManager[None]:
        if self.callbacks is None or self._socket is None:
            return nullcontext()
        from rsnotify_subscriber.push.websub_callbacks import listening

        return listening(self.callbacks, self._socket)


# The groups of options in the help.
_selection = partial(option, "What to follow")
_rare_selection = partial(_selection, advanced=True)
_copy = partial(option, "The copy on disk", advanced=True)
_push = partial(option, "Push and polling")
_rare_push = partial(_push, advanced=True)
_callbacks = partial(option, "WebSub callbacks", advanced=True)
_mqtt = partial(option, "MQTT", advanced=True)
_xmpp = partial(option, "XMPP", advanced=True)


class FollowArguments(NetworkArguments, frozen=True, kw_only=True):
    """The command-line options that become `FollowOptions`. Each field is an option."""

    via: Annotated[
        Via, _push("auto|websocket|mqtt|xmpp|websub|poll", "The transport by which changes arrive.")
    ] = Via.AUTO
    hubs: Annotated[int, _rare_push("N", "Number of hubs to stay connected to.", min=1)] = 1
    poll: Annotated[float, _push("SECONDS", "Seconds between polls without push.", min=0.1)] = 10
    compare: Annotated[
        float,
        _rare_push(
            "SECONDS",
            "Time between two comparisons of the whole copy with the Source's lists.",
            min=0,
        ),
    ] = Pace().compare
    check_files: Annotated[
        float,
        _copy(
            "SECONDS",
            "Time between two checks of the sizes and times of all files; 0: check only at the "
            "start, and when everything is compared.",
            min=0,
        ),
    ] = 86_400
    verify: Annotated[
        bool, _copy(None, "Read all files at the start, and verify their hashes.", "--verify")
    ] = False
    adopt: Annotated[
        bool,
        _copy(
            None,
            "Start in a folder with files, and keep those that have the listed hash.",
            "--adopt",
        ),
    ] = False
    patience: Annotated[
        float,
        _rare_push(
            "SECONDS",
            "How long to retry failed requests before T, or --once, continues without them.",
            min=0,
        ),
    ] = Pace().patience
    spread: Annotated[
        float | None,
        _rare_push(
            "SECONDS",
            "Maximum random delay before requesting pushed changes.",
            show_default="by the number of subscribers",
            min=0,
        ),
    ] = None
    rate: Annotated[
        float | None,
        _rare_push(
            "N", "Request at most N resources per second.", show_default="unlimited", min=0.001
        ),
    ] = None
    only: Annotated[
        list[str] | None,
        _selection("PATTERN", "Follow only URIs like this, such as *.ttl or maps/; repeatable."),
    ] = None
    excluded: Annotated[
        list[str] | None, _selection("PATTERN", "Follow no URIs like this; repeatable.", "--except")
    ] = None
    type: Annotated[
        list[str] | None,
        _rare_selection(
            "TYPE", "Follow only this media type, such as text/turtle or text/*; repeatable."
        ),
    ] = None
    change: Annotated[
        list[ChangeType] | None,
        _rare_selection("created|updated|deleted", "Follow only this type of change; repeatable."),
    ] = None
    collection: Annotated[
        list[str] | None,
        _rare_selection("URI", "Follow only members of this collection; repeatable."),
    ] = None
    prefer: Annotated[
        list[str] | None,
        _rare_selection(
            "TYPE",
            "Copy this media type of a resource if it is offered; repeatable, best first.",
        ),
    ] = None
    exact: Annotated[
        bool,
        _rare_selection(
            None, "Fetch the version of each change if the Source keeps versions.", "--exact"
        ),
    ] = False
    callback_url: Annotated[
        str | None, _callbacks("URL", "Public URL at which hubs reach this process, for WebSub.")
    ] = None
    callback_host: Annotated[str, _callbacks("HOST", "Address to listen on for hubs.")] = (
        "127.0.0.1"
    )
    callback_port: Annotated[
        int | None,
        _callbacks(
            "PORT", "Port to listen on for hubs.", show_default="the port of --callback-url"
        ),
    ] = None
    callback_lease: Annotated[int, _callbacks("SECONDS", "Lease to request from hubs.", min=1)] = (
        DEFAULT_TERMS.lease
    )
    callback_secret: Annotated[
        bool, _callbacks(None, "Give each hub a secret for its signatures.")
    ] = DEFAULT_TERMS.secret
    callback_signature: Annotated[
        list[str] | None,
        _callbacks(
            "METHOD",
            "Accept signatures of this method, such as sha256; repeatable.",
            show_default=", ".join(DEFAULT_TERMS.signatures),
        ),
    ] = None
    callback_refuse: Annotated[
        bool, _callbacks(None, "Answer deliveries with a wrong signature with 403.")
    ] = DEFAULT_TERMS.refuse
    callback_patience: Annotated[
        float, _callbacks("SECONDS", "How long a hub may take to verify a subscription.", min=0.1)
    ] = DEFAULT_TERMS.patience
    callback_settle: Annotated[
        float, _callbacks("SECONDS", "How long a hub may take to start delivering.", min=0.1)
    ] = DEFAULT_TERMS.settle
    callback_quiet: Annotated[
        float, _callbacks("SECONDS", "Resubscribe after a silence of this duration.", min=0.1)
    ] = DEFAULT_TERMS.quiet
    mqtt_url: Annotated[str | None, _mqtt("URL", "MQTT broker to use instead of the Source's.")] = (
        None
    )
    mqtt_user: Annotated[str | None, _mqtt("NAME", "User at the MQTT broker.")] = None
    mqtt_password: Annotated[str | None, _mqtt("PASSWORD", "Password of that user.")] = None
    mqtt_ca: Annotated[
        str | None, _mqtt("FILE", "CA certificates to verify the broker's certificate.")
    ] = None
    mqtt_certificate: Annotated[
        str | None, _mqtt("FILE", "Client certificate for the MQTT broker.")
    ] = None
    mqtt_key: Annotated[str | None, _mqtt("FILE", "Private key of that certificate.")] = None
    mqtt_session: Annotated[
        str,
        _mqtt(
            "NAME",
            "Session that the MQTT broker keeps while this process is disconnected.",
            show_default=False,
        ),
    ] = ""
    mqtt_version: Annotated[str, _mqtt("5|3.1.1", "Version of MQTT.")] = "5"
    xmpp_jid: Annotated[
        str | None, _xmpp("USER@DOMAIN", "XMPP account that receives from PubSub services.")
    ] = None
    xmpp_password: Annotated[str | None, _xmpp("PASSWORD", "Password of that account.")] = None
    xmpp_server: Annotated[
        str | None, _xmpp("HOST:PORT", "Server of the account, if DNS does not find it.")
    ] = None
    xmpp_ca: Annotated[
        str | None, _xmpp("FILE", "CA certificates to verify the server's certificate.")
    ] = None

    def options(self, callbacks: Callbacks | None) -> FollowOptions:
        from rsnotify_subscriber.fleet.building import follow_options

        source, websub = self._settings()
        pace = Pace()  # a single Source may use more memory than each of many
        return follow_options(
            replace(source, in_flight=pace.in_flight, hold=pace.hold),
            self.credentials,
            callbacks,
            terms=websub.terms,
        )

    def callback_server(self) -> CallbackServer:
        """Return the server for callbacks, which listens only if there is a callback URL."""
        _, websub = self._settings()
        return CallbackServer(websub.url, websub.host, websub.port, websub.terms)

    def _settings(self) -> tuple[SourceSettings, WebSubSettings]:
        from rsnotify_subscriber.fleet.configuration import settings_from_options

        given = to_builtins(self)
        for name in ("login", "bearer", "header"):
            del given[name]
        return settings_from_options(given)
