"""Checks of constructor arguments, so that errors are raised early."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.settings import WrongSetting, convert_settings


def require(name: str, value: object, kinds: Any, what: str) -> None:
    """Reject a value of the wrong type. The message omits the value, because it may be a secret.

    `kinds` are the allowed types, as for `isinstance`, and `what` completes the sentence "give …".
    """
    if not isinstance(value, kinds):
        raise ConfigurationError(f"{name} is of type {type(value).__name__}; give {what}")


def require_function(name: str, value: object) -> None:
    """Reject a value that is neither None nor a synchronous function."""
    if value is not None:
        require(name, value, Callable, "a function")
    if inspect.iscoroutinefunction(value):
        raise ConfigurationError(f"{name} is an async function; define it with `def` instead")


def require_struct(name: str, value: msgspec.Struct, kind: type[msgspec.Struct]) -> None:
    """Reject a struct of the wrong type, or with a field of the wrong type."""
    require(name, value, kind, f"a {kind.__name__}")
    try:
        convert_settings(msgspec.to_builtins(value), kind)
    except (WrongSetting, TypeError) as error:  # TypeError: not a type of any setting
        raise ConfigurationError(f"{name}: {error}") from None


def is_plain_function(value: object) -> bool:
    """Return whether a value is a function or method that is certainly not async.

    A lambda may return the coroutine of an async function.
    """
    while isinstance(value, partial):
        value = value.func
    if inspect.iscoroutinefunction(value) or getattr(value, "__name__", "") == "<lambda>":
        return False
    return inspect.isroutine(value)
