"""WebSub subscriptions: verification of intent, leases, deliveries."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import pytest

from rsnotify.format.links import parse_links
from rsnotify.format.reader import read_document
from rsnotify_hub.config.loading import load_configuration
from rsnotify_hub.hub import open_hub
from tests.hub.conftest import RunHub
from tests.hub.helpers import (
    TOPIC,
    Callback,
    Client,
    Clock,
    LogWatch,
    at,
    callback_server,
    chain,
    fragment,
    seconds_of,
    up_to_date,
)
from tests.hub.storing import stored_subscriptions


async def test_a_subscription_is_verified_and_then_served(hub: Client, callback: Callback):
    assert await hub.form(mode="subscribe", topic=TOPIC, callback=callback.url) == (202, "")
    intent = await callback.intent()
    assert intent["hub.mode"] == "subscribe"
    assert intent["hub.topic"] == TOPIC
    assert intent["hub.lease_seconds"] == "864000"
    assert len(intent["hub.challenge"]) > 30
    await hub.subscriptions(bool)
    body = fragment(0, 1)
    assert await hub.publish(body, Content_Type="text/xml; charset=utf-8") == (202, "")
    headers, delivered = await callback.delivery()
    assert delivered == body
    assert headers["Content-Type"] == "text/xml; charset=utf-8"
    assert parse_links([headers["Link"]]) == [("self", TOPIC), ("hub", hub.url + "websub")]
    assert "X-Hub-Signature" not in headers


async def test_an_intent_that_is_not_confirmed_changes_nothing(
    hub: Client, callback: Callback, watch: LogWatch
):
    callback.confirms = False
    assert await hub.form(mode="subscribe", topic=TOPIC, callback=callback.url) == (202, "")
    await watch.line("did not confirm its subscribe")
    callback.confirms = True
    await hub.subscribe(callback)
    callback.confirms = False
    await hub.form(mode="unsubscribe", topic=TOPIC, callback=callback.url)
    await watch.line("did not confirm its unsubscribe")
    await hub.accepted(fragment(0, 1))
    assert (await callback.delivery())[1] == fragment(0, 1)
    assert len(await hub.subscriptions()) == 1


@pytest.mark.parametrize("echo", ["", "x{}", "{}x", "{0:.20}", "{0:x>100000}"])
async def test_only_the_challenge_itself_confirms(
    hub: Client, callback: Callback, watch: LogWatch, echo: str
):
    callback.echo = echo
    await hub.form(mode="subscribe", topic=TOPIC, callback=callback.url)
    await watch.line("did not confirm")


async def test_unsubscribing_ends_deliveries(hub: Client, callback: Callback):
    await hub.subscribe(callback)
    await hub.form(mode="unsubscribe", topic=TOPIC, callback=callback.url)
    intent = await callback.intent()
    assert intent["hub.mode"] == "unsubscribe"
    assert "hub.lease_seconds" not in intent
    await hub.subscriptions(lambda rows: not rows)
    await hub.accepted(fragment(0, 1))
    async with callback_server() as other:
        await hub.subscribe(other)
        await hub.accepted(fragment(1, 2))
        assert (await other.delivery())[1] == fragment(1, 2)
    assert callback.deliveries.empty()


async def test_a_lease_ends(hub: Client, callback: Callback, clock: Clock, watch: LogWatch):
    await hub.subscribe(callback, lease_seconds=60)
    clock.advance(seconds=59)
    await hub.accepted(fragment(0, 1))
    await callback.delivery()
    clock.advance(seconds=1)
    await hub.accepted(fragment(1, 2))
    await watch.line("its lease has ended")
    await hub.subscriptions(lambda rows: not rows)
    assert callback.deliveries.empty()


async def test_a_renewal_prolongs_the_lease_and_replaces_the_secret(
    hub: Client, callback: Callback, clock: Clock
):
    await hub.subscribe(callback, lease_seconds=60, secret="old")
    clock.advance(seconds=50)
    before = await hub.subscriptions()
    await hub.form(
        mode="subscribe", topic=TOPIC, callback=callback.url, lease_seconds=60, secret="new"
    )
    await callback.intent()
    await hub.subscriptions(lambda rows: rows != before)
    clock.advance(seconds=50)
    await hub.accepted(fragment(0, 1))
    headers, body = await callback.delivery()
    expected = hmac.new(b"new", body, hashlib.sha256).hexdigest()
    assert headers["X-Hub-Signature"] == f"sha256={expected}"


async def test_a_lease_is_ten_days_at_most(hub: Client, callback: Callback):
    await hub.form(mode="subscribe", topic=TOPIC, callback=callback.url, lease_seconds=10**9)
    assert (await callback.intent())["hub.lease_seconds"] == "864000"


async def test_a_callback_keeps_its_query_and_may_have_several_topics(
    hub: Client, callback: Callback
):
    callback.url += "?key=%2Fa&hub.mode=mine"
    for number, topic in enumerate([TOPIC, TOPIC + "2"], 1):
        await hub.form(mode="subscribe", topic=topic, callback=callback.url)
        assert (await callback.intent())["path"].startswith("/callback?key=%2Fa&hub.mode=mine&")
        await hub.subscriptions(lambda rows, number=number: len(rows) == number)
    await hub.accepted(fragment(0, 1), topic=TOPIC + "2")
    headers, _ = await callback.delivery()
    assert f"<{TOPIC}2>" in headers["Link"]


async def test_a_failed_delivery_is_retried_until_it_succeeds(hub: Client, callback: Callback):
    callback.answers = [500, 302, 404]
    callback.headers["Location"] = callback.url + "/elsewhere"
    await hub.subscribe(callback)
    await hub.accepted(fragment(0, 1))
    for _ in range(4):
        assert (await callback.delivery())[1] == fragment(0, 1)
    (row,) = await hub.subscriptions(up_to_date)
    assert row["state"] == "active"
    assert callback.deliveries.empty()


async def test_a_subscriber_that_is_behind_gets_several_fragments_merged(
    hub: Client, callback: Callback
):
    await hub.subscribe(callback, secret="s")
    callback.open.clear()
    await hub.accepted(fragment(0, 1))
    await callback.delivery()
    await hub.accepted(*chain(1, 6))
    await hub.accepted(fragment(9, 10))  # what came before it was lost
    callback.open.set()
    headers, body = await callback.delivery()
    merged = read_document(body)
    assert (merged.from_, merged.until) == (at(1), at(6))
    assert seconds_of(body) == [2, 3, 4, 5, 6]
    signature = hmac.new(b"s", body, hashlib.sha256).hexdigest()
    assert headers["X-Hub-Signature"] == f"sha256={signature}"
    assert (await callback.delivery())[1] == fragment(9, 10)


async def test_a_callback_that_never_answers_is_retried(run_hub: RunHub, callback: Callback):
    async with run_hub() as hub:
        await hub.subscribe(callback)
    callback.open.clear()
    async with run_hub(callback_seconds=0.2) as hub:
        await hub.accepted(fragment(0, 1))
        await callback.delivery()
        await callback.delivery()


async def test_a_topic_that_nobody_may_publish_is_denied(run_hub: RunHub, callback: Callback):
    publishers = [{"token": "x" * 16, "topics": ["https://source.example/data/"]}]
    async with run_hub(publishers=publishers) as hub:
        other = "https://elsewhere.example/"
        assert await hub.form(mode="subscribe", topic=other, callback=callback.url) == (202, "")
        intent = await callback.intent()
        assert intent["hub.mode"] == "denied"
        assert intent["hub.topic"] == other
        assert "does not serve" in intent["hub.reason"]
        await hub.subscribe(callback)


async def test_a_bad_form_is_refused_with_a_reason(hub: Client, callback: Callback):
    status, reason = await hub.form(mode="subscribe", topic=TOPIC, callback="nowhere")
    assert (status, reason) == (400, "hub.callback is not an absolute http or https URL\n")
    status, _ = await hub.form(mode="subscribe", topic=TOPIC, callback="x" * 100_000)
    assert status == 413


async def test_the_subscriptions_of_a_host_are_limited(run_hub: RunHub, callback: Callback):
    async with run_hub(subscriptions_per_host=2) as hub:
        for number in (1, 2):
            await hub.form(mode="subscribe", topic=TOPIC, callback=f"{callback.url}/{number}")
            await hub.subscriptions(lambda rows, number=number: len(rows) == number)
        status, _ = await hub.form(mode="subscribe", topic=TOPIC, callback=f"{callback.url}/3")
        assert status == 429
        renewed = await hub.form(mode="subscribe", topic=TOPIC, callback=f"{callback.url}/1")
        assert renewed == (202, "")


async def test_subscriptions_and_pending_deliveries_survive_a_restart(
    run_hub: RunHub, callback: Callback, watch: LogWatch
):
    async with run_hub() as hub:
        await hub.subscribe(callback)
        await hub.accepted(fragment(0, 1))
        await callback.delivery()
        await hub.subscriptions(up_to_date)
        callback.answers = [500] * 1000
        await hub.accepted(fragment(1, 2))
        await callback.delivery()
        await watch.line("answers 500")
    callback.answers = []
    while not callback.deliveries.empty():
        callback.deliveries.get_nowait()
    async with run_hub() as hub:
        assert (await callback.delivery())[1] == fragment(1, 2)
        await hub.subscriptions(up_to_date)
    assert callback.deliveries.empty()


async def test_a_failed_delivery_is_logged_with_fields_that_identify_it(
    hub: Client, callback: Callback, watch: LogWatch, caplog: pytest.LogCaptureFixture
):
    callback.answers = [503]
    await hub.subscribe(callback)
    await hub.accepted(fragment(0, 1))
    await callback.delivery()
    await watch.line("answers 503")
    (row,) = await hub.subscriptions()
    record = next(each for each in caplog.records if "answers 503" in each.getMessage())
    told = {name: vars(record)[name] for name in ("id", "topic", "host", "status", "failures")}
    assert told == {
        "id": row["id"], "topic": TOPIC, "host": "127.0.0.1", "status": 503, "failures": 1
    }  # fmt: skip


async def test_leases_end_without_any_traffic(
    run_hub: RunHub, callback: Callback, clock: Clock, tmp_path: Path
):
    async with run_hub() as client:
        await client.subscribe(callback, lease_seconds=60)
    configuration = load_configuration(None, data=str(tmp_path / "hub"))
    async with open_hub(
        configuration, public_url="http://localhost/", anonymous=True, clock=clock
    ) as hub:
        await hub.clean_up()
        assert len(await stored_subscriptions(hub.store)) == 1
        clock.advance(seconds=60)
        await hub.clean_up()
        assert await stored_subscriptions(hub.store) == []
