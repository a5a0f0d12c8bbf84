"""A wrong setting, and what the decoder says of one in our own words."""

from __future__ import annotations

import re
from difflib import get_close_matches

from msgspec import Struct
from msgspec.structs import fields

from rsnotify.runtime.config.allowed_values import describe_allowed
from rsnotify.runtime.config.line_numbers import SettingPath

_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_MISSING = re.compile(r"missing required field `([^`]*)`")


class WrongSetting(Exception):
    """A setting is wrong.

    Args:
        path: The way to it.
        reason: What is wrong, and what to do.
    """

    def __init__(self, path: SettingPath, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(path, reason)

    @property
    def name(self) -> str:
        """What the setting is called."""
        return next((step for step in reversed(self.path) if isinstance(step, str)), "")


def wrong_setting_from(message: str, kind: type[Struct], table: SettingPath = ()) -> WrongSetting:
    """Understand what msgspec says, such as "Expected `int` - at `$.publishers[0].topics`".

    Args:
        message: What it says.
        kind: The settings that there are in the table that was read.
        table: The way to that table.
    """
    reason, _, where = message.partition(" - at `$")
    path = [name or int(number) for name, number in _STEP.findall(where)]
    if match := _UNKNOWN.search(reason):
        return _unknown(match.group(1), path, kind, table)
    if match := _MISSING.search(reason):
        return WrongSetting((*table, *path, match.group(1)), "it is missing")
    wanted = describe_allowed(kind, path)
    # What was found is not repeated: it may be a secret.
    reason = reason if wanted is None else f"it has to be {wanted}"
    return WrongSetting((*table, *path) or ("",), reason)


def _unknown(name: str, path: SettingPath, kind: type[Struct], table: SettingPath) -> WrongSetting:
    reason = "there is no such setting"
    if not path:
        near = get_close_matches(name, [field.encode_name for field in fields(kind)], 1)
        reason += "".join(f"; did you mean {one}?" for one in near)
    return WrongSetting((*table, *path, name), reason)
