"""Settings from a file, the environment and options: reading them, and reporting wrong ones.

A wrong setting is a `WrongSetting`, which names the file and line, the variable or the option, and
describes the allowed values from the type of the setting. Tokens are never kept: files and memory
hold only their digests.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Struct, inspect
from msgspec.structs import fields

from rsnotify.errors import ConfigurationError

_log = logging.getLogger("rsnotify")


def is_former(environ: Mapping[str, str], old: str, new: str) -> bool:
    """Return whether a variable is set by its former name, and not equally by the present one."""
    return bool(environ.get(old)) and environ.get(old) != environ.get(new)


def warn_of_former(old: str, new: str) -> None:
    """Warn of a variable with a former name, which several commands read."""
    if os.environ.get(new):
        text = "the variable %s is not used, since %s is set; remove it, or name its command in it"
    else:
        text = "the variable %s may be meant for another command: name it %s"
        text += "; the next release ignores the former name"
    _log.warning(text, old, new)


#: How often the files are checked, in seconds.
_CHECK_SECONDS = 0.5

_State = tuple[tuple[int, int, int] | None, ...]


def read_text(path: str | Path) -> str:
    """Read a file, or raise ConfigurationError."""
    try:
        return Path(path).read_text("utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"cannot read {path}: it is not UTF-8") from None


def decode_settings(path: str | Path, text: str) -> dict[str, Any]:
    """Decode a configuration file: JSON if its name ends in .json, else TOML."""
    decode = msgspec.json.decode if str(path).endswith(".json") else msgspec.toml.decode
    try:
        return decode(text, type=dict[str, Any])
    except RecursionError:
        raise ConfigurationError(f"cannot read {path}: it is nested too deeply") from None
    except ValueError as error:  # also raised for a number with too many digits
        raise ConfigurationError(f"cannot read {path}: {error}") from None


class FileWatch:
    """Notices that files have changed, by polling.

    Notifications of the system are less reliable: files are mounted into containers, and replaced
    by links.
    """

    def __init__(self, files: Sequence[str]) -> None:
        self.files = files
        # Unknown at first: a file may have changed since it was read.
        self._read: _State | None = None

    async def changed(self) -> None:
        """Wait until a file differs from its state when this returned last."""
        import asyncio  # which the help of commands does not need

        before: _State | None = None
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            now = _state(self.files)
            # A file that is still being written may be incomplete.
            if now != self._read and now == before:
                self._read = now
                return
            before = now

    def watch(self, files: Sequence[str]) -> None:
        if files != self.files:
            self.files, self._read = files, None


def _state(files: Iterable[str]) -> _State:
    return tuple(_state_of(Path(file)) for file in files)


def _state_of(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


#: The path to a setting: names of tables and keys, and positions in arrays.
SettingPath = Sequence[str | int]

_ARRAY_TABLE = re.compile(r"\s*\[\[\s*([\w-]+)\s*\]\]")
_TABLE = re.compile(r"\s*\[\s*([\w-]+(?:\s*\.\s*[\w-]+)*)\s*\]\s*(#|$)")
_KEY = re.compile(r"""\s*+[{,]?\s*+["']?([\w-]++)["']?\s*+[=:]""")


def line_of(text: str, path: SettingPath) -> int | None:
    """Return the number of the line where a setting begins.

    A setting in an inline table has the line of the innermost key that begins a line.
    """
    lines = _lines(text)
    prefixes = (tuple(path[:length]) for length in range(len(path), 0, -1))
    return next((lines[prefix] for prefix in prefixes if prefix in lines), None)


def place_of(file: object, text: str, path: SettingPath) -> str:
    """Return the file, and the line if it is known, where a setting begins."""
    line = line_of(text, path)
    return str(file) if line is None else f"{file}, line {line}"


class SettingsFile:
    """A .toml or .json file: its settings, and the places where they stand."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._text = read_text(path)
        self.settings = decode_settings(path, self._text)

    def place(self, path: SettingPath) -> str:
        return place_of(self._path, self._text, path)


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
            table = _table([name.strip() for name in match.group(1).split(".")], counts)
        elif match := _KEY.match(line):
            found.setdefault((*table, match.group(1)), number)
            continue
        else:
            continue
        found.setdefault(table[:1], number)
        found.setdefault(table, number)
    return found


def _table(names: Sequence[str], counts: Mapping[str, int]) -> tuple[str | int, ...]:
    """Return the path to a table; one in an array of tables belongs to the last of them."""
    first, *rest = names
    return (first, counts[first] - 1, *rest) if first in counts else tuple(names)


_TABLES = inspect.StructType | inspect.DictType
_ARRAYS = inspect.ListType | inspect.VarTupleType
#: The plural for items of an array.
_MANY = {"a text": "texts", "a number": "numbers", "a table": "tables"}


def describe_allowed(kind: Any, path: SettingPath) -> str | None:
    """Describe the allowed values of a setting, such as "a number from 1 to 10", from its type."""
    found: inspect.Type | None = inspect.type_info(kind)
    for step in path:
        found = _within(found, step)
    return None if found is None else _named(found)


def _within(kind: inspect.Type | None, step: str | int) -> inspect.Type | None:
    for choice in _choices(kind):
        choice = choice.type if isinstance(choice, inspect.Metadata) else choice
        if isinstance(choice, inspect.StructType):
            return next((each.type for each in choice.fields if each.encode_name == step), None)
        if isinstance(choice, _ARRAYS):
            return choice.item_type
    return None


def _choices(kind: inspect.Type | None) -> Iterable[inspect.Type]:
    """Return the types that a value may have, without None, which no file can contain."""
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
        case inspect.StrType():
            return _text(kind)
        case inspect.EnumType():
            return _one_of(str(member.value) for member in kind.cls)
        case inspect.LiteralType():
            return _one_of(map(_shown, kind.values))
    if isinstance(kind, _ARRAYS):
        item = _named(kind.item_type)
        return "an array" + (f" of {_MANY.get(item, item)}" if item else "")
    return "a table" if isinstance(kind, _TABLES) else None


def _one_of(values: Iterable[str]) -> str:
    return "one of " + ", ".join(values)


def _shown(value: str | int | None) -> str:
    # A text that looks like a number needs its quotes.
    return f'"{value}"' if isinstance(value, str) and value.isdigit() else str(value)


def _text(kind: inspect.StrType) -> str:
    if kind.pattern is not None:
        return f"a text that matches {kind.pattern}"
    return "a text that is not empty" if kind.min_length else "a text"


def _bounds(kind: inspect.IntType | inspect.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" from {_number(kind.ge)} to {_number(kind.le)}"
    least = "" if kind.ge is None else f" of at least {_number(kind.ge)}"
    above = "" if kind.gt is None else f" above {_number(kind.gt)}"
    most = "" if kind.le is None else f" of at most {_number(kind.le)}"
    return least + above + most


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


T = TypeVar("T", bound=Struct)

_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_MISSING = re.compile(r"missing required field `([^`]*)`")


class WrongSetting(ConfigurationError):
    """A setting is wrong. Its reader turns it into a message with the file and the line."""

    def __init__(self, path: SettingPath, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(path, reason)

    @property
    def name(self) -> str:
        """The name of the setting, or of the table or array that it is in."""
        return next((step for step in reversed(self.path) if isinstance(step, str)), "")

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def convert_settings(settings: Mapping[str, Any], kind: type[T], *table: str | int) -> T:
    """Convert a decoded table, whose path is `table`, to its type, or raise WrongSetting."""
    try:
        return msgspec.convert(settings, kind)
    except msgspec.ValidationError as error:
        raise _translated(str(error), kind, table) from None


def _translated(message: str, kind: type[Struct], table: SettingPath) -> WrongSetting:
    """Translate an error of msgspec, such as "Expected `int` - at `$.publishers[0].topics`"."""
    reason, _, where = message.partition(" - at `$")
    path = [name or int(number) for name, number in _STEP.findall(where)]
    if match := _UNKNOWN.search(reason):
        return _unknown(match.group(1), path, kind, table)
    if match := _MISSING.search(reason):
        return WrongSetting((*table, *path, match.group(1)), "it is missing")
    allowed = describe_allowed(kind, path)
    # The message does not repeat the value, which may be a secret.
    reason = reason if allowed is None else f"it has to be {allowed}"
    return WrongSetting((*table, *path) or ("",), reason)


def _unknown(name: str, path: SettingPath, kind: type[Struct], table: SettingPath) -> WrongSetting:
    reason = "there is no such setting"
    if not path:
        near = get_close_matches(name, [field.encode_name for field in fields(kind)], 1)
        reason += "".join(f"; did you mean {match}?" for match in near)
    return WrongSetting((*table, *path, name), reason)


#: A shorter token could be guessed.
MIN_TOKEN = 16

_NO_TOKEN = (
    "a token must not be in a file; write its SHA-256, as token_sha256 "
    "(`rsnotify hub token` makes both)"
)
_NO_SECRET = "a secret must not be here; put it into a file of its own, named by jwt_key_file"
_NO_PASSWORD = "a password must not be here; put it into a file of its own, named by {}"


def digest(token: str) -> str:
    return sha256(token.encode(errors="surrogateescape")).hexdigest()


def find_secrets(settings: dict[str, Any]) -> Iterator[tuple[SettingPath, str]]:
    """Yield the path of each secret that must not be in a settings file, and what to do instead."""
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


def with_digests(value: Any, place: str) -> Any:
    """Return a setting with each token in an array of tables replaced by its digest.

    `place` begins the sentence that refuses a token that is too short.
    """
    if not isinstance(value, (list, tuple)):
        return value
    return [_with_digest(each, place) if isinstance(each, dict) else each for each in value]


def _with_digest(table: dict[str, Any], place: str) -> dict[str, Any]:
    if "token" not in table:
        return table
    token = table["token"]
    if not isinstance(token, str) or len(token) < MIN_TOKEN:
        reason = f"a token is a text of {MIN_TOKEN} characters or more"
        raise ConfigurationError(f"{place}: token: {reason}")
    others = {name: value for name, value in table.items() if name != "token"}
    return {"token_sha256": digest(token), **others}


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


class FileLayer(SettingsFile):
    """A file that must not contain a secret."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        for where, instead in find_secrets(self.settings):
            raise ConfigurationError(f"{self.place(where)}: {where[-1]}: {instead}")


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
