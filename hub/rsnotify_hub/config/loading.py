"""Where the hub's settings come from: a file, the environment over it, options over both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_type_hints

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.runtime.config.files import read_text
from rsnotify_hub.config.checks import (
    check_digests,
    check_jwt,
    check_leases,
    check_mqtt,
    check_networks,
    check_origins,
    check_prefixes,
    check_public_url,
)
from rsnotify_hub.config.configuration import AdminGrant, HubConfiguration, PublisherGrant, login_of
from rsnotify_hub.config.conversion import blaming, convert
from rsnotify_hub.config.layers import (
    PREFIX,
    EnvironmentLayer,
    FileLayer,
    OptionLayer,
    SettingsLayer,
    misspelt,
)


class TokensFile(Struct, frozen=True, forbid_unknown_fields=True):
    """What stands in a `tokens_file`."""

    publishers: tuple[PublisherGrant, ...] = ()
    admins: tuple[AdminGrant, ...] = ()


class ConfigurationSource:
    """Where the settings come from, to be read at the start and again when a file changes.

    Args:
        path: A file ending in .toml or .json; None for the defaults.
        environ: The variables of the environment, which win over the file.
        options: Settings that were given by other means, and win over both; None says that one
            was not.
    """

    def __init__(
        self, path: str | None, environ: Mapping[str, str], options: Mapping[str, Any]
    ) -> None:
        self._path = path
        self._environ = environ
        self._options = options

    def load(self) -> HubConfiguration:
        """Read everything.

        Raises:
            ConfigurationError: Something cannot be read, or a setting is unknown or wrong.
        """
        types = get_type_hints(HubConfiguration, include_extras=True)
        layers: list[SettingsLayer] = [FileLayer(self._path)] if self._path else []
        layers += [EnvironmentLayer(self._environ, types), OptionLayer(self._options)]
        configuration = convert(layers, HubConfiguration)
        with blaming(layers):
            _check_grants(configuration)
            check_origins("websocket_origins", configuration.websocket_origins)
            check_public_url(configuration.public_url)
            check_leases(configuration.min_lease_seconds, configuration.max_lease_seconds)
            check_prefixes(("open_topics",), configuration.open_topics)
            check_networks("trusted_proxies", configuration.trusted_proxies)
            check_prefixes(("mqtt_channels",), configuration.mqtt_channels)
            configuration = _with_files(configuration)
            check_mqtt(
                configuration.mqtt_url,
                configuration.mqtt_public_url,
                login_of(configuration),
                configuration.mqtt_channels,
            )
            return configuration

    def former(self) -> dict[str, str]:
        """Return variables that are set by their former names, each with its present one.

        Those that an option replaces are left out.
        """
        types = get_type_hints(HubConfiguration, include_extras=True)
        found = EnvironmentLayer(self._environ, types).former
        given = {
            PREFIX + name.upper() for name, value in self._options.items() if value is not None
        }
        return {
            old: new for old, new in found.items() if new not in given or self._environ.get(new)
        }

    def misspelt(self) -> dict[str, str]:
        """Return variables that nearly are settings, and those they nearly are."""
        return misspelt(self._environ, HubConfiguration.__struct_fields__)

    def files(self, configuration: HubConfiguration) -> list[str]:
        """Return the files that were read."""
        named = (self._path, configuration.tokens_file, configuration.jwt_key_file)
        return [path for path in named if path is not None]


def load_configuration(
    path: str | None, *, environ: Mapping[str, str] | None = None, **options: Any
) -> HubConfiguration:
    """Read the settings once: `ConfigurationSource.load`.

    Raises:
        ConfigurationError: Something cannot be read, or a setting is unknown or wrong.
    """
    return ConfigurationSource(path, environ or {}, options).load()


def _with_files(configuration: HubConfiguration) -> HubConfiguration:
    """Put in what other files hold."""
    if configuration.tokens_file is not None:
        layers = [FileLayer(configuration.tokens_file)]
        tokens = convert(layers, TokensFile)
        with blaming(layers):
            _check_grants(tokens)
        configuration = replace(
            configuration,
            publishers=configuration.publishers + tokens.publishers,
            admins=configuration.admins + tokens.admins,
        )
    if configuration.jwt_key_file is not None:
        configuration = replace(configuration, jwt_key=read_text(configuration.jwt_key_file))
    if configuration.mqtt_password_file is not None:
        password = read_text(configuration.mqtt_password_file).removesuffix("\n")
        configuration = replace(configuration, mqtt_password=password)
    check_jwt(configuration.jwt_algorithms, configuration.jwt_key, configuration.jwt_audience)
    return configuration


def _check_grants(settings: HubConfiguration | TokensFile) -> None:
    check_digests("publishers", [each.token_sha256 for each in settings.publishers])
    check_digests("admins", [each.token_sha256 for each in settings.admins])
    for number, publisher in enumerate(settings.publishers):
        check_prefixes(("publishers", number, "topics"), publisher.topics)
