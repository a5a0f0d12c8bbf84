"""What a setting may be, in words, from its type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import inspect

from rsnotify.runtime.config.line_numbers import SettingPath

_TABLES = inspect.StructType | inspect.DictType
_ARRAYS = inspect.ListType | inspect.VarTupleType
#: What is not said of an array of these alone: "texts", and not "an array of a text".
_MANY = {"a text": "texts", "a number": "numbers", "a table": "tables"}


def describe_allowed(kind: Any, path: SettingPath) -> str | None:
    """Say what may stand somewhere.

    Args:
        kind: The type of all settings.
        path: The way from there to one.

    Returns:
        A noun with its article, such as "a number from 1 to 10"; None if it cannot be said.
    """
    found: inspect.Type | None = inspect.type_info(kind)
    for step in path:
        found = _within(found, step)
    return None if found is None else _named(found)


def _within(kind: inspect.Type | None, step: str | int) -> inspect.Type | None:
    for one in _choices(kind):
        one = one.type if isinstance(one, inspect.Metadata) else one
        if isinstance(one, inspect.StructType):
            return next((each.type for each in one.fields if each.encode_name == step), None)
        if isinstance(one, _ARRAYS):
            return one.item_type
    return None


def _choices(kind: inspect.Type | None) -> Iterable[inspect.Type]:
    """Give the types that a value may have; none is no value in a file of settings."""
    if isinstance(kind, inspect.UnionType):
        return [one for one in kind.types if not isinstance(one, inspect.NoneType)]
    return [] if kind is None else [kind]


def _named(kind: inspect.Type) -> str | None:
    names = [_name(one) for one in _choices(kind)]
    known = [name for name in names if name is not None]
    return " or ".join(known) if known and len(known) == len(names) else None


def _name(kind: inspect.Type) -> str | None:
    match kind:
        case inspect.Metadata():
            return str((kind.extra_json_schema or {}).get("description") or _name(kind.type))
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "a whole number" + _bounds(kind)
        case inspect.FloatType():
            return "a number" + _bounds(kind)
        case inspect.StrType():
            return _text(kind)
        case inspect.EnumType():
            return _one_of(str(one.value) for one in kind.cls)
        case inspect.LiteralType():
            return _one_of(map(_shown, kind.values))
    if isinstance(kind, _ARRAYS):
        item = _named(kind.item_type)
        return "an array" + (f" of {_MANY.get(item, item)}" if item else "")
    return "a table" if isinstance(kind, _TABLES) else None


def _one_of(values: Iterable[str]) -> str:
    return "one of " + ", ".join(values)


def _shown(value: str | int | None) -> str:
    # What looks like a number is none without its quotes.
    return f'"{value}"' if isinstance(value, str) and value.isdigit() else str(value)


def _text(kind: inspect.StrType) -> str:
    if kind.pattern is not None:
        return f"a text that matches {kind.pattern}"
    return "a text that is not empty" if kind.min_length else "a text"


def _bounds(kind: inspect.IntType | inspect.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" from {_number(kind.ge)} to {_number(kind.le)}"
    least = "" if kind.ge is None else f" of at least {_number(kind.ge)}"
    above = "" if kind.gt is None else f" above {_number(kind.gt)}"
    most = "" if kind.le is None else f" of at most {_number(kind.le)}"
    return least + above + most


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:g}"
