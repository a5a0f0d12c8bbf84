"""The admin API tells what the hub is doing."""

from __future__ import annotations

import msgspec

from rsnotify_hub.admin import text_tables
from rsnotify_hub.admin.schema_conversion import topic_id
from rsnotify_hub.admin.schemas import StatusInfo
from rsnotify_hub.websub_subscription import subscription_id
from tests.hub.helpers import TOPIC, Callback, Client, Clock, LogWatch, RunHub, chain, fragment
from tests.mosquitto import Mosquitto
from tests.ports import free_port
from tests.waiting import PATIENCE

OTHER = "https://source.example/other"
START = "2026-06-01T00:00:00Z"
#: The callback of the tests, `/callback`, as lists show it.
REDACTED = "http://{}/ca…"


async def test_the_status_counts_topics_subscriptions_and_deliveries(
    hub: Client, callback: Callback, clock: Clock
):
    await hub.subscribe(callback)
    await hub.listen()
    await hub.accepted(fragment(0, 1), fragment(1, 2))
    await callback.delivery()
    clock.advance(seconds=5)
    status = await hub.admin_until(
        "status", lambda status: status["deliveries"]["websub"]["delivered"] > 0
    )
    size = len(fragment(0, 1)) + len(fragment(1, 2))
    assert [status[name] for name in ("topics", "subscriptions", "websockets")] == [1, 1, 1]
    assert status["accepted"] == 2
    assert status["accepted_bytes"] == status["log_bytes"] == size
    assert status["deliveries"]["websocket"]["delivered"] == 2
    assert status["states"] == {"active": 1, "retrying": 0, "given-up": 0, "suspended": 0}
    assert (status["started"], status["now"]) == (START, "2026-06-01T00:00:05Z")
    assert status["admin"] is True


async def test_a_topic_is_listed_with_its_log_and_its_subscribers(hub: Client, callback: Callback):
    await hub.subscribe(callback)
    await hub.listen()
    await hub.accepted(fragment(0, 1), fragment(1, 2, 3))
    answer = await hub.admin("GET", "topics")
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
                "silent": False,
            }
        ],
        "total": 1,
        "next": None,
    }


async def test_topics_are_listed_in_pages_in_the_requested_order(hub: Client, clock: Clock):
    topics = [f"{OTHER}/{number}" for number in range(5)]
    for topic in reversed(topics):
        clock.advance(seconds=1)
        await hub.accepted(fragment(0, 1), topic=topic)
    pages = await hub.admin_pages("topics", limit=2)
    assert [page["total"] for page in pages] == [5, 5, 5]
    assert [row["topic"] for page in pages for row in page["topics"]] == topics
    newest = await hub.admin("GET", "topics", sort="received", limit=3)
    assert [row["topic"] for row in newest["topics"]] == topics[:3]
    rest = await hub.admin("GET", "topics", sort="received", after=newest["next"])
    assert [row["topic"] for row in rest["topics"]] == topics[3:]
    (one,) = await hub.topics(topic=topics[3])
    assert one["topic"] == topics[3]
    assert await hub.topics(topic=TOPIC) == []


async def test_a_subscription_that_is_up_to_date_has_no_lag_and_no_failure(
    hub: Client, callback: Callback
):
    await hub.subscribe(callback, lease_seconds=3600)
    await hub.accepted(fragment(0, 1))
    await callback.delivery()
    row = await hub.subscription(lambda row: row["lag_seconds"] == 0 and row["behind"] == 0)
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
        "callback": REDACTED.format(callback.url.split("/")[2]),
    }


async def test_a_failing_subscription_is_listed_with_its_lag_and_the_reason(
    run_hub: RunHub, callback: Callback, clock: Clock
):
    async with run_hub(retry_seconds=3600, max_retry_seconds=3600) as hub:
        await hub.subscribe(callback)
        callback.answers, callback.words = [500], "why not"
        await hub.accepted(*chain(3))
        await callback.delivery()
        await hub.subscription(lambda row: row["failures"] == 1)
        clock.advance(seconds=90)
        row = await hub.subscription(state="retrying")
        assert row["lag_seconds"] == 90.0
        assert row["behind"] == 3
        assert row["retry_at"] > START
        failure = {"at": START, "status": 500, "reason": "returned 500", "excerpt": "why not"}
        assert row["last_failure"] == failure
        assert await hub.subscriptions(state="active") == []
        assert (await hub.admin("GET", "failures"))["failures"] == [
            {
                "id": row["id"],
                "topic": TOPIC,
                "host": "127.0.0.1",
                "callback": REDACTED.format(callback.url.split("/")[2]),
                **failure,
            }
        ]


async def test_failures_are_listed_newest_first(hub: Client, callback: Callback):
    callback.answers = [500, 503, 404]
    await hub.subscribe(callback)
    await hub.accepted(fragment(0, 1))
    for _ in range(4):
        await callback.delivery()
    found = await hub.admin_until("failures", lambda answer: len(answer["failures"]) == 3)
    assert [failure["status"] for failure in found["failures"]] == [404, 503, 500]


async def test_a_delivery_that_was_given_up_is_a_dead_letter(
    run_hub: RunHub, callback: Callback, clock: Clock
):
    async with run_hub(give_up_seconds=60) as hub:
        await hub.subscribe(callback)
        callback.open.clear()
        callback.answers = [500] * 1000
        await hub.accepted(fragment(0, 1))
        await callback.delivery()
        await hub.accepted(fragment(1, 2, 3))
        callback.open.set()
        await hub.subscription(lambda row: row["failures"] > 0)
        clock.advance(seconds=61)
        answer = await hub.admin_until("dead-letters", lambda answer: answer["total"] == 1)
        (letter,) = answer["dead_letters"]
        assert letter["id"] == subscription_id(TOPIC, callback.url)
        assert letter["given_up_since"] == "2026-06-01T00:01:01Z"
        assert (letter["from"], letter["until"]) == ("2026-01-01T00:00:00Z", "2026-01-01T00:00:03Z")
        assert letter["fragments"] == 2
        assert letter["last_failure"]["status"] == 500
        assert (await hub.admin("GET", "status"))["states"]["given-up"] == 1


async def test_the_attempts_of_a_subscription_are_listed_with_their_payloads(
    hub: Client, callback: Callback, clock: Clock
):
    callback.url += "/secret-part?key=secret-key"
    callback.answers, callback.words = [500, 503], "no secret-key, no secret-part"
    await hub.subscribe(callback)
    await hub.accepted(fragment(0, 1))
    for _ in range(3):
        await callback.delivery()
    await hub.level()
    clock.advance(seconds=10)
    await hub.accepted(fragment(1, 2))
    path = f"subscriptions/{subscription_id(TOPIC, callback.url)}"
    found = await hub.admin_until(path, lambda found: len(found["attempts"]) == 4)
    assert found["callback"] == callback.url
    assert found["since"] == START
    assert found["subscription"] == (await hub.subscriptions())[0]
    outcomes = sorted((each["status"], each["delivered"]) for each in found["attempts"])
    assert outcomes == [(204, True), (204, True), (500, False), (503, False)]
    failed = next(each for each in found["attempts"] if each["status"] == 500)
    assert failed["excerpt"] == "no [...], no [...]"
    assert failed["seconds"] > 0
    for after, sent in ((0, fragment(0, 1)), (1, fragment(1, 2))):
        answer = await hub.admin("GET", f"{path}/payload", after=after, through=after + 1)
        assert answer == {"text": sent.decode(), "size": len(sent)}
    assert (await hub.ask_admin("GET", f"{path}/payload", params={"after": "7"}))[0] == 404


async def test_the_payload_of_merged_fragments_is_what_was_sent(hub: Client, callback: Callback):
    await hub.subscribe(callback)
    callback.open.clear()
    callback.answers = [500]
    await hub.accepted(*chain(4))
    callback.open.set()
    sent = [await callback.delivery() for _ in range(2)][1][1].decode()
    assert fragment(0, 1).decode() != sent
    path = f"subscriptions/{subscription_id(TOPIC, callback.url)}"
    await hub.admin_until(path, lambda found: len(found["attempts"]) == 2)
    answer = await hub.admin("GET", f"{path}/payload", through=4)
    assert answer == {"text": sent, "size": len(sent)}


async def test_a_payload_that_the_log_has_no_longer_is_not_shown(
    run_hub: RunHub, callback: Callback, clock: Clock
):
    async with run_hub(log_seconds=60) as hub:
        await hub.subscribe(callback)
        await hub.accepted(fragment(0, 1))
        await callback.delivery()
        clock.advance(seconds=90)
        await hub.accepted(fragment(1, 2))
        path = f"subscriptions/{subscription_id(TOPIC, callback.url)}"
        await hub.admin_until(path, lambda found: len(found["attempts"]) == 2)
        answer = await hub.admin("GET", f"{path}/payload", through=1)
        assert answer == {"text": None, "size": len(fragment(0, 1))}


async def test_a_limited_number_of_attempts_is_kept(
    run_hub: RunHub, callback: Callback, clock: Clock
):
    async with run_hub(max_retry_seconds=0.01) as hub:
        callback.answers = [500] * 15
        await hub.subscribe(callback)
        for body in chain(20):
            await hub.accepted(body)
            await hub.level()
            clock.advance(seconds=5)
        found = await hub.admin("GET", f"subscriptions/{subscription_id(TOPIC, callback.url)}")
        assert sum(each["delivered"] for each in found["attempts"]) == 5
        assert len(found["attempts"]) == 15
        newest = [each["through"] for each in found["attempts"] if each["delivered"]]
        assert newest == [19, 17, 15, 13, 11], "10 seconds apart"


async def test_subscriptions_are_searched_and_those_in_trouble_selected(
    run_hub: RunHub, callback: Callback
):
    async with run_hub(retry_seconds=3600) as hub:
        base = callback.url
        for name, status in (("/broken-one", 500), ("/sound-one", 204)):
            callback.url, callback.answers = base + name, [status]
            await hub.subscribe(callback, topic=OTHER + name)
            await hub.accepted(fragment(0, 1), topic=OTHER + name)
            await callback.delivery()
        await hub.admin_until("status", lambda status: status["states"]["retrying"] == 1)

        async def found(**query: str) -> list[str]:
            rows = await hub.subscriptions(**query)
            return [row["topic"].rpartition("/")[2] for row in rows]

        assert await found(trouble="true") == ["broken-one"]
        assert await found(search="SOUND") == ["sound-one"]
        assert await found(search=base.split("/")[2]) == ["broken-one", "sound-one"]
        assert await found(search=subscription_id(OTHER + "/broken-one", base + "/broken-one")[:8])
        assert await found(search="sound", trouble="true") == []
        topics = await hub.admin("GET", "topics", search="Broken")
        assert [row["topic"] for row in topics["topics"]] == [OTHER + "/broken-one"]


async def test_a_source_is_silent_when_nothing_comes_on_any_topic_of_its_host(
    hub: Client, clock: Clock
):
    await hub.accepted(fragment(0, 1))
    await hub.accepted(fragment(0, 1), topic=OTHER)
    clock.advance(minutes=10)
    await hub.accepted(fragment(0, 1), topic="https://elsewhere.example/")
    clock.advance(minutes=10)
    assert (await hub.admin("GET", "status"))["silent"] == 1
    silent = await hub.topics(silent="true")
    assert [(each["topic"], each["silent"]) for each in silent] == [(TOPIC, True), (OTHER, True)]
    await hub.accepted(fragment(1, until=2))
    assert (await hub.admin("GET", "status"))["silent"] == 0
    assert await hub.topics(silent="true") == []


async def test_pages_of_the_dashboard_are_not_counted(hub: Client):
    await hub.accepted(fragment(0, 1))
    socket = await hub.session.ws_connect(hub.url + "ws?dashboard")
    await socket.send_json({"type": "subscribe", "topic": TOPIC, "since": None})
    assert (await socket.receive_json(timeout=PATIENCE))["type"] == "subscribed"
    await hub.accepted(fragment(1, 2))
    assert (await socket.receive_str(timeout=PATIENCE)).startswith("<")
    status = await hub.admin("GET", "status")
    assert (status["websockets"], status["connections"] > 0) == (0, True)
    assert status["deliveries"]["websocket"]["delivered"] == 0
    assert status["deliveries"]["dashboard"]["delivered"] == 1
    (topic,) = await hub.topics()
    assert topic["websockets"] == 0
    await socket.close()


async def test_the_status_has_the_queues_the_disk_and_the_brokers(run_hub: RunHub, watch: LogWatch):
    port = free_port()
    async with run_hub(mqtt_url=f"mqtt://127.0.0.1:{port}") as hub:
        await watch.line("the MQTT broker is unavailable")
        status = await hub.admin("GET", "status")
        queues = [status[name] for name in ("live_queue", "delivery_queue", "commit_queue")]
        assert queues == [0, 0, 0]
        assert 0 < status["disk"]["free"] <= status["disk"]["size"]
        broker = status["brokers"]["mqtt"]
        assert (broker["connected"], broker["behind"]) == (False, 0)
        assert f"127.0.0.1:{port}" in broker["error"]
        assert broker["since"] == status["started"]
        printed = "\n".join(text_tables.status(msgspec.convert(status, StatusInfo)))
        assert "not connected since 2026-06-01T00:00:00" in printed
        assert broker["error"] in printed


async def test_a_broker_that_is_connected_again_has_no_error(
    run_hub: RunHub, mosquitto: Mosquitto, watch: LogWatch, clock: Clock
):
    async with run_hub(mqtt_url=mosquitto.url) as hub:
        await watch.line("connected to the MQTT broker")
        clock.advance(minutes=1)
        await mosquitto.stop()
        await watch.line("the MQTT broker is unavailable")
        broker = (await hub.admin("GET", "status"))["brokers"]["mqtt"]
        assert broker["error"]
        assert broker["since"] > (await hub.admin("GET", "status"))["started"]
        await mosquitto.start()
        status = await hub.admin_until(
            "status", lambda status: status["brokers"]["mqtt"]["connected"]
        )
        broker = status["brokers"]["mqtt"]
        assert (broker["since"], broker["error"]) == (None, None)
