"""The admin API and the dashboard over HTTP.

The dashboard needs no special rights. It reads the public `GET /topics` and `GET /ws`, and for an
admin, the admin API.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from pathlib import Path

import msgspec
from aiohttp import web
from msgspec import Struct

from rsnotify import __version__
from rsnotify.errors import StorageError
from rsnotify.runtime.serving import PAGE_HEADERS, page_files
from rsnotify_hub.access.authorization import Authorizer
from rsnotify_hub.admin.hub_operations import UnknownId
from rsnotify_hub.admin.openapi import describe_api
from rsnotify_hub.admin.operations import (
    ID,
    OPERATIONS,
    PREFIX,
    AdminOperations,
    Operation,
    OperationRequest,
)
from rsnotify_hub.admin.schemas import Problem
from rsnotify_hub.refusals import RETRY_AFTER, Code, Refusal, answer_to
from rsnotify_hub.statistics import Statistics

logger = logging.getLogger("rsnotify.hub.admin")

_HEADERS = {"Cache-Control": "no-store"}
#: Maximum size of a request body in bytes. Bodies contain at most an instant.
_MAX_BODY_BYTES = 4096

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(eq=False, repr=False)
class AdminApi:
    operations: AdminOperations
    authorizer: Authorizer
    statistics: Statistics

    async def answer(self, operation: Operation, request: web.Request) -> web.Response:
        try:
            self.authorizer.check_admin(request)
            answer = await operation.run(self.operations, await _parse(operation, request))
        except Refusal as refusal:
            self.statistics.refused[refusal.code] += 1
            raise
        if operation.method != "GET":
            _log_change(operation, request)
        if answer is None:
            return web.Response(status=HTTPStatus.NO_CONTENT, headers=_HEADERS)
        return _json(answer)


def _log_change(operation: Operation, request: web.Request) -> None:
    """Log a change by an admin. Ids are safe to log: they reveal nothing about callbacks."""
    facts = {
        "operation": operation.name,
        "id": request.match_info.get("id", "this node"),
        "client": request.remote or "",
    }
    # Changes are rare and as important as failures, so they are logged at the default level.
    logger.warning("an admin at %(client)s performed %(operation)s on %(id)s", facts, extra=facts)


async def _parse(operation: Operation, request: web.Request) -> OperationRequest:
    try:
        query = msgspec.convert(dict(request.query), operation.query, strict=False)
        body = None
        if operation.body is not None:
            body = msgspec.json.decode(await _body(request) or b"{}", type=operation.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(Code.BAD_REQUEST, f"invalid request: {error}") from None
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
    """Add the routes of the admin API. `find` returns the API of the hub that serves a request."""
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
    return msgspec.json.encode(describe_api(__version__))


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
        logger.error("%s", error)
        problem = Problem("the hub cannot read or write its data at the moment")
        return _json(problem, HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": RETRY_AFTER})
    except web.HTTPError as error:
        headers = {name: error.headers[name] for name in ("Allow",) if name in error.headers}
        return _json(Problem(error.reason.lower()), error.status, headers)


_STATIC = Path(__file__).with_name("static")
_DASHBOARD_HEADERS = {
    **PAGE_HEADERS,
    # Only the pages' Trusted Types policy `fragments` may turn strings into markup.
    "Content-Security-Policy": PAGE_HEADERS["Content-Security-Policy"].replace(
        "trusted-types 'none'", "trusted-types fragments"
    ),
}


def add_dashboard_routes(app: web.Application, find: Callable[[web.Request], AdminApi]) -> None:
    async def session(request: web.Request) -> web.Response:
        # Not 401, because it is not an error if the user is not an admin.
        is_admin = find(request).authorizer.is_admin(request)
        return web.json_response({"admin": is_admin}, headers={"Cache-Control": "no-store"})

    app.router.add_get("/dashboard/session", session)
    app.add_routes(page_files(_STATIC, "/dashboard/", _DASHBOARD_HEADERS))
