"""From layers of settings to one value; what is wrong is told with its place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TypeVar

import msgspec

from rsnotify.errors import ConfigurationError
from rsnotify_hub.settings.checks import WrongSetting
from rsnotify_hub.settings.layers import Layer
from rsnotify_hub.settings.lines import Path

T = TypeVar("T", bound=msgspec.Struct)

_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")


def convert(layers: Sequence[Layer], kind: type[T]) -> T:
    """Lay settings over each other, the last on top.

    Raises:
        ConfigurationError: A setting is unknown or wrong.
    """
    with blaming(layers):
        merged = {name: value for layer in layers for name, value in layer.settings.items()}
        try:
            return msgspec.convert(merged, kind)
        except msgspec.ValidationError as error:
            raise _wrong(str(error), kind) from None


@contextmanager
def blaming(layers: Sequence[Layer]) -> Iterator[None]:
    """Tell what is wrong with the place where it stands.

    Raises:
        ConfigurationError: For each `WrongSetting`.
    """
    try:
        yield
    except WrongSetting as wrong:
        name = next((step for step in reversed(wrong.path) if isinstance(step, str)), "")
        place = _place(layers, wrong.path)
        raise ConfigurationError(f"{place}: {name}: {wrong.reason}") from None


def _place(layers: Sequence[Layer], path: Path) -> str:
    for layer in reversed(layers):
        if path[0] in layer.settings:
            return layer.place(path)
    return "the hub's configuration"


def _wrong(message: str, kind: type[msgspec.Struct]) -> WrongSetting:
    """Understand what msgspec says, such as "Expected `int` - at `$.publishers[0].topics`"."""
    reason, _, where = message.partition(" - at `$")
    path = [name or int(number) for name, number in _STEP.findall(where)]
    if match := _UNKNOWN.search(reason):
        path.append(match.group(1))
        reason = "there is no such setting"
        if len(path) == 1:
            near = get_close_matches(match.group(1), kind.__struct_fields__, 1)
            reason += "".join(f"; did you mean {name}?" for name in near)
    return WrongSetting(path or ("",), reason)
