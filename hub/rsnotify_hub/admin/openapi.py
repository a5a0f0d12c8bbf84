"""The OpenAPI 3.1 description of the admin API, made from the operations and their schemas.

The description of each field is taken from the `Args:` of its class.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import msgspec
from msgspec import Struct

from rsnotify_hub.admin import attempt_schemas, node_schemas, schemas, status_schemas
from rsnotify_hub.admin.operations import ID, OPERATIONS, PREFIX, Operation
from rsnotify_hub.admin.schemas import Problem

_REFERENCE = "#/components/schemas/{name}"
_ARGUMENT = re.compile(r"^    (\w+): (.+?)(?=^    \w|\Z)", re.DOTALL | re.MULTILINE)
_CLASSES = vars(node_schemas) | vars(schemas) | vars(status_schemas) | vars(attempt_schemas)
_PROBLEMS = {
    "400": "The request is invalid",
    "401": "A token is missing",
    "403": "The token is not an admin's",
    "404": "There is no such topic or subscription",
    "429": "Too many requests, or too many wrong tokens; see Retry-After",
    "503": "The hub cannot read or write its data now",
}


def describe(version: str) -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "rsnotify hub: admin API",
            "version": version,
            "description": "The state of the hub, and operations on topics and subscriptions.",
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
        paths.setdefault(PREFIX + operation.path, {})[operation.method.lower()] = _describe(
            operation
        )
    return paths


def _describe(operation: Operation) -> dict[str, Any]:
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
    """Return the schema of a parameter without null, which stands for an omitted one."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    return choices[0] if len(choices) == 1 else schema


def _success(operation: Operation) -> dict[str, Any]:
    if operation.answer is None:
        return {"204": {"description": "Done"}}
    about = _first_sentence(operation.answer)
    return {"200": {"description": about, "content": _json_content(operation.answer)}}


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
    _, schemas = msgspec.json.schema_components(named.values(), ref_template=_REFERENCE)
    queries = {operation.query.__name__ for operation in OPERATIONS}
    return {
        name: _with_descriptions(schema, _CLASSES[name])
        for name, schema in sorted(schemas.items())
        if name not in queries  # their fields are parameters
    }


def _with_descriptions(schema: dict[str, Any], schema_class: type) -> dict[str, Any]:
    schema["description"] = _first_sentence(schema_class)
    if "properties" in schema:
        for name, text in _field_descriptions(schema_class).items():
            schema["properties"][name]["description"] = text
    return schema


def _first_sentence(schema_class: type) -> str:
    first = inspect.cleandoc(schema_class.__doc__ or "").partition("\n\n")[0]
    return " ".join(first.split())


def _field_descriptions(schema_class: type[Struct]) -> dict[str, str]:
    """Return the texts of the `Args:` of a class, by the encoded names."""
    _, _, arguments = inspect.cleandoc(schema_class.__doc__ or "").partition("Args:\n")
    wire = dict(
        zip(schema_class.__struct_fields__, schema_class.__struct_encode_fields__, strict=True)
    )
    return {wire[name]: " ".join(text.split()) for name, text in _ARGUMENT.findall(arguments)}
