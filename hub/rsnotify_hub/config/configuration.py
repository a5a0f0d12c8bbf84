"""The hub's settings: what there are, and their defaults."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from rsnotify.runtime.mqtt.login import BrokerLogin

# More is a slip of the pen, and more than SQLite counts.
_Positive = Annotated[int, Meta(ge=1, le=10**15)]
_Text = Annotated[str, Meta(min_length=1)]
# Thirty years at most: beyond, calendars and timers overflow.
_Seconds = Annotated[float, Meta(gt=0, le=1e9)]
_Rate = Annotated[float, Meta(gt=0)]
_Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$", description="64 hexadecimal digits")]
_Algorithm = Literal[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512",
    "ES256", "ES384", "ES512", "EdDSA",
]  # fmt: skip


class PublisherGrant(Struct, frozen=True, forbid_unknown_fields=True):
    """A Source, or several, that may publish.

    Args:
        token_sha256: The SHA-256 of the bearer token, in hex. The token itself is not kept.
        topics: What it may publish on: topics, or prefixes of them. `https://a.example/x`
            grants that topic and all below it, not `https://a.example/xy`.
    """

    token_sha256: _Sha256
    topics: tuple[str, ...]

    def __repr__(self) -> str:
        """Return what may be logged."""
        return f"Publisher(topics={self.topics})"


class AdminGrant(Struct, frozen=True, forbid_unknown_fields=True):
    """Somebody who may see and change everything.

    Args:
        token_sha256: The SHA-256 of the bearer token, in hex.
    """

    token_sha256: _Sha256

    def __repr__(self) -> str:
        """Return what may be logged."""
        return "Admin()"


class HubConfiguration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings.

    Args:
        host: The address to listen on.
        port: The port to listen on; 0 takes a free one.
        data: The folder that keeps everything.
        public_url: How others reach this hub, for Link headers; by default from host and port.
        allow_private_addresses: Whether callbacks and channels may be at private addresses.
        publishers: Who may publish. Without any, only peers on this machine may, and only
            while the hub listens on a loopback address.
        admins: Who may administer the hub.
        open_topics: Topics, or prefixes of them, that anybody may ask the hub to fetch.
        tokens_file: A file with more `publishers` and `admins`.
        jwt_algorithms: The algorithms of JSON Web Tokens that are taken as tokens; none, then
            no such tokens.
        jwt_key: The public key in PEM format, or the secret of an HS algorithm.
        jwt_key_file: A file with that key.
        jwt_audience: The `aud` that a token must have.
        jwt_issuer: The `iss` that it must have, if any.
        trusted_proxies: Addresses and networks of proxies that are believed whom they act for.
        forwarded_header: The header in which they say it.
        max_connections: Connections at once, of HTTP and WebSocket.
        connections_per_client: Connections of one client address; programs on this machine and
            trusted proxies may have more.
        header_seconds: How long the head of a request may take to arrive.
        idle_seconds: How long a connection may wait for its next request.
        log_format: How the log is written, as lines of text or of JSON.
        subscription_rate: Requests to subscribe or unsubscribe a second, of one client
            address, and as many pings of open topics; ten seconds' worth may come at once.
        connection_rate: WebSockets that one client address opens a second, likewise.
        failed_token_rate: Tokens that grant nothing a second, likewise.
        ping_seconds: How long an open topic rests between two fetches.
        max_open_topics: Topics in all, beyond which a ping makes no new open topic.
        max_topics_per_publisher: Topics among those that one token grants, beyond which it begins
            no new one.
        max_fragment_bytes: The largest fragment, or whole content of a topic.
        max_channel_bytes: The largest Change List that is fetched after a ping.
        max_links: `rs:ln` elements in one entry of a fragment.
        log_bytes: How much of each topic's log is kept.
        log_seconds: How long a fragment is kept.
        lease_seconds: The lease of a subscription that asked for none.
        min_lease_seconds: The shortest lease.
        max_lease_seconds: The longest lease.
        max_subscriptions: WebSub subscriptions in all.
        subscriptions_per_host: Subscriptions of one callback host.
        subscriptions_per_client: Subscriptions that one client address asked for.
        signature: The algorithm of `X-Hub-Signature`.
        queue_bytes: How much may wait for one WebSocket before it is cut off.
        queue_frames: How many frames may.
        max_websockets: How many WebSockets may be open.
        websockets_per_client: How many of them one client may open.
        max_selections: How many parts of a topic are made for WebSockets that ask for no more, and
            as many for the broker; who asks for one beyond that gets all of it. Of those for
            WebSockets one client gets another only while more are free than it has.
        websocket_origins: Origins whose pages may open a WebSocket, beside the hub's own.
        websocket_ping_seconds: How often a WebSocket is pinged; who has not answered by the next
            time is dropped.
        callback_seconds: How long one request to a callback or channel may take.
        request_seconds: How long a request's body may take to arrive.
        retry_seconds: The first wait before a delivery is tried again; doubled each time.
        max_retry_seconds: The longest such wait.
        give_up_seconds: How long tries may fail; then they wait for an update of the topic.
        mqtt_url: The MQTT broker that everything goes to, too; none, then it goes to none.
        mqtt_public_url: How Destinations reach the broker, where that is not how the hub does.
        mqtt_user: The hub's user at the broker.
        mqtt_password: Its password.
        mqtt_password_file: A file with that password.
        mqtt_ca: A file with the certificates that the broker's has to come from; by default
            those of the system.
        mqtt_certificate: A file with the hub's own certificate for the broker.
        mqtt_key: A file with the private key of that.
        mqtt_version: The version of MQTT.
        mqtt_channels: Topics, or prefixes of them, that Sources may publish on through the
            broker, whose ACL says which Source may on which.
        mqtt_client_id: How the broker knows the hub again, where there are such topics.
    """

    host: _Text = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8080
    data: _Text = "rsnotify-hub"
    public_url: str | None = None
    allow_private_addresses: bool = False
    publishers: tuple[PublisherGrant, ...] = ()
    admins: tuple[AdminGrant, ...] = ()
    open_topics: tuple[str, ...] = ()
    tokens_file: str | None = None
    jwt_algorithms: tuple[_Algorithm, ...] = ()
    jwt_key: str | None = None
    jwt_key_file: str | None = None
    jwt_audience: str | None = None
    jwt_issuer: str | None = None
    trusted_proxies: tuple[str, ...] = ()
    forwarded_header: Literal["X-Forwarded-For", "Forwarded"] = "X-Forwarded-For"
    max_connections: _Positive = 20_000
    connections_per_client: _Positive = 1000
    header_seconds: _Seconds = 10.0
    idle_seconds: _Seconds = 60.0
    log_format: Literal["text", "json"] = "text"
    subscription_rate: _Rate = 10.0
    connection_rate: _Rate = 20.0
    failed_token_rate: _Rate = 1.0
    ping_seconds: Annotated[float, Meta(ge=0, le=1e9)] = 1.0
    max_open_topics: _Positive = 10_000
    max_topics_per_publisher: _Positive = 10_000
    max_fragment_bytes: _Positive = 4 * 1024 * 1024
    max_channel_bytes: _Positive = 50_000_000
    max_links: _Positive = 100
    log_bytes: _Positive = 100_000_000
    log_seconds: _Seconds = 7 * 86_400
    lease_seconds: _Positive = 864_000
    min_lease_seconds: _Positive = 60
    max_lease_seconds: Annotated[int, Meta(ge=1, le=864_000)] = 864_000
    max_subscriptions: _Positive = 100_000
    subscriptions_per_host: _Positive = 100
    subscriptions_per_client: _Positive = 1000
    signature: Literal["sha1", "sha256", "sha384", "sha512"] = "sha256"
    queue_bytes: _Positive = 4 * 1024 * 1024
    queue_frames: _Positive = 4096
    max_websockets: _Positive = 20_000
    websockets_per_client: _Positive = 1000
    max_selections: Annotated[int, Meta(ge=0, le=10_000)] = 32
    websocket_origins: tuple[str, ...] = ()
    websocket_ping_seconds: _Seconds = 30.0
    callback_seconds: _Seconds = 10.0
    request_seconds: _Seconds = 30.0
    retry_seconds: _Seconds = 1.0
    max_retry_seconds: _Seconds = 3600.0
    give_up_seconds: _Seconds = 86_400.0
    mqtt_url: str | None = None
    mqtt_public_url: str | None = None
    mqtt_user: str | None = None
    mqtt_password: str | None = None
    mqtt_password_file: str | None = None
    mqtt_ca: str | None = None
    mqtt_certificate: str | None = None
    mqtt_key: str | None = None
    mqtt_version: Literal["5", "3.1.1"] = "5"
    mqtt_channels: tuple[str, ...] = ()
    mqtt_client_id: Annotated[
        str, Meta(pattern="^[A-Za-z0-9_-]+$", description="a text of letters, digits, _ and -")
    ] = "rsnotify-hub"

    def __repr__(self) -> str:
        """Return what may be logged."""
        return f"Configuration(host={self.host!r}, port={self.port}, data={self.data!r})"


def login_of(configuration: HubConfiguration) -> BrokerLogin:
    """Return who the hub is to its broker."""
    return BrokerLogin(
        user=configuration.mqtt_user,
        password=configuration.mqtt_password,
        ca=configuration.mqtt_ca,
        certificate=configuration.mqtt_certificate,
        key=configuration.mqtt_key,
    )
