"""Checking the arguments of a constructor, so that a wrong one fails there and not later."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import msgspec

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.config.wrong_setting import wrong_setting_from


def require(name: str, value: object, kinds: Any, what: str) -> None:
    """Refuse a value of another type; the message does not repeat it, as it may be a secret.

    Args:
        name: The name of the argument.
        value: Its value.
        kinds: The types it may have, as for `isinstance`.
        what: What to give, to end a sentence with.

    Raises:
        ConfigurationError: It has another type.
    """
    if not isinstance(value, kinds):
        raise ConfigurationError(f"{name} is of type {type(value).__name__}; give {what}")


def require_function(name: str, value: object) -> None:
    """Refuse what is neither None nor a function that may be called without `await`.

    Raises:
        ConfigurationError: It is something else.
    """
    if value is None:
        return
    if not callable(value):
        raise ConfigurationError(f"{name} is of type {type(value).__name__}; give a function")
    if inspect.iscoroutinefunction(value):
        raise ConfigurationError(f"{name} is an async function, and is not awaited; write it `def`")


def require_struct(name: str, value: msgspec.Struct, kind: type[msgspec.Struct]) -> None:
    """Refuse settings of another type, and settings with a field of a wrong type.

    Raises:
        ConfigurationError: The message names the field.
    """
    require(name, value, kind, f"a {kind.__name__}")
    try:
        msgspec.convert(msgspec.to_builtins(value), kind)
    except msgspec.ValidationError as error:
        wrong = wrong_setting_from(str(error), kind)
        raise ConfigurationError(f"{name}: {wrong.name}: {wrong.reason}") from None
    except TypeError as error:  # a field holds what no setting can be
        raise ConfigurationError(f"{name}: {error}") from None


def is_plain_function(value: object) -> bool:
    """Return whether this is a function or method that is certainly not an async one.

    A lambda may return what another, async function returns.
    """
    while isinstance(value, partial):
        value = value.func
    if inspect.iscoroutinefunction(value) or getattr(value, "__name__", "") == "<lambda>":
        return False
    return inspect.isroutine(value)
