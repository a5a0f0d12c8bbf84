"""Who may ask the admin API, and what is answered to a question that cannot be."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rsnotify_hub.admin.operations import OPERATIONS
from tests.hub.helpers import ADMIN, TOPIC, Callback, Client, RunHub, fragment

PUBLISHER = "a publisher's token of the tests"


@pytest.fixture
async def guarded(run_hub: RunHub) -> AsyncIterator[Client]:
    """A hub that asks for tokens."""
    publishers = [{"token": PUBLISHER, "topics": [TOPIC]}]
    async with run_hub(publishers=publishers) as hub:
        yield hub


async def test_every_operation_is_an_admins_only(guarded: Client):
    for operation in OPERATIONS:
        path = operation.path.lstrip("/").replace("{id}", "0123456789abcdef0123456789abcdef")
        for token, refused in ((None, 401), (PUBLISHER, 403), (ADMIN + "x", 403)):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            status, answer = await guarded.ask_admin(operation.method, path, headers=headers)
            assert (status, list(answer)) == (refused, ["error"]), operation.name
        status, _ = await guarded.ask_admin(operation.method, path)
        # There is no subscription, and no other node that could do the work.
        expected = 404 if "{id}" in operation.path else 400 if operation.name == "drain" else 200
        assert status == expected, operation.name


async def test_a_request_without_a_token_is_answered_with_a_challenge(guarded: Client):
    async with guarded.session.get(guarded.url + "admin/status") as response:
        assert response.headers["WWW-Authenticate"] == "Bearer"


async def test_an_invalid_query_is_answered_with_the_reason(hub: Client):
    for path, query, reason in (
        ("topics", {"limit": "0"}, "$.limit"),
        ("topics", {"limit": "1001"}, "$.limit"),
        ("topics", {"limit": "many"}, "$.limit"),
        ("topics", {"sort": "trouble"}, "trouble"),
        ("topics", {"limits": "5"}, "limits"),
        ("topics", {"after": "5"}, "after"),
        ("topics", {"after": "[" * 1200}, "after"),
        ("subscriptions", {"state": "lost"}, "lost"),
        ("status", {"limit": "5"}, "limit"),
    ):
        status, answer = await hub.ask_admin("GET", path, params=query)
        assert status == 400, query
        assert reason in answer["error"]


async def test_a_wrong_body_changes_nothing(hub: Client, callback: Callback):
    await hub.subscribe(callback)
    await hub.accepted(fragment(0, 1))
    await callback.delivery()
    (before,) = await hub.level()
    for body, reason in (
        (b"{", "invalid request"),
        (b'{"since": 5}', "$.since"),
        (b'{"until": "2026"}', "until"),
        (b'{"since": "yesterday"}', "since"),
        (b'{"since": "\xff"}', "invalid request"),
        (b" " * 5000, "longer than"),
        (b"[" * 4000, "invalid request"),
        (b'{"since":' + b"[" * 4000, "invalid request"),
        (b'{"until":' + b"[" * 4000, "invalid request"),
    ):
        status, answer = await hub.ask_admin(
            "POST", f"subscriptions/{before['id']}/redeliver", data=body
        )
        assert status == 400, body
        assert reason in answer["error"]
    assert await hub.subscription() == before
    assert callback.deliveries.empty()


async def test_an_unknown_operation_is_answered_in_json_too(hub: Client):
    for method, path, expected in (
        ("GET", "nothing", 404),
        ("GET", "subscriptions/x/suspend", 404),
        ("POST", "subscriptions/0123456789ABCDEF0123456789ABCDEF/suspend", 404),
        ("GET", "subscriptions/0123456789abcdef0123456789abcdef/suspend", 405),
        ("PUT", "topics", 405),
    ):
        status, answer = await hub.ask_admin(method, path)
        assert (status, list(answer)) == (expected, ["error"]), path


async def test_answers_are_not_cached(hub: Client):
    async with hub.session.get(hub.url + "admin/status") as response:
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
