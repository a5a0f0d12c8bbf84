"""The hub's settings: a file (TOML or JSON), and options of the command on top."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from rsnotify.errors import ConfigurationError

_Positive = Annotated[int, Meta(ge=1)]
_Seconds = Annotated[float, Meta(gt=0)]
_Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]

#: A shorter token could be guessed.
_MIN_TOKEN = 16


class Publisher(Struct, frozen=True, forbid_unknown_fields=True):
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


class Admin(Struct, frozen=True, forbid_unknown_fields=True):
    """Somebody who may see and change everything.

    Args:
        token_sha256: The SHA-256 of the bearer token, in hex.
    """

    token_sha256: _Sha256

    def __repr__(self) -> str:
        """Return what may be logged."""
        return "Admin()"


class Configuration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
        max_fragment_bytes: The largest fragment.
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
        callback_seconds: How long one request to a callback or channel may take.
        request_seconds: How long a request's body may take to arrive.
        retry_seconds: The first wait before a delivery is tried again; doubled each time.
        max_retry_seconds: The longest such wait.
        give_up_seconds: How long tries may fail; then they wait for an update of the topic.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8080
    data: str = "rsnotify-hub"
    public_url: str | None = None
    allow_private_addresses: bool = False
    publishers: tuple[Publisher, ...] = ()
    admins: tuple[Admin, ...] = ()
    open_topics: tuple[str, ...] = ()
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
    callback_seconds: _Seconds = 10.0
    request_seconds: _Seconds = 30.0
    retry_seconds: _Seconds = 1.0
    max_retry_seconds: _Seconds = 3600.0
    give_up_seconds: _Seconds = 86_400.0


def load_configuration(path: str | None, **options: Any) -> Configuration:
    """Read the file, and put options over it.

    Args:
        path: A file ending in .toml or .json; None for the defaults.
        options: Settings that were given by other means; None says that one was not.

    Raises:
        ConfigurationError: The file cannot be read, or a setting is unknown or wrong.
    """
    settings = _read(Path(path)) if path is not None else {}
    _refuse_tokens(settings)
    settings |= {name: _hashed(value) for name, value in options.items() if value is not None}
    try:
        return msgspec.convert(settings, Configuration)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"the hub's configuration is wrong: {error}") from None


def _tables(settings: dict[str, Any]) -> list[Any]:
    return [
        table
        for name in ("publishers", "admins")
        for table in (settings.get(name) if isinstance(settings.get(name), list) else [])
        if isinstance(table, dict)
    ]


def _refuse_tokens(settings: dict[str, Any]) -> None:
    if any("token" in table for table in _tables(settings)):
        raise ConfigurationError(
            "the hub's configuration has a token as it is: put its SHA-256 there, as token_sha256"
        )


def _hashed(value: Any) -> Any:
    """Put the digest where tables have a token."""
    if not isinstance(value, (list, tuple)):
        return value
    return [_with_digest(table) if isinstance(table, dict) else table for table in value]


def _with_digest(table: dict[str, Any]) -> dict[str, Any]:
    if "token" not in table:
        return table
    token = table["token"]
    if not isinstance(token, str) or len(token) < _MIN_TOKEN:
        raise ConfigurationError(f"a token is no text of {_MIN_TOKEN} characters or more")
    others = {name: value for name, value in table.items() if name != "token"}
    return {**others, "token_sha256": sha256(token.encode()).hexdigest()}


def _read(path: Path) -> dict[str, Any]:
    decode = msgspec.json.decode if path.suffix == ".json" else msgspec.toml.decode
    try:
        return decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read {path}: {error}") from None
