"""The settings of `rsnotify follow --config`: the Sources, how they are followed, and limits.

Constraints that a type cannot express, such as settings that exclude each other, are checked here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, without_credentials
from rsnotify.format.model import ChangeType
from rsnotify.runtime.mqtt_broker import parse_broker
from rsnotify.runtime.settings import (
    Settings,
    SettingsFile,
    WrongSetting,
    convert_settings,
    read_text,
)
from rsnotify.sync.pace import Pace
from rsnotify_subscriber.fetching.fetcher import MAX_CONTENT_BYTES
from rsnotify_subscriber.mirror import default_state
from rsnotify_subscriber.pool import Limits
from rsnotify_subscriber.push_options import DEFAULT_TERMS, Via, WebSubTerms

_Count = Annotated[int, Meta(ge=1, le=10**9)]
_Bytes = Annotated[int, Meta(ge=1, le=10**15)]
# At most a year: timers overflow beyond that.
_Seconds = Annotated[float, Meta(gt=0, le=3e7)]
_Text = Annotated[str, Meta(min_length=1)]
_Path = Annotated[str, Meta(pattern=r"^[^\x00]+\Z", description="the path of a file or folder")]
#: The name of a Source, which may be a part of a folder's name.
Name = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z",
        max_length=100,
        description="a string of letters, digits, ., _ and -, which starts with a letter or digit "
        "and has at most 100 characters",
    ),
]


#: The schema of a state in PostgreSQL.
DEFAULT_SCHEMA = "rsnotify"
#: The settings that contain the path of a file with a password.
PASSWORD_FILES = ("mqtt_password_file", "xmpp_password_file")


def shared_fields(kind: type[Struct], settings: Struct) -> dict[str, Any]:
    """Return the settings that another struct has as fields, by name."""
    names = set(kind.__struct_fields__).intersection(settings.__struct_fields__)
    return {name: getattr(settings, name) for name in names}


class SourceSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a Source is followed, or in `[defaults]`, the defaults for all Sources.

    Most settings are also options of `rsnotify follow` (`commands/follow_options.py`). In `dest`,
    `state`, `schema` and `mqtt_session`, `{name}` is replaced by the name of the Source.

    Args:
        dest: The folder of a mirror. Either this or `handler` is required.
        handler: The handler, as `package.module:name`.
        options: The arguments for creating the handler.
        state: The folder of the state. By default, next to `dest`.
        postgresql: The connection string of a database that contains the state, instead of a
            folder.
        schema: The schema of the state in that database.
        in_flight: Maximum number of changes being applied at the same time.
        hold: Maximum number of changes in fragments that are kept after a gap.
        largest: Maximum size of content without an announced length, in bytes.
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
    adopt: bool = False
    patience: Annotated[float, Meta(ge=0, le=3e7)] = Pace().patience
    spread: Annotated[float, Meta(ge=0, le=3e7)] | None = None
    rate: Annotated[float, Meta(ge=0.001)] | None = None
    in_flight: _Count = 32
    hold: _Count = 2_000
    largest: _Bytes = MAX_CONTENT_BYTES
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
        """Return a string without secrets, for logs."""
        return f"{type(self).__name__}(dest={self.dest!r}, handler={self.handler!r})"


class FollowedSource(SourceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Source and how it is followed: `[[source]]` in TOML.

    Args:
        url: The URL of the Source, as for `rsnotify follow`.
        name: The name of the Source. By default, its URL without a password.
        login: A user and password for the Source, as `user:password`.
        header: Header fields to send to the Source, each as `NAME: VALUE`.
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
    """How hubs reach this process, and the `WebSubTerms`: the options `--callback-…`.

    Args:
        url: The public URL of this process. Without it, hubs cannot reach this process.
        port: The port to listen on. By default, the port of the URL.
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
        return WebSubTerms(**shared_fields(WebSubTerms, self), signatures=self.signature)


class FleetConfiguration(Struct, frozen=True, kw_only=True):
    """All settings, with absolute paths, and with `[defaults]` applied to each Source."""

    path: str
    limits: Limits = Limits()
    websub: WebSubSettings = WebSubSettings()
    sources: tuple[FollowedSource, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """The files to watch for changes."""
        secrets = {getattr(one, name) for one in self.sources for name in PASSWORD_FILES}
        return (self.path, *sorted(filter(None, secrets)))


_EXCLUSIVE = (
    ("dest", "handler"),
    ("state", "postgresql"),
    ("mqtt_password", "mqtt_password_file"),
    ("xmpp_password", "xmpp_password_file"),
)


def _check_broker(settings: SourceSettings, *table: str | int) -> None:
    """Raise `WrongSetting` if the URL of the MQTT broker in a table is invalid."""
    if settings.mqtt_url is not None:
        try:
            parse_broker(settings.mqtt_url)
        except ConfigurationError as error:
            raise WrongSetting((*table, "mqtt_url"), str(error)) from None


def _conflicts(source: FollowedSource, *, has_callbacks: bool) -> Iterator[tuple[str, str]]:
    """Yield the settings of a Source that conflict with others, each with the reason.

    `has_callbacks` says whether hubs can reach this process.
    """
    for one, other in _EXCLUSIVE:
        if getattr(source, one) is not None and getattr(source, other) is not None:
            yield other, f"it cannot be combined with {one}"
    if source.dest is None and source.handler is None:
        yield "dest", "give the folder of a mirror, or a handler"
    if source.handler is None and source.options:
        yield "options", "only a handler has options, and there is none"
    if source.handler is not None and source.state is None and source.postgresql is None:
        yield "state", "a handler needs a place for its state: state or postgresql"
    if source.dest and source.state and Path(source.state).is_relative_to(source.dest):
        yield "state", "it must be outside the mirror"
    if source.schema is not None and source.postgresql is None:
        yield "schema", "only a state in PostgreSQL has a schema; set postgresql, too"
    if source.dest is not None and source.postgresql is not None:
        yield "postgresql", "the state of a mirror must be in a folder"
    if source.via is Via.WEBSUB and not has_callbacks:
        yield "via", "WebSub needs a url in [websub] at which hubs can reach this process"


def _check_disjoint(sources: Sequence[FollowedSource]) -> None:
    """Raise `WrongSetting` if two Sources have the same name or place, or nested folders."""
    titles: set[str] = set()
    owners: dict[object, str] = {}
    parents: dict[object, str] = {}  # Sources by the parents of their folders
    for number, source in enumerate(sources):
        if source.title in titles:
            reason = f"another Source is also called {source.title}; give each a unique name"
            raise WrongSetting(("source", number, "name"), reason)
        titles.add(source.title)
        places = list(_places(source))
        for key, place in places:
            within = (place, *place.parents) if isinstance(place, Path) else (place,)
            other = next((owners[one] for one in within if one in owners), parents.get(place))
            if other is not None:
                reason = f"it conflicts with {other}; make it unique, for example with {{name}}"
                raise WrongSetting(("source", number, key), reason)
        for _, place in places:
            owners[place] = source.title
            if isinstance(place, Path):
                parents.update(dict.fromkeys(place.parents, source.title))


def _places(source: FollowedSource) -> Iterator[tuple[str, object]]:
    """Yield the places that must belong to only one Source, with their setting."""
    if source.dest is not None:
        yield "dest", Path(source.dest)
    if source.state is not None:
        yield "state", Path(source.state)
    elif source.dest is not None:
        yield "dest", default_state(Path(source.dest))
    if source.postgresql is not None:
        yield "schema", (source.postgresql, source.schema or DEFAULT_SCHEMA)
    if source.mqtt_session:
        yield "mqtt_session", (source.mqtt_url, source.mqtt_user, source.mqtt_session)


#: The settings that are paths. In a file, they are relative to its folder.
PATH_SETTINGS = (
    "dest",
    "state",
    *PASSWORD_FILES,
    "mqtt_ca",
    "mqtt_certificate",
    "mqtt_key",
    "xmpp_ca",
)
#: The settings that may contain `{name}`.
_TEMPLATE_SETTINGS = ("dest", "state", "schema", "mqtt_session")
#: If a Source has a setting, these settings of `[defaults]` do not apply to it.
_OVERRIDDEN = {
    "dest": ("handler", "options", "schema"),
    "handler": ("dest", "options"),
    "state": ("postgresql", "schema"),
    "postgresql": ("state",),
    "mqtt_password": ("mqtt_password_file",),
    "mqtt_password_file": ("mqtt_password",),
    "xmpp_password": ("xmpp_password_file",),
    "xmpp_password_file": ("xmpp_password",),
}


#: The prefix of the options for `[websub]`.
_CALLBACK_PREFIX = "callback_"


class _FleetFile(Struct, forbid_unknown_fields=True):
    defaults: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    websub: dict[str, Any] = {}
    source: list[dict[str, Any]] = []


def load(path: Path, given: Mapping[str, Any] | None = None) -> FleetConfiguration:
    """Read a .toml or .json file of Sources, and the password files that it names.

    `given` contains the options of the command by name. They override `[defaults]` and `[websub]`.
    """
    found = parse(SettingsFile(path), given)
    return replace(found, sources=tuple(map(_read_passwords, found.sources)))


def _read_passwords(source: FollowedSource) -> FollowedSource:
    found = {
        name.removesuffix("_file"): read_text(file).removesuffix("\n")
        for name in PASSWORD_FILES
        if (file := getattr(source, name)) is not None
    }
    return replace(source, **found)


def parse(file: SettingsFile, given: Mapping[str, Any] | None = None) -> FleetConfiguration:
    """Return the configuration in a file. Relative paths are relative to the file's folder."""
    settings = _settings(file, given or {})
    with settings.locating():
        tables = convert_settings(settings.merged, _FleetFile)
        defaults = _merge(tables.defaults, settings.options["defaults"])
        return _build_configuration(str(file.path), tables, defaults)


def settings_from_options(given: Mapping[str, Any]) -> tuple[SourceSettings, WebSubSettings]:
    """Return the settings of one Source that is only configured by command-line options."""
    settings = _settings(None, given)
    with settings.locating():
        source = convert_settings(settings.merged["defaults"], SourceSettings, "defaults")
        _check_broker(source, "defaults")
        return source, convert_settings(settings.merged["websub"], WebSubSettings, "websub")


def _settings(file: SettingsFile | None, given: Mapping[str, Any]) -> Settings:
    """Return the settings of a file, overridden by options in `[defaults]` and `[websub]`."""
    options: dict[str, dict[str, Any]] = {"defaults": {}, "websub": {}}
    for name, value in given.items():
        table = "websub" if name.startswith(_CALLBACK_PREFIX) else "defaults"
        setting = "except" if name == "excluded" else name.removeprefix(_CALLBACK_PREFIX)
        options[table][setting] = value
    return Settings(file, options, prefixes={"websub": _CALLBACK_PREFIX})


def _build_configuration(
    path: str, file: _FleetFile, defaults: Mapping[str, Any]
) -> FleetConfiguration:
    _check_broker(convert_settings(defaults, SourceSettings, "defaults"), "defaults")
    folder = PurePath(os.path.abspath(path)).parent
    configuration = FleetConfiguration(
        path=path,
        limits=convert_settings(file.limits, Limits, "limits"),
        websub=convert_settings(file.websub, WebSubSettings, "websub"),
        sources=tuple(
            _source(number, one, defaults, folder) for number, one in enumerate(file.source)
        ),
    )
    if not configuration.sources:
        raise WrongSetting(("source",), "add at least one Source as [[source]]")
    for number, source in enumerate(configuration.sources):
        for key, reason in _conflicts(source, has_callbacks=configuration.websub.url is not None):
            raise WrongSetting(("source", number, key), reason)
        _check_broker(source, "source", number)
    _check_disjoint(configuration.sources)
    return configuration


def _source(
    number: int, own: Mapping[str, Any], defaults: Mapping[str, Any], folder: PurePath
) -> FollowedSource:
    settings = _merge(defaults, own)
    if isinstance(own.get("options"), dict) and not own.keys() & {"dest", "handler"}:
        settings["options"] = {**defaults.get("options", {}), **own["options"]}
    return _resolve_paths(
        convert_settings(settings, FollowedSource, "source", number), number, folder
    )


def _merge(defaults: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    unwanted = {other for name in own for other in _OVERRIDDEN.get(name, ())}
    return {name: value for name, value in defaults.items() if name not in unwanted} | dict(own)


def _resolve_paths(source: FollowedSource, number: int, folder: PurePath) -> FollowedSource:
    """Replace `{name}` in the settings of a Source, and make its paths absolute."""
    found: dict[str, Any] = {}
    for key in _TEMPLATE_SETTINGS:
        value = getattr(source, key)
        if value is not None and "{name}" in value:
            if source.name is None:
                raise WrongSetting(("source", number, key), "the Source needs a name to use {name}")
            found[key] = value.replace("{name}", source.name)
    for key in PATH_SETTINGS:
        value = found.get(key, getattr(source, key))
        if value is not None:
            found[key] = os.path.normpath(folder / value)
    return replace(source, **found)
