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

#: The types of handler that a `Subscriber` accepts.
AnyHandler = Handler | TransactionalHandler | Callable[[Received], Awaitable[None]]


def find_handler(name: str, options: Mapping[str, Any], folder: Path) -> AnyHandler:
    """Return a handler by its name, `package.module:name`.

    A class, or a function that is not async, is called with the options and returns the handler;
    so each Source has one of its own. Modules may be in a folder beside Python's search path.
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
        # Code of the user may raise anything, and the user has to see it.
        raise ConfigurationError(f"{name} made no handler: {_message(error)}") from error
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
        sys.path.append(str(folder))  # last, so that nothing in it hides another module
    try:
        found: Any = importlib.import_module(module)
        for step in path.split("."):
            found = getattr(found, step)
    except (Exception, SystemExit) as error:
        # A module may raise anything when it is imported.
        raise ConfigurationError(f"cannot import {name}: {_message(error)}") from error
    return found


def _message(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
