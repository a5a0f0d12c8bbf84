"""Descriptions of the allowed values of a setting, from its type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import inspect

from rsnotify.runtime.config.line_numbers import SettingPath

_TABLES = inspect.StructType | inspect.DictType
_ARRAYS = inspect.ListType | inspect.VarTupleType
#: The plural for items of an array.
_MANY = {"a text": "texts", "a number": "numbers", "a table": "tables"}


def describe_allowed(kind: Any, path: SettingPath) -> str | None:
    """Describe the allowed values of a setting, such as "a number from 1 to 10", from its type."""
    found: inspect.Type | None = inspect.type_info(kind)
    for step in path:
        found = _within(found, step)
    return None if found is None else _named(found)


def _within(kind: inspect.Type | None, step: str | int) -> inspect.Type | None:
    for choice in _choices(kind):
        choice = choice.type if isinstance(choice, inspect.Metadata) else choice
        if isinstance(choice, inspect.StructType):
            return next((each.type for each in choice.fields if each.encode_name == step), None)
        if isinstance(choice, _ARRAYS):
            return choice.item_type
    return None


def _choices(kind: inspect.Type | None) -> Iterable[inspect.Type]:
    """Return the types that a value may have, without None, which no file can contain."""
    if isinstance(kind, inspect.UnionType):
        return [each for each in kind.types if not isinstance(each, inspect.NoneType)]
    return [] if kind is None else [kind]


def _named(kind: inspect.Type) -> str | None:
    names = [_name(choice) for choice in _choices(kind)]
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
            return _one_of(str(member.value) for member in kind.cls)
        case inspect.LiteralType():
            return _one_of(map(_shown, kind.values))
    if isinstance(kind, _ARRAYS):
        item = _named(kind.item_type)
        return "an array" + (f" of {_MANY.get(item, item)}" if item else "")
    return "a table" if isinstance(kind, _TABLES) else None


def _one_of(values: Iterable[str]) -> str:
    return "one of " + ", ".join(values)


def _shown(value: str | int | None) -> str:
    # A text that looks like a number needs its quotes.
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
