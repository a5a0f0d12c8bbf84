"""Modules that the documentation named up to version 0.2, under their old names.

Importing one raises a `DeprecationWarning` that says what to write instead.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

#: By the old name: the new module, and the package to import from. The names of packages that are
#: gone stand for themselves.
_MOVED = {
    "rsnotify.format.vocabulary": ("rsnotify.format.model", "rsnotify"),
    "rsnotify.runtime.mqtt": None,
    "rsnotify.runtime.mqtt.login": ("rsnotify.runtime.mqtt_broker", "rsnotify_subscriber"),
    "rsnotify.runtime.xmpp": None,
    "rsnotify.runtime.xmpp.login": ("rsnotify_xmpp.xmpp_service", "rsnotify_xmpp"),
    "rsnotify.validation": ("rsnotify_validation", "rsnotify_validation"),
}


class _MovedModules:
    """Finds and loads the old names; the last entry of `sys.meta_path`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _MOVED:
            return None
        return ModuleSpec(name, self, is_package=_MOVED[name] is None)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        moved = _MOVED[module.__name__]
        if moved is not None:
            text = f"{module.__name__} has moved: import its names from {moved[1]}"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            vars(module)["__getattr__"] = import_module(moved[0]).__getattribute__


def install() -> None:
    if not any(isinstance(finder, _MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(_MovedModules())
