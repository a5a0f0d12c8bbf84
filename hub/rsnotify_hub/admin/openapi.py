"""The OpenAPI 3.1 description of the admin API, made from the operations and their shapes.

The words for each field are those of the `Args:` of its class, so that they stand once.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import msgspec
from msgspec import Struct

from rsnotify_hub.admin import questions
from rsnotify_hub.admin import schemas as shapes
from rsnotify_hub.admin.operations import ID, OPERATIONS, PREFIX, Operation
from rsnotify_hub.admin.schemas import Problem

_REFERENCE = "#/components/schemas/{name}"
_ARGUMENT = re.compile(r"^    (\w+): (.+?)(?=^    \w|\Z)", re.DOTALL | re.MULTILINE)
_CLASSES = {**vars(shapes), **vars(questions)}
_PROBLEMS = {
    "400": "Something in the request cannot be used",
    "401": "A token is missing",
    "403": "The token is not an admin's",
    "404": "There is no such topic or subscription",
    "429": "Too much was asked, or too many tokens were wrong; see Retry-After",
    "503": "The hub cannot read or write its data now",
}


def describe(version: str) -> dict[str, Any]:
    """Return the description as plain values.

    Args:
        version: The version of the hub.
    """
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "rsnotify hub: admin API",
            "version": version,
            "description": "What the hub is doing, and what a person on call may do about it.",
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
        paths.setdefault(PREFIX + operation.path, {})[operation.method.lower()] = _one(operation)
    return paths


def _one(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [*_path_parameters(operation), *_query_parameters(operation.query)],
        "responses": {**_success(operation), **_problems(operation)},
    }
    if operation.body is not None:
        described["requestBody"] = {"required": False, "content": _json(operation.body)}
    return described


def _path_parameters(operation: Operation) -> list[dict[str, Any]]:
    if "{id}" not in operation.path:
        return []
    schema = {"type": "string", "pattern": f"^{ID}$"}
    return [{"name": "id", "in": "path", "required": True, "schema": schema}]


def _query_parameters(query: type[Struct]) -> list[dict[str, Any]]:
    _, components = msgspec.json.schema_components((query,), ref_template=_REFERENCE)
    words = _words(query)
    return [
        {"name": name, "in": "query", "description": words[name], "schema": _given(schema)}
        for name, schema in components[query.__name__]["properties"].items()
    ]


def _given(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter that is given: null is one that is not."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    return choices[0] if len(choices) == 1 else schema


def _success(operation: Operation) -> dict[str, Any]:
    if operation.answer is None:
        return {"204": {"description": "It is done"}}
    about = _first_sentence(operation.answer)
    return {"200": {"description": about, "content": _json(operation.answer)}}


def _problems(operation: Operation) -> dict[str, Any]:
    return {
        status: {"description": words, "content": _json(Problem)}
        for status, words in _PROBLEMS.items()
        if status != "404" or "{id}" in operation.path
    }


def _json(shape: type[Struct]) -> dict[str, Any]:
    reference = {"$ref": _REFERENCE.format(name=shape.__name__)}
    return {"application/json": {"schema": reference}}


def _schemas() -> dict[str, Any]:
    used: list[type[Struct] | None] = [Problem]
    for operation in OPERATIONS:
        used += [operation.query, operation.body, operation.answer]
    named = {shape.__name__: shape for shape in used if shape is not None}
    _, schemas = msgspec.json.schema_components(named.values(), ref_template=_REFERENCE)
    queries = {operation.query.__name__ for operation in OPERATIONS}
    return {
        name: _worded(schema, _CLASSES[name])
        for name, schema in sorted(schemas.items())
        if name not in queries  # what is in them are parameters
    }


def _worded(schema: dict[str, Any], shape: type) -> dict[str, Any]:
    """Put the words of a class into its schema."""
    schema["description"] = _first_sentence(shape)
    if "properties" in schema:
        for name, words in _words(shape).items():
            schema["properties"][name]["description"] = words
    return schema


def _first_sentence(shape: type) -> str:
    first = inspect.cleandoc(shape.__doc__ or "").partition("\n\n")[0]
    return " ".join(first.split())


def _words(shape: type[Struct]) -> dict[str, str]:
    """Return what a class's `Args:` say, by the names on the wire."""
    _, _, arguments = inspect.cleandoc(shape.__doc__ or "").partition("Args:\n")
    wire = dict(zip(shape.__struct_fields__, shape.__struct_encode_fields__, strict=True))
    return {wire[name]: " ".join(words.split()) for name, words in _ARGUMENT.findall(arguments)}
