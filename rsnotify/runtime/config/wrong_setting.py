"""A wrong setting, and the decoder's errors translated into our words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.config.allowed_values import describe_allowed
from rsnotify.runtime.config.line_numbers import SettingPath

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
