"""Shows griffe the constructor of a msgspec Struct, whose parameters are its annotated fields."""

from __future__ import annotations

from typing import Any

import griffe


class StructConstructors(griffe.Extension):
    """An `__init__` for each Struct, with its own fields."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Add the constructor of a Struct."""
        if "Struct" not in [str(base) for base in cls.bases]:
            return
        keywords_only = cls.keywords.get("kw_only") is not None
        kind = griffe.ParameterKind.positional_or_keyword
        fields = [
            griffe.Parameter(
                name,
                annotation=field.annotation,
                kind=griffe.ParameterKind.keyword_only if keywords_only else kind,
                default=field.value,
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
