"""A wrong setting, and what the decoder says of one in our own words."""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches

from rsnotify.settings.lines import Path

_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")


class WrongSetting(Exception):
    """A setting is wrong.

    Args:
        path: The way to it.
        reason: What is wrong, and what to do.
    """

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(path, reason)

    @property
    def name(self) -> str:
        """What the setting is called."""
        return next((step for step in reversed(self.path) if isinstance(step, str)), "")


def understand(message: str, names: Collection[str], table: Path = ()) -> WrongSetting:
    """Understand what msgspec says, such as "Expected `int` - at `$.publishers[0].topics`".

    Args:
        message: What it says.
        names: The settings that there are in the table that was read.
        table: The way to that table.
    """
    reason, _, where = message.partition(" - at `$")
    path = [name or int(number) for name, number in _STEP.findall(where)]
    if match := _UNKNOWN.search(reason):
        path.append(match.group(1))
        reason = "there is no such setting"
        if len(path) == 1:
            near = get_close_matches(match.group(1), names, 1)
            reason += "".join(f"; did you mean {name}?" for name in near)
    return WrongSetting((*table, *path) or ("",), reason)
