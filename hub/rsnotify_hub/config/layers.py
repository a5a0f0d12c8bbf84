"""The three places of settings: a file, the environment and options."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, Protocol

import msgspec

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.config.deprecated_variables import is_former
from rsnotify.runtime.config.files import decode_settings, read_text
from rsnotify.runtime.config.line_numbers import SettingPath, place_of
from rsnotify_hub.config.tokens import find_secrets, with_digests

PREFIX = "RSNOTIFY_HUB_"
#: The prefix from when all commands read the same variables; accepted for one release.
FORMER_PREFIX = "RSNOTIFY_"

#: The similarity of two names above which one is probably a misspelling of the other.
_SIMILARITY = 0.85


class SettingsLayer(Protocol):
    settings: dict[str, Any]

    def place(self, path: SettingPath) -> str:
        """Return the place of a setting, as the beginning of a sentence."""
        ...


class FileLayer:
    """A .toml or .json file, which must not contain a secret."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._text = read_text(path)
        self.settings = decode_settings(path, self._text)
        for where, instead in find_secrets(self.settings):
            raise ConfigurationError(f"{self.place(where)}: {where[-1]}: {instead}")

    def place(self, path: SettingPath) -> str:
        return place_of(self._path, self._text, path)


class EnvironmentLayer:
    """Variables of the environment: `RSNOTIFY_HUB_LOG_BYTES` is the setting `log_bytes`.

    An empty variable counts as not set. A variable with the prefix that is no setting may belong to
    another command.

    Attributes:
        former: Variables that are set by their former names, each with its present name.
    """

    def __init__(self, environ: Mapping[str, str], types: Mapping[str, Any]) -> None:
        self._names = {name: _variable_of(name, environ) for name in types}
        names = [(FORMER_PREFIX + name.upper(), _variable(name)) for name in types]
        self.former = {old: new for old, new in names if is_former(environ, old, new)}
        self.settings = {
            name: with_digests(_decode_value(used, text, types[name]), self.place([name]))
            for name, used in self._names.items()
            if (text := environ.get(used))
        }

    def place(self, path: SettingPath) -> str:
        return f"the variable {self._names.get(str(path[0])) or _variable(str(path[0]))}"


def misspelt(environ: Iterable[str], names: Collection[str]) -> dict[str, str]:
    """Return variables that are no settings but have nearly the name of one, and that name."""
    settings = [name.upper() for name in names]
    found = {}
    for variable in environ:
        prefix = PREFIX if variable.startswith(PREFIX) else FORMER_PREFIX
        name = variable.removeprefix(prefix)
        if name != variable and name not in settings:
            for near in get_close_matches(name, settings, 1, _SIMILARITY):
                found[variable] = PREFIX + near
    return found


class OptionLayer:
    """Options of the command line, or settings from a program; None stands for one not given."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.settings = {
            name: with_digests(value, self.place([name]))
            for name, value in options.items()
            if value is not None
        }

    def place(self, path: SettingPath) -> str:
        return f"the option --{str(path[0]).replace('_', '-')}"


def _variable(name: str) -> str:
    return PREFIX + name.upper()


def _variable_of(name: str, environ: Mapping[str, str]) -> str:
    """Return the variable of a setting: its former name only if the present name is not set."""
    present, former = _variable(name), FORMER_PREFIX + name.upper()
    return former if environ.get(former) and not environ.get(present) else present


def _decode_value(variable: str, text: str, kind: Any) -> Any:
    """Decode a value: a text, a number, a truth value, or an array in JSON or TOML."""
    for strict in (True, False):
        with suppress(msgspec.ValidationError):
            return msgspec.convert(text, kind, strict=strict)
    return _decode_array(variable, text) if text.lstrip().startswith("[") else text


def _decode_array(variable: str, text: str) -> Any:
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(text)
    with suppress(msgspec.DecodeError):
        return msgspec.toml.decode(f"value = {text}", type=dict[str, Any])["value"]
    # The message of the decoder might repeat a secret.
    raise ConfigurationError(f"the variable {variable}: no array as JSON or TOML writes it")
