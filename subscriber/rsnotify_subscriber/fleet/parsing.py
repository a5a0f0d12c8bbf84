"""From the text of a file to settings; errors name the line, the table and the key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, WrongOption, without_credentials
from rsnotify.runtime.config.files import decode_settings, read_text
from rsnotify.runtime.config.line_numbers import place_of
from rsnotify.runtime.config.wrong_setting import WrongSetting, convert_settings
from rsnotify_subscriber.fleet.checks import check_apart, check_source, check_terms
from rsnotify_subscriber.fleet.configuration import (
    PASSWORD_FILES,
    FleetConfiguration,
    FollowedSource,
    LimitSettings,
    SourceSettings,
    WebSubSettings,
)

_PATHS = ("dest", "state", *PASSWORD_FILES, "mqtt_ca", "mqtt_certificate", "mqtt_key", "xmpp_ca")
_NAMED = ("dest", "state", "schema", "mqtt_session")
#: A Source with the first setting does not inherit the others from `[defaults]`.
_INSTEAD = {
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
_CALLBACK = "callback_"


class _File(Struct, forbid_unknown_fields=True):
    defaults: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    websub: dict[str, Any] = {}
    source: list[dict[str, Any]] = []


def _table(table: str | int, rest: list[str | int], sources: list[dict[str, Any]]) -> str:
    """Return the name of a table as it is written, or of a key outside of tables."""
    if table != "source" or not rest:
        return f"[{table}]" if table in _File.__struct_fields__ else str(table)
    number = int(rest[0])
    own = sources[number] if sources else {}
    name = own.get("name") or own.get("url")
    return f"[[source]] {without_credentials(name) if isinstance(name, str) else number + 1}"


def load(path: Path, given: Mapping[str, Any] | None = None) -> FleetConfiguration:
    """Read a file of Sources, in .toml or .json.

    Args:
        path: The file.
        given: Settings of the command line, which override `[defaults]` and `[websub]`.
    """
    text = read_text(path)
    found = parse(str(path), text, decode_settings(path, text), given)
    return replace(found, sources=tuple(map(_with_secret, found.sources)))


def _with_secret(source: FollowedSource) -> FollowedSource:
    found = {
        name.removesuffix("_file"): read_text(file).removesuffix("\n")
        for name in PASSWORD_FILES
        if (file := getattr(source, name)) is not None
    }
    return replace(source, **found)


def parse(
    path: str, text: str, settings: Mapping[str, Any], given: Mapping[str, Any] | None = None
) -> FleetConfiguration:
    """Return the configuration in a file; relative paths in it begin at its folder.

    Args:
        path: The file.
        text: Its text, in which errors name a line.
        settings: The decoded text.
        given: As for `load`.
    """
    given = given or {}
    sources: list[dict[str, Any]] = []
    try:
        file = convert_settings(settings, _File)
        sources = file.source
        return _configured(path, file, given)
    except WrongSetting as wrong:
        table, *rest = wrong.path
        option = f"{_CALLBACK if table == 'websub' else ''}{rest[0]}" if rest else ""
        if table in ("defaults", "websub") and option in given:
            raise WrongOption(option, wrong.reason) from None
        place = place_of(path, text, wrong.path)
        names = [_table(table, rest, sources), *map(str, rest[1:] if table == "source" else rest)]
        raise ConfigurationError(": ".join([place, *filter(None, names), wrong.reason])) from None


def _configured(path: str, file: _File, given: Mapping[str, Any]) -> FleetConfiguration:
    websub = file.websub | {
        name.removeprefix(_CALLBACK): value
        for name, value in given.items()
        if name.startswith(_CALLBACK)
    }
    options = {name: value for name, value in given.items() if not name.startswith(_CALLBACK)}
    defaults = _over(file.defaults, options)
    check_terms(convert_settings(defaults, SourceSettings, "defaults"))
    folder = PurePath(os.path.abspath(path)).parent
    configuration = FleetConfiguration(
        path=path,
        limits=convert_settings(file.limits, LimitSettings, "limits"),
        websub=convert_settings(websub, WebSubSettings, "websub"),
        sources=tuple(
            _source(number, one, defaults, folder) for number, one in enumerate(file.source)
        ),
    )
    if not configuration.sources:
        raise WrongSetting(("source",), "name at least one Source, each with a [[source]]")
    for number, source in enumerate(configuration.sources):
        check_source(number, source, reachable=configuration.websub.url is not None)
    check_apart(configuration.sources)
    return configuration


def _source(
    number: int, own: Mapping[str, Any], defaults: Mapping[str, Any], folder: PurePath
) -> FollowedSource:
    settings = _over(defaults, own)
    if isinstance(own.get("options"), dict) and not own.keys() & {"dest", "handler"}:
        settings["options"] = {**defaults.get("options", {}), **own["options"]}
    return _placed(convert_settings(settings, FollowedSource, "source", number), number, folder)


def _over(defaults: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    unwanted = {other for name in own for other in _INSTEAD.get(name, ())}
    return {name: value for name, value in defaults.items() if name not in unwanted} | dict(own)


def _placed(source: FollowedSource, number: int, folder: PurePath) -> FollowedSource:
    """Insert the name of a Source into its settings, and make its paths absolute."""
    found: dict[str, Any] = {}
    for key in _NAMED:
        value = getattr(source, key)
        if value is not None and "{name}" in value:
            if source.name is None:
                raise WrongSetting(("source", number, key), "for {name} the Source needs a name")
            found[key] = value.replace("{name}", source.name)
    for key in _PATHS:
        value = found.get(key, getattr(source, key))
        if value is not None:
            found[key] = os.path.normpath(folder / value)
    return replace(source, **found)
