"""The public API of each package, and the names of checks, held against a snapshot.

A difference is a change for users: describe it in CHANGELOG.md, and store the new snapshot with
`RSNOTIFY_WRITE_SNAPSHOT=1 make test ARGS="-k public_api"`.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Iterator
from enum import EnumType
from pathlib import Path

import pytest

from rsnotify_hub_check.run import ALL
from rsnotify_validation import RULES

PACKAGES = (
    "rsnotify",
    "rsnotify_gateway",
    "rsnotify_publisher",
    "rsnotify_relay",
    "rsnotify_subscriber",
    "rsnotify_validation",
    "rsnotify_xmpp",
)
SNAPSHOT = Path(__file__).with_name("public_api.txt")


def signature(value: object) -> str:
    try:
        text = str(inspect.signature(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    return text.replace("pathlib._local.", "pathlib.")  # since Python 3.13


def describe(name: str, value: object) -> Iterator[str]:
    """Yield the lines that describe an exported name: its signature, and its public members."""
    if isinstance(value, EnumType):
        yield f"{name}: {', '.join(value.__members__)}"
        return
    yield f"{name}{signature(value)}"
    if not inspect.isclass(value):
        return
    for member in sorted(vars(value)):
        if member.startswith("_"):
            continue
        attribute = inspect.getattr_static(value, member)
        if isinstance(attribute, property):
            yield f"{name}.{member}: property"
        elif isinstance(attribute, (classmethod, staticmethod)) or callable(attribute):
            yield f"{name}.{member}{signature(getattr(value, member))}"


def public_api() -> str:
    lines = []
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in sorted(module.__all__):
            lines += [f"{package}.{line}" for line in describe(name, getattr(module, name))]
    # Programs know results by these names.
    lines += [f"rsnotify validate: {rule}" for rule in RULES]
    lines += [f"rsnotify-hub-check: {check.name}" for check in ALL]
    return "\n".join(lines) + "\n"


def test_the_public_api_is_that_of_the_snapshot():
    if os.environ.get("RSNOTIFY_WRITE_SNAPSHOT"):
        SNAPSHOT.write_text(public_api())
    assert public_api() == SNAPSHOT.read_text()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_exported_name_has_documentation(package: str):
    module = importlib.import_module(package)
    missing = []
    for name in module.__all__:
        value = getattr(module, name)
        if not (inspect.isclass(value) or callable(value)):
            continue
        if not inspect.getdoc(value):
            missing.append(name)
        for member, attribute in vars(value).items() if inspect.isclass(value) else ():
            documented = inspect.isfunction(attribute) or isinstance(attribute, property)
            if not member.startswith("_") and documented and not inspect.getdoc(attribute):
                missing.append(f"{name}.{member}")
    assert missing == []
