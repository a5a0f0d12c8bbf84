"""WebSub subscriptions, beyond what `conformance` checks on the same hub."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import pytest

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
    chain,
    fragment,
    seconds_of,
)
from tests.hub.storing import stored_subscriptions


@pytest.mark.parametrize("echo", ["x{}", "{0:.20}", "{0:x>100000}"])
async def test_only_the_challenge_itself_confirms(
    hub: Client, callback: Callback, watch: LogWatch, echo: str
):
    callback.echo = echo
    await hub.form(mode="subscribe", topic=TOPIC, callback=callback.url)
    await watch.line("did not confirm")


async def test_a_lease_ends(hub: Client, callback: Callback, clock: Clock, watch: LogWatch):
    await hub.subscribe(callback, lease_seconds=60)
    clock.advance(seconds=59)
    await hub.accepted(fragment(0, 1))
    await callback.delivery()
    clock.advance(seconds=1)
    await hub.accepted(fragment(1, 2))
    await watch.line("its lease has expired")
    await hub.subscriptions(lambda rows: not rows)
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
