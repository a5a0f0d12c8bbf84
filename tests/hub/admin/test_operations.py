"""The admin API acts on subscriptions and topics."""

from __future__ import annotations

import logging

import pytest

from rsnotify_hub.admin.schema_conversion import topic_id
from rsnotify_hub.websub_subscription import subscription_id
from tests.hub.admin.admin_user import AdminUser
from tests.hub.helpers import (
    TOPIC,
    Callback,
    Client,
    LogWatch,
    chain,
    fragment,
    seconds_of,
    up_to_date,
)

NOWHERE = "0123456789abcdef0123456789abcdef"


@pytest.fixture
async def id(hub: Client, callback: Callback) -> str:
    """A subscription that is up to date after three fragments."""
    await hub.subscribe(callback)
    for second, body in enumerate(chain(3), 1):
        await hub.accepted(body)
        assert seconds_of((await callback.delivery())[1]) == [second]
    await hub.subscriptions(up_to_date)
    return subscription_id(TOPIC, callback.url)


async def test_changes_by_an_admin_are_logged_at_the_default_level(
    admin: AdminUser, id: str, watch: LogWatch
):
    watch.setLevel(logging.WARNING)
    await admin.get("subscriptions")
    await admin.request("POST", f"subscriptions/{NOWHERE}/suspend")
    await admin.request("DELETE", f"subscriptions/{id}")
    await watch.line("an admin at 127.0.0.1", "drop", id)
    assert sum("an admin at" in line for line in watch.lines) == 1


async def test_a_dropped_topic_is_deleted_with_its_subscriptions(
    hub: Client, admin: AdminUser, callback: Callback, id: str
):
    assert await admin.request("DELETE", f"topics/{topic_id(TOPIC)}") == (204, None)
    told = await callback.intent()
    assert (told["hub.mode"], "administrator" in told["hub.reason"]) == ("denied", True)
    assert (await admin.get("topics"))["topics"] == []
    assert (await admin.get("status"))["log_bytes"] == 0
    await hub.accepted(fragment(0, 1))  # the same again: it is not known any more
    (row,) = (await admin.get("topics"))["topics"]
    assert (row["kept"], row["subscriptions"]) == (1, 0)
