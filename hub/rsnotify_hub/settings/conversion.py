"""From layers of settings to one value; what is wrong is told with its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.config.line_numbers import SettingPath
from rsnotify.runtime.config.wrong_setting import WrongSetting, wrong_setting_from
from rsnotify_hub.settings.layers import Layer

T = TypeVar("T", bound=msgspec.Struct)


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
            raise wrong_setting_from(str(error), kind) from None


@contextmanager
def blaming(layers: Sequence[Layer]) -> Iterator[None]:
    """Tell what is wrong with the place where it stands.

    Raises:
        ConfigurationError: For each `WrongSetting`.
    """
    try:
        yield
    except WrongSetting as wrong:
        place = _place(layers, wrong.path)
        raise ConfigurationError(f"{place}: {wrong.name}: {wrong.reason}") from None


def _place(layers: Sequence[Layer], path: SettingPath) -> str:
    for layer in reversed(layers):
        if path[0] in layer.settings:
            return layer.place(path)
    return "the hub's configuration"
