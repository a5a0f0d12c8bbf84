"""The OpenAPI 3.1 description of the admin API, generated from the operations and their schemas.

The description of a field comes from the `Args:` of its class.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import msgspec
from msgspec import Struct

from rsnotify_hub.admin import schemas
from rsnotify_hub.admin.operations import ID, OPERATIONS, PREFIX, Operation
from rsnotify_hub.admin.schemas import Problem
from rsnotify_hub.store import nodes

_REFERENCE = "#/components/schemas/{name}"
_ARGUMENT = re.compile(r"^    (\w+): (.+?)(?=^    \w|\Z)", re.DOTALL | re.MULTILINE)
#: The classes with the schemas, by name.
_CLASSES = vars(nodes) | vars(schemas)
_PROBLEMS = {
    "400": "The request is invalid",
    "401": "The token is missing",
    "403": "The token is not an admin's",
    "404": "There is no such topic, subscription or connection",
    "429": "There were too many requests or wrong tokens; see Retry-After",
    "503": "The hub cannot read or write its data at the moment",
}


def describe_api(version: str) -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "rsnotify hub: admin API",
            "version": version,
            "description": "The state of the hub, and operations that change it.",
        },
        "security": [{"bearer": []}],
        "paths": _paths(),
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": _schemas(),
        },
    }


def _paths() -> dict[str, dict[str, Any]]:
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(PREFIX + operation.path, {})[operation.method.lower()] = _operation(
            operation
        )
    return paths


def _operation(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [*_path_parameters(operation), *_query_parameters(operation.query)],
        "responses": {**_success(operation), **_problems(operation)},
    }
    if operation.body is not None:
        described["requestBody"] = {"required": False, "content": _json_content(operation.body)}
    return described


def _path_parameters(operation: Operation) -> list[dict[str, Any]]:
    if "{id}" not in operation.path:
        return []
    schema = {"type": "string", "pattern": f"^{ID}$"}
    return [{"name": "id", "in": "path", "required": True, "schema": schema}]


def _query_parameters(query: type[Struct]) -> list[dict[str, Any]]:
    _, components = msgspec.json.schema_components((query,), ref_template=_REFERENCE)
    descriptions = _field_descriptions(query)
    return [
        {
            "name": name,
            "in": "query",
            "description": descriptions[name],
            "schema": _without_null(schema),
        }
        for name, schema in components[query.__name__]["properties"].items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove null from the schema of a parameter, because null means that it is omitted."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    return choices[0] if len(choices) == 1 else schema


def _success(operation: Operation) -> dict[str, Any]:
    if operation.answer is None:
        return {"204": {"description": "Done"}}
    description = _summary(operation.answer)
    return {"200": {"description": description, "content": _json_content(operation.answer)}}


def _problems(operation: Operation) -> dict[str, Any]:
    return {
        status: {"description": text, "content": _json_content(Problem)}
        for status, text in _PROBLEMS.items()
        if status != "404" or "{id}" in operation.path
    }


def _json_content(schema_class: type[Struct]) -> dict[str, Any]:
    reference = {"$ref": _REFERENCE.format(name=schema_class.__name__)}
    return {"application/json": {"schema": reference}}


def _schemas() -> dict[str, Any]:
    used: list[type[Struct] | None] = [Problem]
    for operation in OPERATIONS:
        used += [operation.query, operation.body, operation.answer]
    named = {
        schema_class.__name__: schema_class for schema_class in used if schema_class is not None
    }
    _, components = msgspec.json.schema_components(named.values(), ref_template=_REFERENCE)
    queries = {operation.query.__name__ for operation in OPERATIONS}
    return {
        name: _with_descriptions(schema, _CLASSES[name])
        for name, schema in sorted(components.items())
        if name not in queries  # their fields are documented as parameters
    }


def _with_descriptions(schema: dict[str, Any], schema_class: type) -> dict[str, Any]:
    schema["description"] = _summary(schema_class)
    if "properties" in schema:
        for name, text in _field_descriptions(schema_class).items():
            schema["properties"][name]["description"] = text
    return schema


def _summary(schema_class: type) -> str:
    first = inspect.cleandoc(schema_class.__doc__ or "").partition("\n\n")[0]
    return " ".join(first.split())


def _field_descriptions(schema_class: type[Struct]) -> dict[str, str]:
    """Return the descriptions in the `Args:` of a class and its bases, by encoded field name."""
    texts: dict[str, str] = {}
    for each in reversed(schema_class.__mro__):
        _, _, arguments = inspect.cleandoc(each.__doc__ or "").partition("Args:\n")
        texts |= _ARGUMENT.findall(arguments)
    names = zip(schema_class.__struct_fields__, schema_class.__struct_encode_fields__, strict=True)
    return {wire: " ".join(texts[name].split()) for name, wire in names if name in texts}
