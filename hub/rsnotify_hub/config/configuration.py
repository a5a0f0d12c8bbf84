"""The hub's settings and their defaults: one section for each part of the hub.

hub/hub.example.toml describes each setting.

Files, environment variables and options set all of them in one flat table (`SETTINGS`). In this
table, a setting has the encoded name of its field, which differs from the field's own name only in
`StoreProvider`, `FollowConfig` and the sections of the brokers.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from msgspec import Meta, Struct, defstruct
from msgspec.structs import asdict, fields

from rsnotify.runtime.mqtt_broker import BrokerLogin, login_of
from rsnotify.runtime.transport_extensions import scheme_of
from rsnotify_hub.store.providers import StoreProvider, provider_of, store_providers

T = TypeVar("T", bound=Struct)


class _SecretSettings(Struct, frozen=True):
    """Settings that may contain secrets, so `repr` does not show their values."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class MqttConfig(_SecretSettings, frozen=True, kw_only=True, rename=lambda name: f"mqtt_{name}"):
    """The MQTT broker. The names of its settings begin with `mqtt_`."""

    url: str | None = None
    public_url: str | None = None
    user: str | None = None
    password: str | None = None
    password_file: str | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    version: Literal["5", "3.1.1"] = "5"
    channels: tuple[str, ...] = ()
    client_id: Annotated[
        str, Meta(pattern="^[A-Za-z0-9_-]+$", description="a string of letters, digits, _ and -")
    ] = "rsnotify-hub"

    @property
    def login(self) -> BrokerLogin:
        return login_of(self, prefix="")


class XmppConfig(_SecretSettings, frozen=True, kw_only=True, rename=lambda name: f"xmpp_{name}"):
    """The XMPP PubSub service. The names of its settings begin with `xmpp_`."""

    url: str | None = None
    jid: str | None = None
    password: str | None = None
    password_file: str | None = None
    server: str | None = None
    ca: str | None = None


class TransportsConfig(_SecretSettings, frozen=True, kw_only=True, rename={"tables": "transport"}):
    """Brokers that the hub publishes to over transports from other packages.

    `tables` has the settings of each, `[[transport]]` in TOML. The scheme of `url` selects the
    transport.
    """

    tables: tuple[dict[str, Any], ...] = ()


# A larger number would be a typo, or too large for SQLite.
_Positive = Annotated[int, Meta(ge=1, le=10**15)]
_Text = Annotated[str, Meta(min_length=1)]
# At most about thirty years, because longer times overflow dates and timers.
_Seconds = Annotated[float, Meta(gt=0, le=1e9)]
_Rate = Annotated[float, Meta(gt=0)]
_Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$", description="64 hexadecimal digits")]
_Algorithm = Literal[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512",
    "ES256", "ES384", "ES512", "EdDSA",
]  # fmt: skip


class PublisherGrant(_SecretSettings, frozen=True, forbid_unknown_fields=True):
    """A token that grants the right to publish.

    Args:
        token_sha256: The SHA-256 of the bearer token, in hex. The token itself is not stored.
        topics: The topics that the bearer may publish on, or prefixes of them.
            `https://a.example/x` grants that topic and all topics below it, but not
            `https://a.example/xy`.
    """

    token_sha256: _Sha256
    topics: tuple[str, ...]


class AdminGrant(_SecretSettings, frozen=True, forbid_unknown_fields=True):
    """A token that grants the right to administer the hub, as its SHA-256 in hex."""

    token_sha256: _Sha256


class ServerConfig(Struct, frozen=True, kw_only=True):
    """The HTTP server and its connections."""

    host: _Text = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8080
    public_url: str | None = None
    trusted_proxies: tuple[str, ...] = ()
    forwarded_header: Literal["X-Forwarded-For", "Forwarded"] = "X-Forwarded-For"
    max_connections: _Positive = 20_000
    connections_per_client: _Positive = 1000
    header_seconds: _Seconds = 10.0
    idle_seconds: _Seconds = 60.0
    log_format: Literal["text", "json"] = "text"


class AccessConfig(_SecretSettings, frozen=True, kw_only=True):
    """Permissions to publish and to administer the hub.

    Without publishers, only programs on this machine may publish, and only while the hub listens on
    a loopback address.
    """

    publishers: tuple[PublisherGrant, ...] = ()
    admins: tuple[AdminGrant, ...] = ()
    open_topics: tuple[str, ...] = ()
    tokens_file: str | None = None
    jwt_algorithms: tuple[_Algorithm, ...] = ()
    jwt_key: str | None = None
    jwt_key_file: str | None = None
    jwt_audience: str | None = None
    jwt_issuer: str | None = None


class LimitsConfig(Struct, frozen=True, kw_only=True):
    """Limits for each client, such as the maximum rate of requests that are expensive to handle."""

    subscription_rate: _Rate = 10.0
    connection_rate: _Rate = 20.0
    failed_token_rate: _Rate = 1.0
    max_topics_per_publisher: _Positive = 10_000


class IntakeConfig(Struct, frozen=True, kw_only=True):
    """The limits for one publication."""

    max_fragment_bytes: _Positive = 4 * 1024 * 1024
    max_links: _Positive = 100
    request_seconds: _Seconds = 30.0


class LogConfig(Struct, frozen=True, kw_only=True):
    """The location of the logs, and the retention of each topic's log."""

    data: _Text = "rsnotify-hub"
    log_bytes: _Positive = 100_000_000
    log_seconds: _Seconds = 7 * 86_400


class WebSubConfig(Struct, frozen=True, kw_only=True):
    """WebSub: subscriptions, deliveries to callbacks, and topics that are fetched after a ping."""

    allow_private_addresses: bool = False
    lease_seconds: _Positive = 864_000
    min_lease_seconds: _Positive = 60
    max_lease_seconds: Annotated[int, Meta(ge=1, le=864_000)] = 864_000
    max_subscriptions: _Positive = 100_000
    subscriptions_per_host: _Positive = 100
    subscriptions_per_client: _Positive = 1000
    signature: Literal["sha1", "sha256", "sha384", "sha512"] = "sha256"
    callback_seconds: _Seconds = 10.0
    retry_seconds: _Seconds = 1.0
    max_retry_seconds: _Seconds = 3600.0
    give_up_seconds: _Seconds = 86_400.0
    ping_seconds: Annotated[float, Meta(ge=0, le=1e9)] = 1.0
    max_open_topics: _Positive = 10_000
    max_channel_bytes: _Positive = 50_000_000


class WebSocketConfig(Struct, frozen=True, kw_only=True):
    """WebSockets of Destinations and Sources, and event streams, which have the same limits."""

    queue_bytes: _Positive = 4 * 1024 * 1024
    queue_frames: _Positive = 4096
    max_websockets: _Positive = 20_000
    websockets_per_client: _Positive = 1000
    max_selections: Annotated[int, Meta(ge=0, le=10_000)] = 32
    websocket_origins: tuple[str, ...] = ()
    websocket_ping_seconds: _Seconds = 30.0


class FollowConfig(
    _SecretSettings,
    frozen=True,
    kw_only=True,
    rename=lambda name: "follow" if name == "tables" else f"follow_{name}",
):
    """Origins that the hub itself follows, with the settings of `rsnotify gateway`."""

    tables: tuple[dict[str, Any], ...] = ()
    contact: _Text | None = None


class HubConfig(Struct, frozen=True, kw_only=True):
    """All settings, grouped by the part of the hub that uses them.

    Attributes:
        store: The store that several nodes share; None for a store in the folder `log.data`.
    """

    server: ServerConfig = ServerConfig()
    access: AccessConfig = AccessConfig()
    limits: LimitsConfig = LimitsConfig()
    intake: IntakeConfig = IntakeConfig()
    log: LogConfig = LogConfig()
    store: StoreProvider | None = None
    websub: WebSubConfig = WebSubConfig()
    websocket: WebSocketConfig = WebSocketConfig()
    mqtt: MqttConfig = MqttConfig()
    xmpp: XmppConfig = XmppConfig()
    transports: TransportsConfig = TransportsConfig()
    follow: FollowConfig = FollowConfig()

    @property
    def has_bridges(self) -> bool:
        return self.mqtt.url is not None or bool(self.transport_tables)

    @property
    def transport_tables(self) -> list[tuple[str, dict[str, Any]]]:
        """The settings of transports from other packages, with their schemes. XMPP comes last.

        XMPP has separate settings because it predates transports from other packages.
        """
        tables = [(scheme_of(str(table.get("url"))), table) for table in self.transports.tables]
        if self.xmpp.url is not None or self.xmpp.jid is not None:
            xmpp = {name: value for name, value in asdict(self.xmpp).items() if value is not None}
            xmpp.pop("password_file", None)  # already read into `password`
            tables.append(("xmpp", xmpp))
        return tables


_SECTIONS: dict[str, type[Struct]] = {
    name: kind for name, kind in get_type_hints(HubConfig).items() if name != "store"
}


def _all_settings() -> dict[str, tuple[str, Any, Any]]:
    """Return all settings by name, each with its name, type and default."""
    sections: list[type[Struct]] = [*_SECTIONS.values(), StoreProvider, *store_providers().values()]
    return {
        field.encode_name: (
            field.encode_name,
            get_type_hints(section, include_extras=True)[field.name],
            field.default,
        )
        for section in sections
        for field in fields(section)
    }


#: The flat table of all settings, in the form used in a file.
SETTINGS: type[Struct] = defstruct(
    "Settings",
    list(_all_settings().values()),
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
)


def configuration_of(settings: Struct) -> HubConfig:
    """Group a flat table of settings, an instance of `SETTINGS`, into sections.

    Raises:
        WrongSetting: A setting of the store is wrong.
    """
    sections: dict[str, Any] = {name: _section(kind, settings) for name, kind in _SECTIONS.items()}
    return HubConfig(**sections, store=_store(settings))


def _section(kind: type[T], settings: Struct) -> T:
    return kind(**{each.name: getattr(settings, each.encode_name) for each in fields(kind)})


def _store(settings: Struct) -> StoreProvider | None:
    url = _section(StoreProvider, settings).url
    if url is not None:
        return _section(provider_of(url), settings).checked()
    for kind in store_providers().values():
        _section(kind, settings).checked()
    return None
