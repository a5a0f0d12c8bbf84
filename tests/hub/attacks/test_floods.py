"""Floods of requests: the hub cannot be used against others, and no client exhausts it."""

from __future__ import annotations

import asyncio
import time

import pytest

from rsnotify_hub.websub.intent_requests import QUICK_INTENTS
from rsnotify_hub.websub.request_scheduler import QUICK_SECONDS
from rsnotify_hub.websub.verification import MAX_PENDING_SHARE
from tests.hub.attacks.helpers import Names, confirm, hang, obliging, raw_server
from tests.hub.helpers import TOPIC, Callback, Client, LogWatch, RunHub
from tests.waiting import PATIENCE

#: A hub behind a proxy, which names the clients.
PROXY = {
    "trusted_proxies": ["127.0.0.1"],
    "publishers": [{"token": "a token of this test", "topics": ["https://source.example/"]}],
}


ATTACKER = {"X-Forwarded-For": "203.0.113.9"}


async def flood(hub: Client, forms: list[dict[str, str]], **headers: str) -> list[int]:
    """Send forms at the same time, and return the statuses."""

    answers = await asyncio.gather(*(hub.form(headers=headers, **form) for form in forms))
    return [status for status, _ in answers]


def subscribe(callback: str, number: int = 0) -> dict[str, str]:
    return {"mode": "subscribe", "topic": f"{TOPIC}?{number}", "callback": callback}


async def test_one_host_receives_few_connections_at_a_time(hub: Client):
    """An attacker names many URLs of a victim: the number of requests to it is bounded."""

    async def until_disconnected(head: bytes, reader: asyncio.StreamReader, writer: object) -> None:
        await reader.read()

    async with raw_server(until_disconnected) as victim:
        forms = [subscribe(victim.url(f"/{number}"), number) for number in range(400)]
        begin = time.monotonic()
        statuses = await flood(hub, forms)
        assert set(statuses) <= {202, 429}
        # Those in the quick lane make room for others after a second.
        seconds = 1 + (time.monotonic() - begin) // QUICK_SECONDS
        assert statuses.count(202) <= MAX_PENDING_SHARE + QUICK_INTENTS.per_host * seconds
        await victim.until(lambda: victim.connections > 0)
        assert victim.at_once <= 50


@pytest.mark.parametrize("spelling", ["localhost", "LocalHost."])
async def test_all_spellings_of_a_host_share_one_limit(
    run_hub: RunHub, spelling: str, callback: Callback
):
    async with run_hub(subscriptions_per_host=2) as hub:
        url = callback.url.replace("127.0.0.1", "localhost")
        for number in range(2):
            callback.url = f"{url}?{number}"
            await hub.subscribe(callback, topic=f"{TOPIC}?{number}")
        callback.url = f"{url.replace('localhost', spelling)}?2"
        status, reason = await hub.form(mode="subscribe", topic=TOPIC, callback=callback.url)
        assert (status, "callback's host" in reason) == (429, True)


async def test_one_client_cannot_exhaust_the_limit_for_all(run_hub: RunHub):
    async with raw_server(confirm) as callbacks, run_hub(subscription_rate=5, **PROXY) as hub:
        forms = [subscribe(callbacks.url(f"/{number}"), number) for number in range(150)]
        begin = time.monotonic()
        statuses = await flood(hub, forms, **ATTACKER)
        assert 0 < statuses.count(202) <= 50 + 5 * (time.monotonic() - begin)
        assert statuses.count(429) == 150 - statuses.count(202)
        assert await flood(hub, forms[:1], **{"X-Forwarded-For": "203.0.113.10"}) == [202]


async def test_pings_of_open_topics_are_limited_too(run_hub: RunHub):
    """A small ping may cause a large fetch, so it could amplify an attack."""
    async with (
        raw_server(obliging) as source,
        run_hub(open_topics=[source.url("/open/")], subscription_rate=5, **PROXY) as hub,
    ):
        pings = [{"mode": "publish", "url": source.url(f"/open/{n}")} for n in range(150)]
        begin = time.monotonic()
        statuses = await flood(hub, pings, **ATTACKER)
        most = 50 + 5 * (time.monotonic() - begin)
        assert statuses.count(429) >= 150 - most
        assert source.connections <= most


async def test_a_denial_reveals_nothing_of_a_network(run_hub: RunHub, watch: LogWatch):
    """The answer is the same 202, at once, whatever the callback's host answers."""
    publishers = [{"token": "x" * 16, "topics": ["https://source.example/"]}]
    async with (
        raw_server(obliging) as there,
        run_hub(publishers=publishers, allow_private_addresses=False) as hub,
    ):
        answers = set()
        for url in (there.url(), "http://127.0.0.1:1/", "http://[::1]:1/", "http://none.test/"):
            form = {"mode": "subscribe", "topic": "https://not.served.test/", "callback": url}
            data = {"hub." + name: value for name, value in form.items()}
            async with hub.session.post(hub.url + "websub", data=data) as response:
                answers.add((response.status, await response.text(), len(response.headers)))
        assert len(answers) == 1
        assert there.connections == 0


async def test_topics_that_hang_at_one_host_do_not_delay_others(
    run_hub: RunHub, names: Names, callback: Callback
):
    """No fetch ends by itself here, so another host's topic is fetched only because of fairness."""
    names.addresses["evil.test"] = ["127.0.0.1"]
    async with run_hub(callback_seconds=1000) as hub, raw_server(hang) as source:
        evil = f"http://evil.test:{source.port}"
        pings = [{"mode": "publish", "url": f"{evil}/{number}"} for number in range(64)]
        flooding = asyncio.create_task(flood(hub, pings))
        await source.until(lambda: len(source.requests) > 1)
        callback.document = b"content"
        callback.headers = {"Content-Type": "text/plain"}
        async with asyncio.timeout(PATIENCE):
            assert await hub.form(mode="publish", url=callback.url) == (202, "")
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
