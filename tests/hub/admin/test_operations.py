"""The admin API acts on subscriptions and topics."""

from __future__ import annotations

import logging

import pytest

from rsnotify_hub.admin.schema_conversion import topic_id
from rsnotify_hub.websub_subscription import subscription_id
from tests.hub.helpers import (
    TOPIC,
    Callback,
    Client,
    LogWatch,
    chain,
    fragment,
    seconds_of,
)

NOWHERE = "0123456789abcdef0123456789abcdef"


@pytest.fixture
async def id(hub: Client, callback: Callback) -> str:
    """A subscription that is up to date after three fragments."""
    await hub.subscribe(callback)
    for second, body in enumerate(chain(3), 1):
        await hub.accepted(body)
        assert seconds_of((await callback.delivery())[1]) == [second]
    await hub.level()
    return subscription_id(TOPIC, callback.url)


async def test_changes_by_an_admin_are_logged_at_the_default_level(
    hub: Client, id: str, watch: LogWatch
):
    watch.setLevel(logging.WARNING)
    await hub.admin("GET", "subscriptions")
    await hub.ask_admin("POST", f"subscriptions/{NOWHERE}/suspend")
    await hub.ask_admin("DELETE", f"subscriptions/{id}")
    await watch.line("an admin at 127.0.0.1", "drop", id)
    assert sum("an admin at" in line for line in watch.lines) == 1


async def test_a_dropped_topic_is_deleted_with_its_subscriptions(
    hub: Client, callback: Callback, id: str
):
    assert await hub.ask_admin("DELETE", f"topics/{topic_id(TOPIC)}") == (204, None)
    told = await callback.intent()
    assert (told["hub.mode"], "administrator" in told["hub.reason"]) == ("denied", True)
    assert await hub.topics() == []
    assert (await hub.admin("GET", "status"))["log_bytes"] == 0
    await hub.accepted(fragment(0, 1))  # the same again: it is not known any more
    (row,) = await hub.topics()
    assert (row["kept"], row["subscriptions"]) == (1, 0)
