"""Server-side request forgery in steps; `tests/security/addresses.toml` has the addresses."""

from __future__ import annotations

import pytest

import rsnotify.runtime.addresses
from rsnotify.runtime.addresses import refusal
from tests.hub.attacks.helpers import Names, confirm, obliging, raw_server, sending_to
from tests.hub.helpers import TOPIC, Callback, Client, LogWatch, RunHub, fragment
from tests.ports import free_port


async def refused(hub: Client, watch: LogWatch, url: str, number: int) -> None:
    """Wait until the hub has refused a callback: at once, or when it would connect."""
    topic = f"{TOPIC}?{number}"
    status, _ = await hub.form(mode="subscribe", topic=topic, callback=url)
    assert status in (202, 400)
    if status == 202:
        await watch.line("did not confirm", topic)


@pytest.fixture
def public(monkeypatch: pytest.MonkeyPatch) -> str:
    """An address of this machine that counts as public."""
    address = "127.0.0.2"
    monkeypatch.setattr(
        rsnotify.runtime.addresses,
        "refusal",
        lambda each: None if each == address else refusal(each),
    )
    return address


async def test_a_name_that_changes_to_a_private_address_is_not_connected_to(
    run_hub: RunHub, watch: LogWatch, names: Names, public: str
):
    """DNS rebinding: public during verification, private during delivery."""
    names.addresses["callback.test"] = [public]
    async with (
        raw_server(confirm, host=public, port=free_port()) as callback,
        raw_server(obliging, port=callback.port) as victim,
    ):
        url = f"http://callback.test:{callback.port}/"
        async with run_hub(allow_private_addresses=False) as hub:
            assert await hub.form(mode="subscribe", topic=TOPIC, callback=url) == (202, "")
            await callback.until(lambda: len(callback.requests) == 1)
            await hub.accepted(fragment(0, 1))
            await callback.until(lambda: len(callback.requests) == 2)
        names.addresses["callback.test"] = ["127.0.0.1"]
        async with run_hub(allow_private_addresses=False) as hub:
            await hub.accepted(fragment(1, 2))
            await watch.line("callback.test", "is not public")
        assert (victim.connections, callback.connections) == (0, 2)


async def test_why_a_callback_is_not_connected_to_is_in_the_log(
    run_hub: RunHub, callback: Callback, watch: LogWatch
):
    async with run_hub(allow_private_addresses=False) as hub:
        assert await hub.form(mode="subscribe", topic=TOPIC, callback=callback.url) == (202, "")
        await watch.line("is unreachable", "loopback", "--allow-private-addresses")
    assert callback.requests == 0


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_callback_cannot_redirect_the_hub(
    run_hub: RunHub, watch: LogWatch, public: str, status: int
):
    async with raw_server(obliging) as victim:
        async with (
            raw_server(sending_to(status, victim.url()), host=public) as callback,
            run_hub(allow_private_addresses=False) as hub,
        ):
            await refused(hub, watch, callback.url(), 0)
        assert (callback.connections, victim.connections) == (1, 0)
