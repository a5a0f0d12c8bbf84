"""Shows griffe the constructor of a msgspec Struct, and the constants of other classes."""

from __future__ import annotations

import importlib
import re
import types
from typing import Any, Union, get_args, get_origin, get_type_hints

import griffe
from msgspec import Struct

#: Annotations that a reader of the signature could not resolve: private names, and limits.
_UNREADABLE = re.compile(r"\b_[A-Z]|\bAnnotated\b")
_CONSTANT = re.compile(r"[A-Z_]+")


class StructConstructors(griffe.Extension):
    """An `__init__` for each Struct and TypedDict, with its own fields; and lists of constants."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Show the values of constants that are defaults."""
        for parameter in func.parameters:
            parameter.default = _constant(func.module, parameter.default)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Add the constructor of a Struct or TypedDict, or the constants of any other class."""
        bases = [str(base) for base in cls.bases]
        if "Struct" not in bases and "TypedDict" not in bases:
            _add_constants(cls)
            return
        keywords_only = cls.keywords.get("kw_only") is not None or "TypedDict" in bases
        default = "..." if str(cls.keywords.get("total")) == "False" else None
        kind = griffe.ParameterKind.positional_or_keyword
        fields = [
            griffe.Parameter(
                name,
                annotation=_annotation(cls, field),
                kind=griffe.ParameterKind.keyword_only if keywords_only else kind,
                default=_default(field) or default,
            )
            for name, field in cls.attributes.items()
            if field.annotation is not None
            and "property" not in field.labels
            and not name.startswith("_")
        ]
        first = griffe.Parameter("self", kind=kind)
        cls.set_member(
            "__init__", griffe.Function("__init__", parameters=griffe.Parameters(first, *fields))
        )


def _annotation(cls: griffe.Class, field: griffe.Attribute) -> Any:
    if not _UNREADABLE.search(str(field.annotation)):
        return field.annotation
    kind = _value(cls.module, cls.name)
    return _readable(get_type_hints(kind)[field.name]) if kind else field.annotation


def _value(module: griffe.Module, name: str) -> Any:
    """Return what has this name in a module; None if the module needs an extra."""
    try:
        return getattr(importlib.import_module(module.path), name)
    except ImportError:
        return None


def _readable(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        return " | ".join(map(_readable, get_args(hint)))
    if hint is types.NoneType:
        return "None"
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)


def _default(field: griffe.Attribute) -> Any:
    """Return the default of a field; `field(name=…)` has none."""
    value = field.value
    if isinstance(value, griffe.ExprCall) and str(value.function) == "field":
        keywords = {one.name: one.value for one in value.arguments}  # type: ignore[union-attr]
        factory = keywords.get("default_factory")
        return keywords.get("default") or (f"{factory}()" if factory else None)
    return _constant(field.module, value)


def _constant(module: griffe.Module, default: Any) -> Any:
    """Return the value of a default that is the name of a number, a text, or default options."""
    if default is None or not _CONSTANT.fullmatch(str(default)):
        return default
    value = _value(module, str(default))
    if isinstance(value, Struct) and value == type(value)():
        return f"{type(value).__name__}()"
    return repr(value) if isinstance(value, int | float | str) else default


def _add_constants(cls: griffe.Class) -> None:
    constants = [
        f"- `{name}`: `{str(one.value).strip(chr(39))}`"
        for name, one in cls.attributes.items()
        if name.isupper() and one.annotation is None and not name.startswith("_")
    ]
    if constants and cls.docstring is not None:
        cls.docstring.value += "\n\n" + "\n".join(constants)
