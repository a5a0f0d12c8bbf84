"""The settings of `rsnotify source`: a file (TOML or JSON), overridden by command line options."""

from __future__ import annotations

from functools import partial
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from rsnotify.runtime.mqtt_broker import login_of
from rsnotify.runtime.settings import Settings, SettingsFile, convert_settings
from rsnotify.runtime.transport_extensions import logins_of_settings
from rsnotify_publisher.hubs import Hub, check_token, parse_hubs
from rsnotify_publisher.options import Options
from rsnotify_publisher.view import check_views


class FolderSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A set of resources: the files in a folder.

    Args:
        name: The name of the set.
        folder: The folder with the files of the set.
        base_url: The URL of the folder. By default, the Source's base URL followed by the name.
        described_by: The URL of a document about the set.
        options: Tuning of this set, added to the tuning of the Source.
    """

    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$",
            description="a string of letters, digits, _ and -, with single dots between them",
        ),
    ]
    folder: str
    base_url: str | None = None
    described_by: str | None = None
    options: dict[str, Any] = {}


class SourceConfiguration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of `rsnotify source`.

    The other settings correspond to the command's options of the same names.

    Args:
        hubs: The URLs of the hubs to push to. If a hub has several nodes, their URLs are separated
            by commas.
        advertise: The URLs of the hubs for Destinations, if they differ.
        token: The bearer token for the hubs. It is a secret, like `mqtt_password` and
            `xmpp_password`.
        described_by: The URL of a document about the Source.
        options: Tuning of all sets.
        sets: The sets of resources, `[[set]]` in TOML.
    """

    base_url: str | None = None
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    hubs: tuple[str, ...] = ()
    advertise: tuple[str, ...] = ()
    token: str | None = None
    mqtt_user: str | None = None
    mqtt_password: str | None = None
    mqtt_ca: str | None = None
    mqtt_certificate: str | None = None
    mqtt_key: str | None = None
    mqtt_version: Literal["5", "3.1.1"] = "5"
    xmpp_jid: str | None = None
    xmpp_password: str | None = None
    xmpp_server: str | None = None
    xmpp_ca: str | None = None
    data: str | None = None
    described_by: str | None = None
    options: dict[str, Any] = {}
    sets: tuple[FolderSettings, ...] = msgspec.field(default=(), name="set")

    def __repr__(self) -> str:
        """Return a representation without secrets."""
        return f"Configuration(base_url={self.base_url!r}, sets={self.sets})"

    def check(self) -> None:
        """Raise WrongSetting if tuning options are invalid, which the types do not check."""
        _options(self.options, "options")
        for number, each in enumerate(self.sets):
            _options(each.options, "set", number, "options")

    def known_hubs(self) -> tuple[Hub, ...]:
        login = login_of(self)
        return parse_hubs(
            self.hubs,
            self.token,
            self.advertise,
            login=login,
            version=self.mqtt_version,
            logins=logins_of_settings("xmpp", self),
        )

    def options_of(self, folder: FolderSettings | None = None) -> Options:
        """Return the options of one set, or of a Source with a single set."""
        return _options(self.options | (folder.options if folder else {}))


T = TypeVar("T", bound=SourceConfiguration)


def load_settings(kind: type[T], path: FilePath | None, **given: Any) -> T:
    """Read a .toml or .json file, and override its settings with those in `given`, unless None.

    Options in `given` also override the options of every set.

    Raises:
        ConfigurationError: The file cannot be read, or a setting is unknown or wrong.
    """
    settings = Settings(None if path is None else SettingsFile(path), given)
    with settings.locating():
        read = convert_settings(settings.merged, kind)
        read.check()
    check_token(read.token)
    options = settings.options.get("options", {})
    sets = (replace(each, options=each.options | options) for each in read.sets)
    return replace(read, sets=tuple(sets))


load_configuration = partial(load_settings, SourceConfiguration)


def _options(given: dict[str, Any], *table: str | int) -> Options:
    options = convert_settings(given, Options, *table)
    check_views(options.views, *table)
    return options
