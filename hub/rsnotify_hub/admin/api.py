"""The admin API over HTTP: authorization, request parsing, JSON answers, and OpenAPI 3.1.

The OpenAPI description is generated from the operations and their schemas. The description of a
field comes from the `Args:` of its class. This module also serves the dashboard: its static files,
and whether the user is an admin. The dashboard fetches all data from the public interfaces
`GET /topics` and `GET /ws` and, for an admin, from the admin API. It therefore needs no special
rights.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct

from rsnotify import __version__
from rsnotify.errors import StorageError
from rsnotify.runtime.serving import PAGE_HEADERS
from rsnotify_hub.access.authorization import Authorizer
from rsnotify_hub.admin import schemas
from rsnotify_hub.admin.operations import ID, OPERATIONS, PREFIX, Operation, OperationRequest
from rsnotify_hub.admin.schemas import Problem
from rsnotify_hub.admin.service import AdminService, UnknownId
from rsnotify_hub.refusals import RETRY_AFTER, Code, Refusal, answer_to
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.store import nodes

_REFERENCE = "#/components/schemas/{name}"
_ARGUMENT = re.compile(r"^    (\w+): (.+?)(?=^    \w|\Z)", re.DOTALL | re.MULTILINE)
_CLASSES = vars(nodes) | vars(schemas)
_PROBLEMS = {
    "400": "The request is invalid",
    "401": "A token is missing",
    "403": "The token is not an admin's",
    "404": "There is no such topic, subscription or connection",
    "429": "Too many requests, or too many wrong tokens; see Retry-After",
    "503": "The hub cannot read or write its data now",
}


def describe(version: str) -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "rsnotify hub: admin API",
            "version": version,
            "description": "The state of the hub, and operations on what it has and serves.",
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
    """Remove null from the schema of a parameter, because null stands for an omitted parameter."""
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
    _, components = msgspec.json.schema_components(named.values(), ref_template=_REFERENCE)
    queries = {operation.query.__name__ for operation in OPERATIONS}
    return {
        name: _with_descriptions(schema, _CLASSES[name])
        for name, schema in sorted(components.items())
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
    """Return the field descriptions from the `Args:` of a class and its bases, by encoded name."""
    texts: dict[str, str] = {}
    for each in reversed(schema_class.__mro__):
        _, _, arguments = inspect.cleandoc(each.__doc__ or "").partition("Args:\n")
        texts |= _ARGUMENT.findall(arguments)
    names = zip(schema_class.__struct_fields__, schema_class.__struct_encode_fields__, strict=True)
    return {wire: " ".join(texts[name].split()) for name, wire in names if name in texts}


log = logging.getLogger("rsnotify.hub.admin")

_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
#: Maximum size of a request body in bytes. A body contains only an instant.
_MAX_BODY_BYTES = 4096

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(eq=False, repr=False)
class AdminApi:
    service: AdminService
    authorizer: Authorizer
    statistics: Statistics

    async def answer(self, operation: Operation, request: web.Request) -> web.Response:
        try:
            self.authorizer.check_admin(request)
            answer = await operation.run(self.service, await _parse(operation, request))
        except Refusal as refusal:
            self.statistics.refused[refusal.code] += 1
            raise
        if operation.method != "GET":
            _log_change(operation, request)
        if answer is None:
            return web.Response(status=HTTPStatus.NO_CONTENT, headers=_HEADERS)
        return _json(answer)


def _log_change(operation: Operation, request: web.Request) -> None:
    """Log a change by an admin. Ids are safe to log because they reveal nothing about callbacks."""
    facts = {
        "operation": operation.name,
        "id": request.match_info.get("id", "this node"),
        "client": request.remote or "",
    }
    # Changes are rare and as important as failures, so log them at the default level.
    log.warning("an administrator at %(client)s did %(operation)s of %(id)s", facts, extra=facts)


async def _parse(operation: Operation, request: web.Request) -> OperationRequest:
    try:
        query = msgspec.convert(dict(request.query), operation.query, strict=False)
        body = None
        if operation.body is not None:
            body = msgspec.json.decode(await _body(request) or b"{}", type=operation.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(Code.BAD_REQUEST, f"the request cannot be used: {error}") from None
    return OperationRequest(request.match_info.get("id", ""), query, body)


async def _body(request: web.Request) -> bytes:
    body = await request.content.read(_MAX_BODY_BYTES + 1)
    while len(body) <= _MAX_BODY_BYTES and (more := await request.content.read(_MAX_BODY_BYTES)):
        body += more
    if len(body) > _MAX_BODY_BYTES:
        raise Refusal(Code.BAD_REQUEST, f"the body is longer than {_MAX_BODY_BYTES} bytes")
    return body


def _json(value: Struct, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value),
        status=status,
        content_type="application/json",
        headers={**_HEADERS, **(headers or {})},
    )


def add_admin_routes(app: web.Application, find: Callable[[web.Request], AdminApi]) -> None:
    """Add the routes of the admin API. `find` returns the API of the hub that a request is for."""
    admin = web.Application(middlewares=[_problems_as_json])
    for operation in OPERATIONS:
        path = operation.path.replace("{id}", f"{{id:{ID}}}")
        admin.router.add_route(operation.method, path, _handler(operation, find))
    admin.router.add_get("/openapi.json", _answer_description)
    app.add_subapp(PREFIX, admin)


def _handler(operation: Operation, find: Callable[[web.Request], AdminApi]) -> _Handler:
    async def handle(request: web.Request) -> web.Response:
        return await find(request).answer(operation, request)

    return handle


@cache
def _description() -> bytes:
    return msgspec.json.encode(describe(__version__))


async def _answer_description(request: web.Request) -> web.Response:
    return web.Response(body=_description(), content_type="application/json")


@web.middleware
async def _problems_as_json(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refusal as refusal:
        status, headers = answer_to(refusal, with_token="Authorization" in request.headers)
        return _json(Problem(refusal.reason), status, headers)
    except UnknownId as error:
        return _json(Problem(str(error)), HTTPStatus.NOT_FOUND)
    except StorageError as error:
        log.error("%s", error)
        problem = Problem("the hub cannot read or write its data now")
        return _json(problem, HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": RETRY_AFTER})
    except web.HTTPError as error:
        headers = {name: error.headers[name] for name in ("Allow",) if name in error.headers}
        return _json(Problem(error.reason.lower()), error.status, headers)


_STATIC = Path(__file__).with_name("static")
_CONTENT_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

#: Only the policy `fragments` of the pages may turn strings into markup.
_POLICY = PAGE_HEADERS["Content-Security-Policy"].replace(
    "trusted-types 'none'", "trusted-types fragments"
)


def add_dashboard(app: web.Application, *, is_admin: Callable[[web.Request], bool]) -> None:
    async def session(request: web.Request) -> web.Response:
        # Not 401, because "no admin" is a valid answer here, not an error.
        headers = {"Cache-Control": "no-store"}
        return web.json_response({"admin": is_admin(request)}, headers=headers)

    app.router.add_get("/", _file(_STATIC / "index.html", "text/html"))
    app.router.add_get("/dashboard/session", session)
    for suffix, content_type in _CONTENT_TYPES.items():
        for path in _STATIC.rglob("*" + suffix):
            name = path.relative_to(_STATIC).as_posix()
            app.router.add_get(f"/dashboard/{name}", _file(path, content_type))


def _file(path: Path, content_type: str) -> _Handler:
    headers = {
        **PAGE_HEADERS,
        "Content-Security-Policy": _POLICY,
        "Content-Type": f"{content_type}; charset=utf-8",
    }

    async def answer(request: web.Request) -> web.FileResponse:
        return web.FileResponse(path, headers=headers)

    return answer
