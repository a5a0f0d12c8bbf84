"""Shows griffe the constructor of a msgspec Struct, and the constants of other classes."""

from __future__ import annotations

from typing import Any

import griffe


class StructConstructors(griffe.Extension):
    """An `__init__` for each Struct, with its own fields; and a list of constants."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Add the constructor of a Struct, or the constants of any other class."""
        if "Struct" not in [str(base) for base in cls.bases]:
            _add_constants(cls)
            return
        keywords_only = cls.keywords.get("kw_only") is not None
        kind = griffe.ParameterKind.positional_or_keyword
        fields = [
            griffe.Parameter(
                name,
                annotation=field.annotation,
                kind=griffe.ParameterKind.keyword_only if keywords_only else kind,
                default=_default(field),
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


def _default(field: griffe.Attribute) -> Any:
    """Return the default of a field; `field(name=…)` has none."""
    value = field.value
    if isinstance(value, griffe.ExprCall) and str(value.function) == "field":
        keywords = {one.name: one.value for one in value.arguments}  # type: ignore[union-attr]
        factory = keywords.get("default_factory")
        return keywords.get("default") or (f"{factory}()" if factory else None)
    return value


def _add_constants(cls: griffe.Class) -> None:
    constants = [
        f"- `{name}`: `{str(one.value).strip(chr(39))}`"
        for name, one in cls.attributes.items()
        if name.isupper() and one.annotation is None and not name.startswith("_")
    ]
    if constants and cls.docstring is not None:
        cls.docstring.value += "\n\n" + "\n".join(constants)
