"""The settings of a command, from a file, environment variables and options.

Options override environment variables, which override the file, which overrides the defaults.
Structs define the types of settings. A wrong setting raises `WrongSetting` with the path to the
setting; `Settings.locating` adds the option, the variable, or the file and line. Error messages
contain the allowed values, which are derived from the setting's type. They omit the wrong value,
because it may be a secret.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, inspect

from rsnotify.errors import ConfigurationError, WrongOption, without_credentials
from rsnotify.runtime.reasons import reason_of

logger = logging.getLogger("rsnotify")

#: The prefix of all environment variables, before the name of the command.
PREFIX = "RSNOTIFY_"
#: Similarity above which one name is probably a misspelling of another.
_SIMILARITY = 0.85


def warn_of_misspelt(variable: str, meant: str) -> None:
    logger.warning("the variable %s is unknown, and ignored; did you mean %s?", variable, meant)


def misspelt_variables(
    environ: Mapping[str, str],
    known: Collection[str],
    own: str,
    others: Collection[str] = (),
) -> dict[str, str]:
    """Return variables whose names are probably misspelled, each with the correct name.

    `own` is the prefix of the known names, before the name of the option. A misspelled name may
    lack it. Variables of the commands in `others` are ignored.
    """
    names = {name.removeprefix(each): name for each in (own, PREFIX) for name in known}
    theirs = tuple(f"{name.upper()}_" for name in others)
    found = {}
    for variable in environ:
        name = variable.removeprefix(PREFIX)
        if name != variable and variable not in known and not name.startswith(theirs):
            for near in get_close_matches(name, names, 1, _SIMILARITY):
                found[variable] = names[near]
    return found


#: Time between two checks of the files, in seconds.
_CHECK_INTERVAL = 0.5

_State = tuple[tuple[int, int, int] | None, ...]


def read_text(path: str | Path) -> str:
    """Read a file, or raise ConfigurationError."""
    try:
        return Path(path).read_text("utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {reason_of(error)}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"cannot read {path}: it is not UTF-8") from None


class FileWatch:
    """Detects changes to files by polling.

    Notifications by the operating system are less reliable, because files may be mounted into
    containers, or replaced through links.
    """

    def __init__(self, files: Sequence[str]) -> None:
        self.files = files
        # Initially unknown, because a file may have changed since it was read.
        self._read: _State | None = None

    async def changed(self) -> None:
        """Wait until a file has changed since the last call."""
        import asyncio  # not needed for the help of commands

        before: _State | None = None
        while True:
            await asyncio.sleep(_CHECK_INTERVAL)
            now = tuple(map(_state_of, self.files))
            # A file that is still being written may be incomplete.
            if now != self._read and now == before:
                self._read = now
                return
            before = now

    def watch(self, files: Sequence[str]) -> None:
        if files != self.files:
            self.files, self._read = files, None


def _state_of(file: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


#: The path to a setting: names of tables and keys, and positions in arrays.
SettingPath = Sequence[str | int]

_ARRAY_TABLE = re.compile(r"\s*\[\[\s*([\w-]+)\s*\]\]")
_TABLE = re.compile(r"\s*\[\s*([\w-]+(?:\s*\.\s*[\w-]+)*)\s*\]\s*(#|$)")
_KEY = re.compile(r"""\s*+[{,]?\s*+["']?([\w-]++)["']?\s*+[=:]""")


def line_of(text: str, path: SettingPath) -> int | None:
    """Return the number of the line in which a setting begins.

    For a setting in an inline table, this is the line of the innermost key at the start of a line.
    """
    lines = _lines(text)
    prefixes = (tuple(path[:length]) for length in range(len(path), 0, -1))
    return next((lines[prefix] for prefix in prefixes if prefix in lines), None)


def _lines(text: str) -> dict[tuple[str | int, ...], int]:
    found: dict[tuple[str | int, ...], int] = {}
    counts: dict[str, int] = {}
    table: tuple[str | int, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if match := _ARRAY_TABLE.match(line):
            name = match.group(1)
            table = (name, counts.get(name, 0))
            counts[name] = counts.get(name, 0) + 1
        elif match := _TABLE.match(line):
            first, *rest = (name.strip() for name in match.group(1).split("."))
            # A subtable of an array of tables belongs to the last item.
            table = (first, counts[first] - 1, *rest) if first in counts else (first, *rest)
        elif match := _KEY.match(line):
            found.setdefault((*table, match.group(1)), number)
            continue
        else:
            continue
        found.setdefault(table[:1], number)
        found.setdefault(table, number)
    return found


#: Plurals for the items of an array.
_MANY = {"a string": "strings", "a number": "numbers", "a table": "tables"}


def describe_allowed(kind: Any, path: SettingPath) -> str | None:
    """Describe the allowed values of a setting, such as "a number from 1 to 10", from its type."""
    found = _type_at(kind, path)
    return None if found is None else _named(found)


def _type_at(kind: Any, path: SettingPath) -> inspect.Type | None:
    found: inspect.Type | None = inspect.type_info(kind)
    for step in path:
        found = _within(found, step)
    return found


def _within(kind: inspect.Type | None, step: str | int) -> inspect.Type | None:
    for choice in _choices(kind):
        choice = choice.type if isinstance(choice, inspect.Metadata) else choice
        if isinstance(choice, inspect.StructType):
            return next((each.type for each in choice.fields if each.encode_name == step), None)
        if isinstance(choice, inspect.ListType | inspect.VarTupleType):
            return choice.item_type
    return None


def _choices(kind: inspect.Type | None) -> Iterable[inspect.Type]:
    """Return the possible types of a value, except None, which no file can contain."""
    if isinstance(kind, inspect.UnionType):
        return [each for each in kind.types if not isinstance(each, inspect.NoneType)]
    return [] if kind is None else [kind]


def _named(kind: inspect.Type) -> str | None:
    names = [_name(choice) for choice in _choices(kind)]
    known = [name for name in names if name is not None]
    return " or ".join(known) if known and len(known) == len(names) else None


def _name(kind: inspect.Type) -> str | None:
    match kind:
        case inspect.Metadata():
            return str((kind.extra_json_schema or {}).get("description") or _name(kind.type))
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "a whole number" + _bounds(kind)
        case inspect.FloatType():
            return "a number" + _bounds(kind)
        case inspect.StrType() if kind.pattern is not None:
            return f"a string that matches {kind.pattern}"
        case inspect.StrType():
            return "a non-empty string" if kind.min_length else "a string"
        case inspect.EnumType():
            return "one of " + ", ".join(str(member.value) for member in kind.cls)
        case inspect.LiteralType():
            return "one of " + ", ".join(map(_shown, kind.values))
        case inspect.ListType() | inspect.VarTupleType():
            item = _named(kind.item_type)
            return "an array" + (f" of {_MANY.get(item, item)}" if item else "")
        case inspect.StructType() | inspect.DictType():
            return "a table"
    return None


def _shown(value: str | int | None) -> str:
    # A string that begins with a digit needs quotes in a file.
    return f'"{value}"' if isinstance(value, str) and value[:1].isdigit() else str(value)


def _bounds(kind: inspect.IntType | inspect.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" from {_number(kind.ge)} to {_number(kind.le)}"
    bounds = {" of at least ": kind.ge, " above ": kind.gt, " of at most ": kind.le}
    return "".join(text + _number(value) for text, value in bounds.items() if value is not None)


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


T = TypeVar("T", bound=Struct)

_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_MISSING = re.compile(r"missing required field `([^`]*)`")


class WrongSetting(ConfigurationError):
    """A setting is wrong. `Settings.locating` adds the place where it was set."""

    def __init__(self, path: SettingPath, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(path, reason)

    @property
    def name(self) -> str:
        """The name of the setting or, for an item, of the innermost table or array."""
        return next((step for step in reversed(self.path) if isinstance(step, str)), "")

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def convert_settings(settings: Mapping[str, Any], kind: type[T], *table: str | int) -> T:
    """Convert the decoded table at the path `table` to its type, or raise WrongSetting."""
    try:
        return msgspec.convert(settings, kind)
    except msgspec.ValidationError as error:
        raise _translated(str(error), kind, table) from None


def _translated(message: str, kind: type[Struct], table: SettingPath) -> WrongSetting:
    """Translate a msgspec error, such as "Expected `int` - at `$.publishers[0].topics`"."""
    reason, _, where = message.partition(" - at `$")
    path = [name or int(number) for name, number in _STEP.findall(where)]
    if match := _UNKNOWN.search(reason):
        reason = "there is no such setting" + _suggested(match.group(1), _type_at(kind, path))
        return WrongSetting((*table, *path, match.group(1)), reason)
    if match := _MISSING.search(reason):
        return WrongSetting((*table, *path, match.group(1)), "it is missing")
    allowed = describe_allowed(kind, path)
    # The message does not repeat the value, which may be a secret.
    reason = reason if allowed is None else f"it has to be {allowed}"
    return WrongSetting((*table, *path) or ("",), reason)


def _suggested(name: str, kind: inspect.Type | None) -> str:
    known = [
        field.encode_name
        for choice in _choices(kind)
        if isinstance(choice, inspect.StructType)
        for field in choice.fields
    ]
    return "".join(f"; did you mean {near}?" for near in get_close_matches(name, known, 1))


_BYTE = re.compile(r" \(byte (\d+)\)$")
_POSITION = re.compile(r" \(at (.+)\)$")


def _undecodable(path: str | Path, message: str, text: str) -> str:
    """Return a sentence for an error of the TOML or JSON decoder."""
    kind = "JSON" if str(path).endswith(".json") else "TOML"
    place = ""
    if match := _BYTE.search(message):
        before = text.encode()[: int(match[1])].decode(errors="ignore")
        place = f", line {before.count(chr(10)) + 1}"
    elif match := _POSITION.search(message):
        place = f", {match[1]}"
    reason = message[: match.start()] if match else message
    reason = reason.removeprefix("JSON is malformed: ")
    return f"cannot read {path}{place}: this is not valid {kind}: {reason[:1].lower()}{reason[1:]}"


class SettingsFile:
    """The settings in a file, and their lines.

    The file is JSON if its name ends in .json, otherwise TOML. It is read unless `text` is given.
    """

    def __init__(self, path: str | Path, text: str | None = None) -> None:
        self.path = path
        self._text = read_text(path) if text is None else text
        decode = msgspec.json.decode if str(path).endswith(".json") else msgspec.toml.decode
        try:
            self.settings: dict[str, Any] = decode(self._text, type=dict[str, Any])
        except RecursionError:
            raise ConfigurationError(f"cannot read {path}: it is nested too deeply") from None
        except ValueError as error:  # also raised for a number with too many digits
            raise ConfigurationError(_undecodable(path, str(error), self._text)) from None

    def located(self, wrong: WrongSetting) -> ConfigurationError:
        """Return the error as one sentence with the file, line, table, key and reason."""
        line = line_of(self._text, wrong.path)
        place = str(self.path) if line is None else f"{self.path}, line {line}"
        return _sentence(place, wrong, self.settings)


class Variables:
    """Settings in the environment: `RSNOTIFY_HUB_LOG_BYTES` sets `log_bytes` of `rsnotify hub`.

    An empty variable counts as unset. `types` are the types of the settings, by name.
    """

    def __init__(self, command: str, environ: Mapping[str, str], types: Mapping[str, Any]) -> None:
        self._prefix = f"{PREFIX}{command.upper()}_"
        self._environ = environ
        self._variables = {name: self._prefix + name.upper() for name in types}
        self.settings = {
            name: _decode_value(variable, text, types[name])
            for name, variable in self._variables.items()
            if (text := environ.get(variable))
        }

    def located(self, wrong: WrongSetting) -> ConfigurationError:
        place = f"the variable {self._variables[str(wrong.path[0])]}"
        return _sentence(place, wrong, self.settings)

    def misspelt(self, *options: str) -> dict[str, str]:
        """Return variables whose names are probably misspelled, each with the correct name.

        `options` are the names of options that are not settings. A variable that resembles no known
        name may belong to another command.
        """
        known = [*self._variables.values(), *(self._prefix + name.upper() for name in options)]
        return misspelt_variables(self._environ, known, self._prefix)


def _decode_value(variable: str, text: str, kind: Any) -> Any:
    """Decode a value: a string, number, boolean, or array in JSON or TOML."""
    for strict in (True, False):
        with suppress(msgspec.ValidationError):
            return msgspec.convert(text, kind, strict=strict)
    if not text.lstrip().startswith("["):
        return text
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(text)
    with suppress(msgspec.DecodeError):
        return msgspec.toml.decode(f"value = {text}", type=dict[str, Any])["value"]
    # The decoder's message might contain a secret.
    raise ConfigurationError(f"the variable {variable}: it is not a valid JSON or TOML array")


class Settings:
    """The settings of a command: options override variables, which override a file.

    `merged` contains all settings, structured as in a file.

    Args:
        file: The file, if any.
        options: Settings from options, in tables as in the file; None for an option that was not
            given.
        variables: Settings from environment variables, except variables of options.
        prefixes: The prefix of option names for each table, for example `{"websub": "callback_"}`.
    """

    def __init__(
        self,
        file: SettingsFile | None,
        options: Mapping[str, Any] | None = None,
        variables: Variables | None = None,
        prefixes: Mapping[str, str] | None = None,
    ) -> None:
        self.options = _given(options or {})
        self._file = file
        self._variables = variables
        self._prefixes = prefixes or {}
        below = {} if file is None else file.settings
        self.merged = _over(below | ({} if variables is None else variables.settings), self.options)

    @contextmanager
    def locating(self) -> Iterator[None]:
        """Convert a `WrongSetting` in the context to an error with the place of the setting."""
        try:
            yield
        except WrongSetting as wrong:
            raise self._located(wrong) from None

    def _located(self, wrong: WrongSetting) -> ConfigurationError:
        if (option := self._option(wrong)) is not None:
            return option
        if self._variables is not None and wrong.path[0] in self._variables.settings:
            return self._variables.located(wrong)
        if self._file is not None:
            return self._file.located(wrong)
        return _sentence("the settings", wrong, self.merged)

    def _option(self, wrong: WrongSetting) -> WrongOption | None:
        """Return an error for the option that sets the setting; None if no option does."""
        name, *within = wrong.path
        given = self.options.get(str(name))
        if isinstance(given, dict) and within and within[0] in given:
            name, *within = f"{self._prefixes.get(str(name), '')}{within[0]}", *within[1:]
        elif given is None or isinstance(given, dict):
            return None
        keys = [step for step in within if isinstance(step, str)]
        return WrongOption(str(name), ": ".join([*keys, wrong.reason]))


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _given(value) if isinstance(value, Mapping) else value
        for name, value in options.items()
        if value is not None
    }


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings `below`, overridden by `above`. Tables are merged."""
    merged = dict(below)
    for name, value in above.items():
        present = below.get(name, {})
        if not isinstance(value, dict):
            merged[name] = value
        elif isinstance(present, dict):  # otherwise keep the wrong value, to report it
            merged[name] = present | value
    return merged


def _sentence(place: str, wrong: WrongSetting, settings: Mapping[str, Any]) -> ConfigurationError:
    names = filter(None, _names(wrong.path, settings))
    return ConfigurationError(": ".join([place, *names, wrong.reason]))


def _names(path: SettingPath, settings: Any) -> list[str]:
    """Return the tables and key of a setting as in a file, for example `[[set]] maps`, `port`."""
    names: list[str] = []
    for step in path:
        if isinstance(step, str):
            settings = settings.get(step) if isinstance(settings, dict) else None
            names.append(f"[{step}]" if not names and isinstance(settings, dict) else step)
            continue
        settings = settings[step] if isinstance(settings, (list, tuple)) else None
        if isinstance(settings, dict):
            title = settings.get("name") or settings.get("url")
            # The query of a URL may also contain a password.
            shown = (
                without_credentials(title).partition("?")[0] if isinstance(title, str) else step + 1
            )
            names[-1] = f"[[{names[-1]}]] {shown}"
        else:
            names[-1] = f"item {step + 1} of {names[-1]}"
    return names


#: Minimum length of a token, because a shorter one could be guessed.
MIN_TOKEN = 16


def digest(token: str) -> str:
    return sha256(token.encode(errors="surrogateescape")).hexdigest()
