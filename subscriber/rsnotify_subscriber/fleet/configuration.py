"""The settings of `rsnotify follow --config`: the Sources, how they are followed, and limits."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from rsnotify.errors import without_credentials
from rsnotify.format.vocabulary import ChangeType
from rsnotify.sync.pace import Pace
from rsnotify_subscriber.fetching.fetcher import MOST_CONTENT_BYTES
from rsnotify_subscriber.pool import Limits
from rsnotify_subscriber.push.websub.terms import DEFAULT_TERMS, WebSubTerms
from rsnotify_subscriber.via import Via

_Count = Annotated[int, Meta(ge=1, le=10**9)]
_Bytes = Annotated[int, Meta(ge=1, le=10**15)]
# A year at most: beyond, timers overflow.
_Seconds = Annotated[float, Meta(gt=0, le=3e7)]
_Text = Annotated[str, Meta(min_length=1)]
_Path = Annotated[str, Meta(pattern=r"^[^\x00]+\Z", description="the path of a file or folder")]
#: The name of a Source, which can be part of the name of a folder.
Name = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z",
        max_length=100,
        description="a text of letters, digits, ., _ and -, which begins with a letter or digit "
        "and has at most 100 of them",
    ),
]


#: The settings that name a file with a password.
PASSWORD_FILES = ("mqtt_password_file", "xmpp_password_file")


class SourceSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a Source is followed; in `[defaults]`, how all are without a setting of their own.

    Most are options of `rsnotify follow`, too (`commands/follow_options.py`). In `dest`, `state`,
    `schema` and `mqtt_session`, `{name}` stands for the name of the Source.

    Args:
        dest: The folder of a mirror; without one there is a `handler`.
        handler: The handler, as `package.module:name`.
        options: The arguments with which the handler is made.
        state: The folder of the state; by default beside `dest`.
        postgresql: How to connect to the database with the state, instead of a folder.
        schema: The schema of the state there.
        in_flight: The most changes that are being applied at the same time.
        hold: The most changes of fragments beyond a gap that are kept.
        largest: The most bytes of content whose length is not announced.
        mqtt_password_file: A file with the password for the MQTT broker.
        xmpp_password_file: A file with the password of the XMPP account.
    """

    dest: _Path | None = None
    handler: _Text | None = None
    options: dict[str, Any] = {}
    state: _Path | None = None
    postgresql: str | None = None
    schema: _Text | None = None
    only: tuple[str, ...] = ()
    excluded: tuple[str, ...] = field(default=(), name="except")
    type: tuple[str, ...] = ()
    change: tuple[ChangeType, ...] = ()
    collection: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()
    exact: bool = False
    via: Via = Via.AUTO
    hubs: _Count = 1
    poll: Annotated[float, Meta(ge=0.1, le=3e7)] = 10.0
    compare: Annotated[float, Meta(ge=0, le=3e7)] = Pace().compare
    check_files: Annotated[float, Meta(ge=0, le=3e7)] = 86_400.0
    verify: bool = False
    patience: Annotated[float, Meta(ge=0, le=3e7)] = Pace().patience
    spread: Annotated[float, Meta(ge=0, le=3e7)] | None = None
    rate: Annotated[float, Meta(ge=0.001)] | None = None
    in_flight: _Count = 32
    hold: _Count = 2_000
    largest: _Bytes = MOST_CONTENT_BYTES
    allow_private_addresses: bool = False
    mqtt_url: str | None = None
    mqtt_user: str | None = None
    mqtt_password: str | None = None
    mqtt_password_file: _Path | None = None
    mqtt_ca: _Path | None = None
    mqtt_certificate: _Path | None = None
    mqtt_key: _Path | None = None
    mqtt_session: str = ""
    mqtt_version: Literal["5", "3.1.1"] = "5"
    xmpp_jid: str | None = None
    xmpp_password: str | None = None
    xmpp_password_file: _Path | None = None
    xmpp_server: str | None = None
    xmpp_ca: _Path | None = None

    def __repr__(self) -> str:
        """Return a text without secrets, for logs."""
        return f"{type(self).__name__}(dest={self.dest!r}, handler={self.handler!r})"


class FollowedSource(SourceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Source and how it is followed, `[[source]]` in TOML. Two that are the same are equal.

    Args:
        url: The URL of the Source, as for `rsnotify follow`.
        name: Its name; by default that URL, without a password.
        login: A user and password for the Source, as `user:password`.
        header: Header fields for it, each as `NAME: VALUE`.
    """

    url: _Text
    name: Name | None = None
    login: _Text | None = None
    bearer: _Text | None = None
    header: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return self.name or without_credentials(self.url)


class WebSubSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How hubs reach this process, and `WebSubTerms`: options `--callback-…`.

    Args:
        url: The URL from outside; None if hubs do not reach this process.
        port: The port to listen on; by default that of the URL.
    """

    url: str | None = None
    host: _Text = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    lease: _Count = DEFAULT_TERMS.lease
    secret: bool = DEFAULT_TERMS.secret
    signature: tuple[str, ...] = DEFAULT_TERMS.signatures
    refuse: bool = DEFAULT_TERMS.refuse
    patience: _Seconds = DEFAULT_TERMS.patience
    settle: _Seconds = DEFAULT_TERMS.settle
    quiet: _Seconds = DEFAULT_TERMS.quiet

    @property
    def terms(self) -> WebSubTerms:
        return WebSubTerms(
            lease=self.lease,
            secret=self.secret,
            signatures=self.signature,
            refuse=self.refuse,
            patience=self.patience,
            settle=self.settle,
            quiet=self.quiet,
        )


class LimitSettings(Limits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of the fleet, `[limits]` in a file."""


class FleetConfiguration(Struct, frozen=True, kw_only=True):
    """All settings in their final form: paths are absolute, and `[defaults]` are applied."""

    path: str
    limits: LimitSettings = LimitSettings()
    websub: WebSubSettings = WebSubSettings()
    sources: tuple[FollowedSource, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """The files whose changes matter."""
        secrets = {getattr(one, name) for one in self.sources for name in PASSWORD_FILES}
        return (self.path, *sorted(filter(None, secrets)))
