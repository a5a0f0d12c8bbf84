"""Checks of constructor arguments, so that a wrong one fails there and not later."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import msgspec

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.settings import WrongSetting, convert_settings


def require(name: str, value: object, kinds: Any, what: str) -> None:
    """Refuse a value of a wrong type; the message does not contain it, since it may be a secret.

    Args:
        name: The name of the argument.
        value: Its value.
        kinds: The allowed types, as for `isinstance`.
        what: What to give instead, as the end of a sentence.
    """
    if not isinstance(value, kinds):
        raise ConfigurationError(f"{name} is of type {type(value).__name__}; give {what}")


def require_function(name: str, value: object) -> None:
    """Refuse a value that is neither None nor a function that is called without `await`."""
    if value is None:
        return
    if not callable(value):
        raise ConfigurationError(f"{name} is of type {type(value).__name__}; give a function")
    if inspect.iscoroutinefunction(value):
        raise ConfigurationError(f"{name} is an async function, and is not awaited; write it `def`")


def require_struct(name: str, value: msgspec.Struct, kind: type[msgspec.Struct]) -> None:
    """Refuse settings of a wrong type, and settings with a field of a wrong type."""
    require(name, value, kind, f"a {kind.__name__}")
    try:
        convert_settings(msgspec.to_builtins(value), kind)
    except WrongSetting as wrong:
        raise ConfigurationError(f"{name}: {wrong}") from None
    except TypeError as error:  # a field has a value of a type that no setting has
        raise ConfigurationError(f"{name}: {error}") from None


def is_plain_function(value: object) -> bool:
    """Return whether this is a function or method that certainly is not async.

    A lambda may return the coroutine of an async function.
    """
    while isinstance(value, partial):
        value = value.func
    if inspect.iscoroutinefunction(value) or getattr(value, "__name__", "") == "<lambda>":
        return False
    return inspect.isroutine(value)
