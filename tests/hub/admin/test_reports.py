"""The admin API tells what the hub is doing."""

from __future__ import annotations

from rsnotify_hub.admin.views import topic_id
from rsnotify_hub.subscriptions import subscription_id
from tests.hub.admin.admin_user import AdminUser
from tests.hub.helpers import TOPIC, Callback, Client, Clock, RunHub, fragment

OTHER = "https://source.example/other"
START = "2026-06-01T00:00:00Z"


async def test_the_status_counts_topics_subscriptions_and_deliveries(
    hub: Client, admin: AdminUser, callback: Callback, clock: Clock
):
    await hub.subscribe(callback)
    listener = await hub.listen()
    await hub.accepted(fragment(0, 1))
    await hub.accepted(fragment(1, 2))
    await callback.delivery()
    clock.advance(seconds=5)
    status = await admin.until(
        "status", lambda status: status["deliveries"]["websub"]["delivered"] > 0
    )
    size = len(fragment(0, 1)) + len(fragment(1, 2))
    assert {name: status[name] for name in ("topics", "subscriptions", "websockets")} == {
        "topics": 1,
        "subscriptions": 1,
        "websockets": 1,
    }
    assert status["accepted"] == 2
    assert status["accepted_bytes"] == status["log_bytes"] == size
    assert status["deliveries"]["websocket"]["delivered"] == 2
    assert status["states"] == {"active": 1, "retrying": 0, "given-up": 0, "suspended": 0}
    assert (status["started"], status["now"]) == (START, "2026-06-01T00:00:05Z")
    assert status["admin"] is True
    await listener.close()


async def test_a_topic_is_listed_with_its_log_and_its_subscribers(
    hub: Client, admin: AdminUser, callback: Callback
):
    await hub.subscribe(callback)
    listener = await hub.listen()
    await hub.accepted(fragment(0, 1))
    await hub.accepted(fragment(1, 2, 3))
    answer = await admin.get("topics")
    assert answer == {
        "topics": [
            {
                "id": topic_id(TOPIC),
                "topic": TOPIC,
                "through": "2026-01-01T00:00:03Z",
                "received": START,
                "begins": "2026-01-01T00:00:00Z",
                "kept": 2,
                "bytes": len(fragment(0, 1)) + len(fragment(1, 2, 3)),
                "rate": 0.2,
                "websockets": 1,
                "event_streams": 0,
                "subscriptions": 1,
            }
        ],
        "total": 1,
        "next": None,
    }
    await listener.close()


async def test_topics_are_listed_in_pages_in_the_requested_order(
    hub: Client, admin: AdminUser, clock: Clock
):
    topics = [f"{OTHER}/{number}" for number in range(5)]
    for topic in reversed(topics):
        clock.advance(seconds=1)
        await hub.accepted(fragment(0, 1), topic=topic)
    found, after = [], ""
    while after is not None:
        page = await admin.get("topics", limit=2, after=after)
        assert page["total"] == 5
        found += [row["topic"] for row in page["topics"]]
        after = page["next"]
    assert found == topics
    newest = await admin.get("topics", sort="received", limit=3)
    assert [row["topic"] for row in newest["topics"]] == topics[:3]
    rest = await admin.get("topics", sort="received", after=newest["next"])
    assert [row["topic"] for row in rest["topics"]] == topics[3:]
    (one,) = (await admin.get("topics", topic=topics[3]))["topics"]
    assert one["topic"] == topics[3]
    assert (await admin.get("topics", topic=TOPIC))["topics"] == []


async def test_a_subscription_that_is_up_to_date_has_no_lag_and_no_failure(
    hub: Client, admin: AdminUser, callback: Callback
):
    await hub.subscribe(callback, lease_seconds=3600)
    await hub.accepted(fragment(0, 1))
    await callback.delivery()
    row = await admin.subscription(lambda row: row["lag_seconds"] == 0 and row["behind"] == 0)
    assert row == {
        "id": subscription_id(TOPIC, callback.url),
        "topic": TOPIC,
        "host": "127.0.0.1",
        "state": "active",
        "expires": "2026-06-01T01:00:00Z",
        "lag_seconds": 0.0,
        "behind": 0,
        "failures": 0,
        "retry_at": None,
        "last_failure": None,
    }


async def test_a_failing_subscription_is_listed_with_its_lag_and_the_reason(
    run_hub: RunHub, callback: Callback, clock: Clock
):
    async with run_hub(retry_seconds=3600, max_retry_seconds=3600) as hub:
        admin = AdminUser(hub)
        await hub.subscribe(callback)
        callback.answers, callback.words = [500], "why not"
        for second in range(3):
            await hub.accepted(fragment(second, second + 1))
        await callback.delivery()
        await admin.subscription(lambda row: row["failures"] == 1)
        clock.advance(seconds=90)
        row = await admin.subscription(lambda row: True, state="retrying")
        assert row["lag_seconds"] == 90.0
        assert row["behind"] == 3
        assert row["retry_at"] > START
        failure = {"at": START, "status": 500, "reason": "answers 500", "excerpt": "why not"}
        assert row["last_failure"] == failure
        assert (await admin.get("subscriptions", state="active"))["subscriptions"] == []
        assert (await admin.get("failures"))["failures"] == [
            {"id": row["id"], "topic": TOPIC, "host": "127.0.0.1", **failure}
        ]


async def test_failures_are_listed_newest_first(hub: Client, admin: AdminUser, callback: Callback):
    callback.answers = [500, 503, 404]
    await hub.subscribe(callback)
    await hub.accepted(fragment(0, 1))
    for _ in range(4):
        await callback.delivery()
    found = await admin.until("failures", lambda answer: len(answer["failures"]) == 3)
    assert [failure["status"] for failure in found["failures"]] == [404, 503, 500]


async def test_a_delivery_that_was_given_up_is_a_dead_letter(
    run_hub: RunHub, callback: Callback, clock: Clock
):
    async with run_hub(give_up_seconds=60) as hub:
        admin = AdminUser(hub)
        await hub.subscribe(callback)
        callback.open.clear()
        callback.answers = [500] * 1000
        await hub.accepted(fragment(0, 1))
        await callback.delivery()
        await hub.accepted(fragment(1, 2, 3))
        callback.open.set()
        await admin.subscription(lambda row: row["failures"] > 0)
        clock.advance(seconds=61)
        answer = await admin.until("dead-letters", lambda answer: answer["total"] == 1)
        (letter,) = answer["dead_letters"]
        assert letter["id"] == subscription_id(TOPIC, callback.url)
        assert letter["given_up_since"] == "2026-06-01T00:01:01Z"
        assert (letter["from"], letter["until"]) == ("2026-01-01T00:00:00Z", "2026-01-01T00:00:03Z")
        assert letter["fragments"] == 2
        assert letter["last_failure"]["status"] == 500
        assert (await admin.get("status"))["states"]["given-up"] == 1


async def test_the_backlog_is_counted_for_each_position_in_the_log(
    hub: Client, admin: AdminUser, callback: Callback
):
    urls = [f"{callback.url}/{number}" for number in range(3)]
    for number, url in enumerate(urls):
        callback.url = url
        await hub.form(mode="subscribe", topic=TOPIC, callback=url)
        await callback.intent()
        answer = await admin.until(
            "subscriptions", lambda answer, number=number: answer["total"] == number + 1
        )
        for row in answer["subscriptions"]:
            await admin.request("POST", f"subscriptions/{row['id']}/suspend")
        await hub.accepted(fragment(number, number + 1))
    rows = (await admin.get("subscriptions"))["subscriptions"]
    behind = {row["id"]: row["behind"] for row in rows}
    assert behind == {subscription_id(TOPIC, url): 3 - number for number, url in enumerate(urls)}
