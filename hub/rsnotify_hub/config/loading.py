"""Reads the hub's settings: a file, the environment over it, options over both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, get_type_hints

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.config.files import read_text
from rsnotify.runtime.config.line_numbers import SettingPath
from rsnotify.runtime.config.wrong_setting import WrongSetting, convert_settings
from rsnotify_hub.config.checks import (
    check_digests,
    check_follow,
    check_jwt,
    check_leases,
    check_mqtt,
    check_networks,
    check_origins,
    check_prefixes,
    check_public_url,
    check_store,
    check_xmpp,
)
from rsnotify_hub.config.configuration import (
    SETTINGS,
    AccessConfig,
    AdminGrant,
    HubConfiguration,
    PublisherGrant,
    configuration_of,
)
from rsnotify_hub.config.layers import (
    PREFIX,
    EnvironmentLayer,
    FileLayer,
    OptionLayer,
    SettingsLayer,
    misspelt,
)

T = TypeVar("T", bound=Struct)


class TokensFile(Struct, frozen=True, forbid_unknown_fields=True):
    publishers: tuple[PublisherGrant, ...] = ()
    admins: tuple[AdminGrant, ...] = ()


class ConfigurationSource:
    """The places of the settings, read at the start and again when a file changes.

    Args:
        path: A file ending in .toml or .json; None for the defaults.
        environ: The variables of the environment, which override the file.
        options: Settings given by other means, which override both; None stands for an option
            that was not given.
    """

    def __init__(
        self, path: str | None, environ: Mapping[str, str], options: Mapping[str, Any]
    ) -> None:
        self._path = path
        self._environ = environ
        self._options = options

    def load(self) -> HubConfiguration:
        """Read and check all settings.

        Raises:
            ConfigurationError: A file cannot be read, or a setting is unknown or wrong.
        """
        layers: list[SettingsLayer] = [FileLayer(self._path)] if self._path else []
        layers += [EnvironmentLayer(self._environ, _types()), OptionLayer(self._options)]
        configuration = configuration_of(_convert(layers, SETTINGS))
        with _locating(layers):
            return _checked(configuration)

    def former(self) -> dict[str, str]:
        """Return variables that are set by their former names, each with its present name.

        Variables that an option overrides are left out.
        """
        found = EnvironmentLayer(self._environ, _types()).former
        given = {
            PREFIX + name.upper() for name, value in self._options.items() if value is not None
        }
        return {
            old: new for old, new in found.items() if new not in given or self._environ.get(new)
        }

    def misspelt(self) -> dict[str, str]:
        return misspelt(self._environ, SETTINGS.__struct_fields__)

    def files(self, configuration: HubConfiguration) -> list[str]:
        access = configuration.access
        named = (self._path, access.tokens_file, access.jwt_key_file)
        return [path for path in named if path is not None]


def load_configuration(
    path: str | None, *, environ: Mapping[str, str] | None = None, **options: Any
) -> HubConfiguration:
    return ConfigurationSource(path, environ or {}, options).load()


def _types() -> dict[str, Any]:
    return get_type_hints(SETTINGS, include_extras=True)


def _convert(layers: Sequence[SettingsLayer], kind: type[T]) -> T:
    """Merge settings, where later layers override earlier ones."""
    with _locating(layers):
        merged = {name: value for layer in layers for name, value in layer.settings.items()}
        return convert_settings(merged, kind)


@contextmanager
def _locating(layers: Sequence[SettingsLayer]) -> Iterator[None]:
    """Add the place of a `WrongSetting` to the error, which becomes a ConfigurationError."""
    try:
        yield
    except WrongSetting as wrong:
        place = _place(layers, wrong.path)
        raise ConfigurationError(f"{place}: {wrong}") from None


def _place(layers: Sequence[SettingsLayer], path: SettingPath) -> str:
    for layer in reversed(layers):
        if path[0] in layer.settings:
            return layer.place(path)
    return "the hub's configuration"


def _checked(configuration: HubConfiguration) -> HubConfiguration:
    """Check the settings, and add the content of the files that they name."""
    access, websub, mqtt = configuration.access, configuration.websub, configuration.mqtt
    store = configuration.store
    _check_grants(access)
    check_origins("websocket_origins", configuration.websocket.websocket_origins)
    check_public_url(configuration.server.public_url)
    check_leases(websub.min_lease_seconds, websub.max_lease_seconds)
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
    check_xmpp(xmpp)
    if store.password_file is not None:
        store = replace(store, password=read_text(store.password_file).removesuffix("\n"))
    check_store(store)
    check_follow(configuration.follow, store)
    return replace(configuration, access=access, mqtt=mqtt, store=store, xmpp=xmpp)


def _with_files(access: AccessConfig) -> AccessConfig:
    if access.tokens_file is not None:
        layers = [FileLayer(access.tokens_file)]
        tokens = _convert(layers, TokensFile)
        with _locating(layers):
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
    check_digests("publishers", [each.token_sha256 for each in settings.publishers])
    check_digests("admins", [each.token_sha256 for each in settings.admins])
    for number, publisher in enumerate(settings.publishers):
        check_prefixes(("publishers", number, "topics"), publisher.topics)
