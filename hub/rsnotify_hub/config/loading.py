"""Reads the hub's settings, and checks what their types cannot express.

A failed check raises `WrongSetting`. Tokens are replaced by their digests as soon as they are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any, Protocol, cast, get_type_hints
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.extensions import MissingExtension, load_extension, missing_package
from rsnotify.runtime.mqtt_broker import parse_broker
from rsnotify.runtime.settings import (
    MIN_TOKEN,
    SettingPath,
    Settings,
    SettingsFile,
    Variables,
    WrongSetting,
    convert_settings,
    digest,
    read_text,
)
from rsnotify.runtime.transport_extensions import transport_of
from rsnotify_hub.config.configuration import (
    SETTINGS,
    AccessConfig,
    AdminGrant,
    FollowConfig,
    HubConfig,
    MqttConfig,
    PublisherGrant,
    configuration_of,
)
from rsnotify_hub.refusals import Refusal
from rsnotify_hub.store.providers import StoreProvider, provider_of
from rsnotify_hub.urls import check_url, has_dot_segments

if TYPE_CHECKING:
    from socket import socket

    from aiohttp import web

    from rsnotify_hub.access.grants import Grants


class HubFollower(Protocol):
    """Follows origins and publishes their changes on the hub.

    The extension is the entry point `follow` in the group `rsnotify.hub`. It is imported only if
    the settings list origins. The hub listens on `listener`, and `public_url` ends in `/`.
    """

    def __init__(self, configuration: HubConfig, public_url: str, listener: socket) -> None: ...

    @staticmethod
    def check(config: FollowConfig) -> None:
        """Raise WrongSetting if an origin's settings are wrong."""

    def add_routes(self, app: web.Application) -> None:
        """Add routes that serve the documents of the origins."""

    def running(self, grants: Grants) -> AbstractAsyncContextManager[None]:
        """Follow the origins while the context is active. The hub already serves their documents.

        Raises:
            RsnotifyError: The stored state cannot be used.
        """


def load_hub_follower() -> type[HubFollower]:
    """Import the extension, or raise MissingExtension if it is not installed."""
    return cast(type[HubFollower], load_extension("hub", "follow", "the gateway"))


#: Digests of the example secrets in the documentation.
_EXAMPLE_DIGESTS = frozenset({digest("a long random secret")})

#: Minimum key lengths in bytes. An HMAC key must be at least as long as the output (RFC 7518 §3.2).
_HMAC_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}


@contextmanager
def _reported_at(*path: str | int) -> Iterator[None]:
    """Convert an error to an error of the setting at a path."""
    try:
        yield
    except (Refusal, ConfigurationError) as error:
        raise WrongSetting(path, str(error)) from None


def check_prefixes(path: SettingPath, prefixes: Sequence[str]) -> None:
    """Check that each granted prefix is a URL that a topic can begin with."""
    for number, prefix in enumerate(prefixes):
        with _reported_at(*path, number):
            check_url(prefix, "a topic")
        if has_dot_segments(prefix):
            reason = "a topic must not have dot segments; write the resolved path"
            raise WrongSetting((*path, number), reason)


def check_networks(name: str, networks: Sequence[str]) -> None:
    for number, network in enumerate(networks):
        try:
            ip_network(network)
        except ValueError as error:
            raise WrongSetting((name, number), f"not an address or network: {error}") from None


def check_origins(name: str, origins: Sequence[str]) -> None:
    for number, origin in enumerate(origins):
        try:
            usable = urlsplit(check_url(origin, "it")).path in ("", "/")
        except Refusal:
            usable = False
        if not usable:
            reason = "this is not an origin, for example https://page.example"
            raise WrongSetting((name, number), reason)


def check_jwt(algorithms: Sequence[str], key: str | None, audience: str | None) -> None:
    if not algorithms:
        if key is not None:
            raise WrongSetting(("jwt_key",), "this requires jwt_algorithms")
        return
    if key is None:
        raise WrongSetting(("jwt_algorithms",), "these require jwt_key_file or jwt_key")
    if audience is None:
        raise WrongSetting(("jwt_algorithms",), "these require jwt_audience, the name of this hub")
    shared = {name.startswith("HS") for name in algorithms}
    if len(shared) > 1:
        # If both shared a key, an attacker could use the public key as the secret.
        raise WrongSetting(("jwt_algorithms",), "HS algorithms cannot be mixed with others")
    if shared == {True}:
        _check_secret(key, max(_HMAC_BYTES[name] for name in algorithms))
    elif "PUBLIC KEY-----" not in key:
        raise WrongSetting(("jwt_key",), "these algorithms need a public key in PEM format")
    for name in algorithms:
        if not _is_key(key, name):
            raise WrongSetting(("jwt_key",), f"this is not a key for {name}")


def _check_secret(key: str, size: int) -> None:
    if "PUBLIC KEY-----" in key:
        raise WrongSetting(("jwt_key",), "a public key cannot be the secret of HS algorithms")
    if len(key.encode()) < size:
        raise WrongSetting(("jwt_key",), f"jwt_algorithms require at least {size} bytes")
    if digest(key) in _EXAMPLE_DIGESTS:
        raise WrongSetting(("jwt_key",), "this is the example from the documentation")


def _is_key(text: str, algorithm: str) -> bool:
    try:
        import jwt
        from cryptography.exceptions import UnsupportedAlgorithm
    except ImportError:
        reason = str(missing_package("access by JSON Web Tokens", "jwt"))
        raise WrongSetting(("jwt_algorithms",), reason) from None
    try:
        jwt.get_algorithm_by_name(algorithm).prepare_key(text)
    except (jwt.PyJWTError, ValueError, TypeError, UnsupportedAlgorithm):
        return False
    return True


def check_mqtt(mqtt: MqttConfig) -> None:
    if mqtt.url is None:
        given = {"channels": mqtt.channels, "user": mqtt.user, "public_url": mqtt.public_url}
        for name, value in given.items():
            if value:
                raise WrongSetting(
                    (f"mqtt_{name}",), "this requires mqtt_url, the URL of the broker"
                )
        return
    for name, broker in (("mqtt_url", mqtt.url), ("mqtt_public_url", mqtt.public_url or mqtt.url)):
        with _reported_at(name):
            has_prefix = parse_broker(broker).has_prefix
        if not has_prefix:
            reason = "a hub has many channels: end the path with /, or leave it out"
            raise WrongSetting((name,), reason)
    files = ("key", "certificate", "ca")
    with _reported_at("mqtt_" + next((name for name in files if getattr(mqtt, name)), "user")):
        mqtt.login.check()


def check_transports(configuration: HubConfig) -> None:
    """Check the settings of transports from other packages."""
    tables = configuration.transports.tables
    for number, (scheme, table) in enumerate(configuration.transport_tables):
        is_own = number < len(tables)
        place: SettingPath = ("transport", number) if is_own else ()
        prefix = "" if is_own else f"{scheme}_"
        try:
            convert_settings(table, transport_of(scheme).settings).check()
        except MissingExtension as error:
            raise WrongSetting(place or (f"{scheme}_url",), str(error)) from None
        except WrongSetting as wrong:
            first, *rest = wrong.path or ("url",)
            raise WrongSetting((*place, f"{prefix}{first}", *rest), wrong.reason) from None


def check_follow(follow: FollowConfig, store: StoreProvider | None) -> None:
    if not follow.tables:
        return
    if store is not None:
        reason = "nodes of a cluster cannot share origins; run `rsnotify gateway` with their URLs"
        raise WrongSetting(("follow",), reason)
    if follow.contact is None:
        raise WrongSetting(("follow",), "this requires follow_contact, your URL or email address")
    try:
        load_hub_follower().check(follow)
    except MissingExtension as error:
        raise WrongSetting(("follow",), str(error)) from None


_NO_TOKEN = (
    "a settings file must not contain tokens; set token_sha256 to the token's SHA-256 "
    "(`rsnotify hub token` generates both)"
)
_NO_SECRET = "a settings file must not contain secrets; move it to a file, and set jwt_key_file"
_NO_PASSWORD = "a settings file must not contain passwords; move it to a file, and set {}"


def _read_file(path: str) -> SettingsFile:
    """Read a settings file, and refuse it if it contains a secret."""
    file = SettingsFile(path)
    for where, instead in _secrets(file.settings):
        raise file.located(WrongSetting(where, instead))
    return file


def _secrets(settings: dict[str, Any]) -> Iterator[tuple[SettingPath, str]]:
    """Yield the path of each secret in a settings file, and what to do instead."""
    for name, tables in settings.items():
        for number, table in enumerate(tables if isinstance(tables, list) else []):
            if isinstance(table, dict) and "token" in table:
                yield (name, number, "token"), _NO_TOKEN
    key = settings.get("jwt_key")
    if isinstance(key, str) and "PUBLIC KEY-----" not in key:
        yield ("jwt_key",), _NO_SECRET
    for name in ("mqtt_password", "xmpp_password", "store_password"):
        if name in settings:
            yield (name,), _NO_PASSWORD.format(f"{name}_file")
    store = settings.get("store")
    if isinstance(store, str) and ":" in store.partition("://")[2].rpartition("@")[0]:
        yield ("store",), _NO_PASSWORD.format("store_password_file")


def _with_digests(name: str, value: Any) -> Any:
    """Replace each token in an array of tables by its digest. Return other settings unchanged."""
    if not isinstance(value, (list, tuple)):
        return value
    found = []
    for number, table in enumerate(value):
        if isinstance(table, dict) and "token" in table:
            token = table["token"]
            if not isinstance(token, str) or len(token) < MIN_TOKEN:
                reason = f"a token is a string of at least {MIN_TOKEN} characters"
                raise WrongSetting((name, number, "token"), reason)
            others = {key: each for key, each in table.items() if key != "token"}
            table = {"token_sha256": digest(token), **others}
        found.append(table)
    return found


class TokensFile(Struct, frozen=True, forbid_unknown_fields=True):
    publishers: tuple[PublisherGrant, ...] = ()
    admins: tuple[AdminGrant, ...] = ()


@dataclass(eq=False, repr=False)
class ConfigurationSource:
    """The sources of the settings: a file, environment variables and options.

    The path ends in .toml or .json, or is None if there is no file. Options that were not given are
    None.
    """

    path: str | None
    environ: Mapping[str, str]
    options: Mapping[str, Any]

    def load(self) -> HubConfig:
        """Read and check all settings.

        Raises:
            ConfigurationError: A file cannot be read, or a setting is unknown or wrong.
        """
        file = None if self.path is None else _read_file(self.path)
        settings = Settings(file, self.options, self._variables())
        with settings.locating():
            if isinstance(store := settings.merged.get("store"), str):
                with _reported_at("store"):  # its settings are unknown unless it is installed
                    provider_of(store)
            merged = {name: _with_digests(name, each) for name, each in settings.merged.items()}
            return _checked(configuration_of(convert_settings(merged, SETTINGS)))

    def _variables(self) -> Variables:
        return Variables("hub", self.environ, get_type_hints(SETTINGS, include_extras=True))

    def misspelt(self) -> dict[str, str]:
        """Return the variables that look like misspelt settings, with the likely settings."""
        return self._variables().misspelt("config")

    def files(self, configuration: HubConfig) -> list[str]:
        access = configuration.access
        named = (self.path, access.tokens_file, access.jwt_key_file)
        return [path for path in named if path is not None]


def load_configuration(
    path: str | None, *, environ: Mapping[str, str] | None = None, **options: Any
) -> HubConfig:
    return ConfigurationSource(path, environ or {}, options).load()


def _checked(configuration: HubConfig) -> HubConfig:
    """Check the settings, and read the files that they refer to."""
    access, websub, mqtt = configuration.access, configuration.websub, configuration.mqtt
    _check_grants(access)
    check_origins("websocket_origins", configuration.websocket.websocket_origins)
    with _reported_at("public_url"):
        check_url(configuration.server.public_url or "http://localhost/", "it")
    if websub.min_lease_seconds > websub.max_lease_seconds:
        raise WrongSetting(("min_lease_seconds",), "this is longer than max_lease_seconds")
    check_prefixes(("open_topics",), access.open_topics)
    check_networks("trusted_proxies", configuration.server.trusted_proxies)
    check_prefixes(("mqtt_channels",), mqtt.channels)
    access = _with_files(access)
    if mqtt.password_file is not None:
        mqtt = replace(mqtt, password=read_text(mqtt.password_file).removesuffix("\n"))
    check_jwt(access.jwt_algorithms, access.jwt_key, access.jwt_audience)
    check_mqtt(mqtt)
    xmpp = configuration.xmpp
    if xmpp.password_file is not None:
        xmpp = replace(xmpp, password=read_text(xmpp.password_file).removesuffix("\n"))
    check_follow(configuration.follow, configuration.store)
    configuration = replace(configuration, access=access, mqtt=mqtt, xmpp=xmpp)
    check_transports(configuration)
    return configuration


def _with_files(access: AccessConfig) -> AccessConfig:
    if access.tokens_file is not None:
        settings = Settings(_read_file(access.tokens_file))
        with settings.locating():
            tokens = convert_settings(settings.merged, TokensFile)
            _check_grants(tokens)
        access = replace(
            access,
            publishers=access.publishers + tokens.publishers,
            admins=access.admins + tokens.admins,
        )
    if access.jwt_key_file is not None:
        access = replace(access, jwt_key=read_text(access.jwt_key_file))
    return access


def _check_grants(settings: AccessConfig | TokensFile) -> None:
    digests = {
        "publishers": [each.token_sha256 for each in settings.publishers],
        "admins": [each.token_sha256 for each in settings.admins],
    }
    for name, found in digests.items():
        for number, each in enumerate(found):
            if each in _EXAMPLE_DIGESTS:
                reason = "this is the example from the documentation; generate your own secret"
                raise WrongSetting((name, number, "token_sha256"), reason)
    for number, publisher in enumerate(settings.publishers):
        check_prefixes(("publishers", number, "topics"), publisher.topics)
