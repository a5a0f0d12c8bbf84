"""Finding the handler of a Source by its name, `package.module:name`."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from rsnotify.errors import ConfigurationError
from rsnotify_subscriber.handlers import Handler, Received, TransactionalHandler

#: What a `Subscriber` takes as its handler.
AnyHandler = Handler | TransactionalHandler | Callable[[Received], Awaitable[None]]


def find_handler(name: str, options: Mapping[str, Any], folder: Path) -> AnyHandler:
    """Import a handler, or make it.

    A class, or another function than an async one, is called with the options, and gives the
    handler; so each Source has one of its own.

    Args:
        name: The module and what is in it, as `package.module:name`.
        options: What the handler is made with.
        folder: Where modules are looked for, beside where Python looks for them.

    Raises:
        ConfigurationError: There is no such handler, or it cannot be made.
    """
    found = _imported(name, folder)
    if _is_handler(found):
        if options:
            raise ConfigurationError(f"{name} is a handler already, so it takes no options")
        return found  # type: ignore[no-any-return]
    if not callable(found):
        raise ConfigurationError(f"{name} is neither a handler nor what makes one")
    try:
        handler = found(**options)
    except Exception as error:
        # It is not ours: whatever it raises, the user has to hear of it.
        raise ConfigurationError(f"{name} made no handler: {_said(error)}") from error
    if not _is_handler(handler):
        raise ConfigurationError(f"{name} made no handler, but {type(handler).__name__}")
    return handler  # type: ignore[no-any-return]


def _is_handler(found: Any) -> bool:
    if isinstance(found, type):
        return False
    return isinstance(found, Handler | TransactionalHandler) or any(
        inspect.iscoroutinefunction(one) for one in (found, type(found).__call__)
    )


def _imported(name: str, folder: Path) -> Any:
    module, _, path = name.partition(":")
    if not module or not path:
        raise ConfigurationError(f"{name!r} names no handler; write package.module:name")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last, so that nothing there hides what Python has
    try:
        found: Any = importlib.import_module(module)
        for step in path.split("."):
            found = getattr(found, step)
    except (Exception, SystemExit) as error:
        # A module may raise anything when it is imported.
        raise ConfigurationError(f"cannot import {name}: {_said(error)}") from error
    return found


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
