"""The description is valid OpenAPI, and says of every operation what the hub really answers."""

from __future__ import annotations

import re
from typing import Any

import pytest
from aiohttp import web
from jsonschema import Draft202012Validator

from rsnotify import __version__
from rsnotify_hub.admin.api import AdminApi, add_admin_routes
from rsnotify_hub.admin.openapi import describe_api
from rsnotify_hub.admin.operations import OPERATIONS
from rsnotify_hub.websub_subscription import subscription_id
from tests.hub.helpers import TOPIC, Callback, Client, fragment

DESCRIPTION = describe_api("1.2.3")


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method.upper(), path, described)
        for path, methods in DESCRIPTION["paths"].items()
        for method, described in methods.items()
    ]


def shape(name: str) -> dict[str, Any]:
    """The schema of a component, standing alone: nothing beyond it may be in an answer."""
    schemas = {
        key: {**schema, **({"additionalProperties": False} if "properties" in schema else {})}
        for key, schema in DESCRIPTION["components"]["schemas"].items()
    }
    return {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}


def check(value: Any, described: dict[str, Any], status: int) -> None:
    """Check an answer against what is described for its status."""
    content = described["responses"][str(status)].get("content")
    if content is None:
        assert value is None
        return
    name = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
    Draft202012Validator(shape(name)).validate(value)


def test_it_is_valid():
    from openapi_spec_validator import validate  # which takes long, in each worker

    validate(DESCRIPTION)
    assert DESCRIPTION["info"]["version"] == "1.2.3"


def test_its_operations_are_the_routes():
    def nobody(request: web.Request) -> AdminApi:
        raise AssertionError

    app = web.Application()
    add_admin_routes(app, nobody)
    routes = {
        (route.method, re.sub(r"\{(\w+):[^}]*\}+", r"{\1}", route.resource.canonical))
        for route in app.router.routes()
        if route.resource is not None
    }
    described = {(method, path) for method, path, _ in operations()}
    own = {(method, "/admin/openapi.json") for method in ("GET", "HEAD")}
    assert routes == described | own
    assert len({operation.name for operation in OPERATIONS}) == len(OPERATIONS)


def test_every_schema_field_and_parameter_is_described():
    schemas = DESCRIPTION["components"]["schemas"]
    for name, schema in schemas.items():
        assert schema["description"].endswith((".", ":")), name
        for field, described in schema.get("properties", {}).items():
            assert described.get("description"), (name, field)
    for _, path, described in operations():
        assert described["summary"]
        assert all(
            each.get("description") or each["in"] == "path" for each in described["parameters"]
        ), path


async def test_it_is_public(hub: Client):
    async with hub.session.get(hub.url + "admin/openapi.json") as response:
        assert response.content_type == "application/json"
        assert await response.json() == describe_api(__version__)


@pytest.mark.parametrize("failing", [False, True], ids=["idle", "in trouble"])
async def test_every_operation_answers_as_described(hub: Client, callback: Callback, failing: bool):
    await hub.subscribe(callback)
    if failing:
        callback.answers = [500] * 1000
    await hub.accepted(fragment(0, 1))
    await callback.delivery()
    id = subscription_id(TOPIC, callback.url)
    (topic,) = await hub.topics()
    await hub.listen()
    (connection,) = await hub.connections()
    path = f"subscriptions/{id}"
    await hub.admin_until(path, lambda found: found["attempts"])
    # What deletes comes last, and the subscription before its topic.
    ordered = sorted(operations(), key=lambda each: (each[0] == "DELETE", "topics" in each[1]))
    assert {method for method, _, _ in ordered} == {"GET", "POST", "DELETE"}
    for method, path, described in ordered:
        known = {"topics": topic["id"], "connections": connection["id"]}.get(path.split("/")[2], id)
        real = path.removeprefix("/admin/").replace("{id}", known)
        status, value = await hub.ask_admin(method, real)
        # There is no other node that could do its work.
        assert status in ((400,) if path.endswith("/drain") else (200, 204)), (path, value)
        check(value, described, status)
        status, value = await hub.ask_admin(method, real, params={"frobnicate": "1"})
        assert status == 400
        check(value, described, status)
