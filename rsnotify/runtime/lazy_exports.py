"""Support for packages that import their exports on first use (PEP 562).

`rsnotify --help` imports the modules of all commands, and therefore their packages. If these
imported all their exports, the help would take more than a second of CPU time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

#: The extra of this distribution that installs each package.
_EXTRAS = {"psycopg": "postgresql", "sqlalchemy": "sqlalchemy"}


def lazy_exports(
    package: str, exports: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package, given its exported names by module."""
    modules = {name: module for module, names in exports.items() for name in names}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(modules[name]), name)
        except ModuleNotFoundError as error:
            if (extra := _EXTRAS.get(error.name or "")) is None:
                raise
            from rsnotify.runtime.extensions import missing_package

            raise ImportError(str(missing_package(name, extra)), name=error.name) from error
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return get, list_names
