"""The settings of `rsnotify follow --config`: what is followed, and within which limits."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from rsnotify.errors import shown
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
#: What can stand in the name of a folder.
Name = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z",
        max_length=100,
        description="a text of letters, digits, ., _ and -, which begins with a letter or digit "
        "and has at most 100 of them",
    ),
]


class SourceSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a Source is followed; in `[defaults]`, how all are that do not say otherwise.

    In `dest`, `state`, `schema` and `mqtt_session`, `{name}` stands for the name of the Source.

    Args:
        dest: The folder of a mirror; or else there is a `handler`.
        handler: What applies changes, as `package.module:name`.
        options: What the handler is made with, where it is made.
        state: The folder of the state; by default beside `dest`.
        postgresql: How to connect to the database that has the state, instead of a folder.
        schema: The schema of the state there.
        only: Patterns of URIs that are followed.
        excluded: Patterns of URIs that are not; `except` in the file.
        type: Media types that are followed.
        change: Types of change that are followed.
        collection: Collections whose members are followed.
        prefer: Media types that are held where a resource is offered in several.
        exact: Whether of each change its own version is fetched.
        via: How changes are heard of.
        hubs: How many ways to hear of them are kept up at once.
        poll: Seconds between polls while there is no push.
        compare: Seconds between two comparisons of the whole copy with what the Source lists.
        spread: Within which time what was pushed is asked for, by chance; None leaves it to how
            many listen.
        rate: How many resources are asked for in a second at most; None for any number.
        in_flight: Changes that may be out to be applied at once.
        hold: Changes of fragments beyond a gap that are kept.
        largest: Bytes that are taken of content whose length is not announced.
        allow_private_addresses: Whether documents may name hosts at private addresses.
        mqtt_url: The MQTT broker to use, whatever the Source names.
        mqtt_user: The user there.
        mqtt_password: Its password.
        mqtt_password_file: A file with that password.
        mqtt_ca: A file with the certificates that the broker's has to come from.
        mqtt_certificate: A file with the certificate to show to the broker.
        mqtt_key: A file with the private key of that.
        mqtt_session: The session that the broker keeps while one is away.
        mqtt_version: The version of MQTT.
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

    def __repr__(self) -> str:
        """Return what may be logged."""
        return f"{type(self).__name__}(dest={self.dest!r}, handler={self.handler!r})"


class FollowedSource(SourceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Source and how it is followed, `[[source]]` in TOML. Two that are the same are equal.

    Args:
        url: The Source, as `rsnotify follow` takes it.
        name: What it is called; by default that URL, without the password that it may have.
        login: A user and password for the Source, as `user:password`.
        bearer: A bearer token for it.
        header: Header fields for it, each as `NAME: VALUE`.
    """

    url: _Text
    name: Name | None = None
    login: _Text | None = None
    bearer: _Text | None = None
    header: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What it is called."""
        return self.name or shown(self.url)


class WebSubSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How hubs reach this process, and what is asked of them: options `--callback-…`.

    Args:
        url: Where that is from outside; None where they do not.
        host: The address to listen on.
        port: The port to listen on; by default that of the URL.
        lease: The lease that a hub is asked for, in seconds.
        secret: Whether hubs are given a secret.
        signature: The methods of signatures that are taken.
        refuse: Whether content with a wrong signature is answered with 403.
        patience: How long a hub may take to ask back, in seconds.
        settle: How long it may take to begin to deliver.
        quiet: How long it may be silent.
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
        """The terms of subscriptions."""
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
    """Limits as a file gives them."""


class FleetConfiguration(Struct, frozen=True, kw_only=True):
    """All settings, as they hold: paths are absolute, and nothing is left to `[defaults]`.

    Args:
        path: The file.
        limits: What all Sources may use together.
        websub: How hubs reach this process.
        sources: The Sources, in the order of the file.
    """

    path: str
    limits: LimitSettings = LimitSettings()
    websub: WebSubSettings = WebSubSettings()
    sources: tuple[FollowedSource, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """The files that say all of this."""
        secrets = {one.mqtt_password_file for one in self.sources} - {None}
        return (self.path, *sorted(filter(None, secrets)))
