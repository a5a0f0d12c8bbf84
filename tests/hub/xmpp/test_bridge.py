"""All fragments reach the PubSub service, also after it or the hub was stopped."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rsnotify.format.reader import read_document
from rsnotify_xmpp.xmpp_connection import PubSubItem, XmppConnection, connect
from rsnotify_xmpp.xmpp_service import parse_service
from tests.hub.helpers import TOPIC, Client, LogWatch, RunHub, chain, fragment
from tests.prosody import DOMAIN, PASSWORDS, SERVICE, Prosody
from tests.waiting import PATIENCE, until
from tests.xmpp.hostile import BOUNDED, STAGES, HostileXmpp, hostile_server

PLACE = parse_service(f"xmpp:{SERVICE}")


def settings(server: Prosody | HostileXmpp, **others: Any) -> dict[str, Any]:
    login = server.login("hub")
    return {
        "xmpp_url": PLACE.url,
        "xmpp_jid": login.jid,
        "xmpp_password": login.password,
        "xmpp_server": login.server,
        "xmpp_ca": login.ca,
        **others,
    }


class NodeReader:
    """An account that reads a topic, and records what it receives."""

    def __init__(self) -> None:
        self.items: asyncio.Queue[PubSubItem] = asyncio.Queue()
        self.newest: tuple[Any, ...] | None = None
        self.connection: XmppConnection

    async def next(self) -> tuple[Any, ...]:
        async with asyncio.timeout(PATIENCE):
            return meaning((await self.items.get()).payload)

    async def until(self, body: bytes) -> list[tuple[Any, ...]]:
        found = [await self.next()]
        while found[-1] != meaning(body):
            found.append(await self.next())
        return found


def meaning(body: bytes) -> tuple[Any, ...]:
    """Return what a fragment says, whatever prefixes it uses for namespaces."""
    found = read_document(body)
    return found.from_, found.until, found.resources


@asynccontextmanager
async def reading(server: Prosody) -> AsyncIterator[NodeReader]:
    reader = NodeReader()
    async with connect(server.login("reader"), reader.items.put_nowait) as reader.connection:
        newest = await reader.connection.subscribe(PLACE, TOPIC)
        reader.newest = None if newest is None else meaning(newest)
        yield reader


Connected = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture
def run_connected(run_hub: RunHub, prosody: Prosody, watch: LogWatch) -> Connected:
    """Run a hub with a bridge, and wait until it is connected."""

    @asynccontextmanager
    async def run(**others: Any) -> AsyncIterator[Client]:
        watch.lines.clear()
        async with run_hub(**settings(prosody), **others) as hub:
            await watch.line("connected to xmpp:")
            yield hub

    return run


async def behind(hub: Client, count: int) -> None:
    """Wait until the service has received all topics except so many."""
    await shown(hub, "xmpp_topics_behind", count)


async def shown(hub: Client, metric: str, value: float) -> None:
    async def is_shown() -> bool:
        return (await hub.metrics()).get(metric) == value

    await until(is_shown)


async def test_a_fragment_is_the_payload_of_an_item(run_connected: Connected, prosody: Prosody):
    first, second = (
        fragment(0, 1),
        fragment(1, 2).replace(b"<urlset", b"<!-- a comment -->\n<urlset"),
    )
    async with run_connected() as hub:
        await hub.accepted(first)
        await behind(hub, 0)
        async with reading(prosody) as reader:
            assert reader.newest == meaning(first)
            await hub.accepted(second)
            assert await reader.next() == meaning(second)
        await behind(hub, 0)
        metrics = await hub.metrics()
    assert metrics['deliveries_total{outcome="delivered",way="xmpp"}'] == 2
    assert metrics["xmpp_connected"] == 1


async def test_a_service_that_is_killed_under_load_has_the_newest_fragment_in_the_end(
    run_connected: Connected, prosody: Prosody
):
    bodies = iter(chain(90))
    async with run_connected() as hub:
        for _ in range(3):
            await hub.accepted(*islice(bodies, 10))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(prosody.stop(signal.SIGKILL))
                await hub.accepted(*islice(bodies, 10))
            await prosody.start()
            for body in islice(bodies, 10):
                await hub.accepted(body)
        await behind(hub, 0)
        async with reading(prosody) as reader:
            assert reader.newest == meaning(body)


async def test_what_was_published_while_the_service_was_away_is_sent_from_the_log(
    run_hub: RunHub, prosody: Prosody, watch: LogWatch
):
    bodies = chain(5)
    async with run_hub(**settings(prosody)) as hub:
        await hub.accepted(bodies[0])
        await behind(hub, 0)
        await prosody.stop()
        await watch.line("the XMPP service is unavailable")
        await hub.accepted(*bodies[1:])
        await behind(hub, 1)
    await prosody.start()
    async with reading(prosody) as reader, run_hub(**settings(prosody)):
        assert await reader.until(bodies[-1]) == [meaning(body) for body in bodies[1:]]


async def test_a_wrong_password_is_named_and_the_log_waits(
    run_hub: RunHub, prosody: Prosody, watch: LogWatch
):
    async with run_hub(**settings(prosody, xmpp_password="wrong")) as hub:
        line = await watch.line("the XMPP service refuses this hub")
        assert f"it refused the login of 'hub@{DOMAIN}'" in line
        assert "correct the XMPP account and its password" in line
        await hub.accepted(fragment(0, 1))
        await behind(hub, 1)
        assert PASSWORDS["hub"] not in "".join(watch.lines)


@pytest.mark.parametrize("wrong", ["name", "authority"])
async def test_a_wrong_certificate_is_named(
    run_hub: RunHub, tmp_path: Path, watch: LogWatch, wrong: str
):
    name = "other.example" if wrong == "name" else DOMAIN
    async with Prosody(tmp_path / "wrong", name=name) as server:
        others = {} if wrong == "name" else {"xmpp_ca": None}
        async with run_hub(**settings(server, **others)):
            await watch.line("its certificate is not trusted")


async def test_an_account_that_may_not_publish_is_named_and_delays_no_other_transport(
    run_hub: RunHub, prosody: Prosody, watch: LogWatch
):
    reader = {"xmpp_jid": f"reader@{DOMAIN}", "xmpp_password": PASSWORDS["reader"]}
    async with run_hub(**settings(prosody, **reader)) as hub:
        await hub.accepted(fragment(0, 1))
        line = await watch.line("to the broker; retrying")
        assert f"allow reader@{DOMAIN} to publish" in line


async def test_what_cannot_be_an_item_is_left_out(
    run_connected: Connected, prosody: Prosody, watch: LogWatch
):
    async with run_connected() as hub:
        await hub.accepted(fragment(0, *range(1, 3_000)))
        await watch.line("skipped a fragment", "too large for a stanza")
        await hub.publish(b"\x89PNG", topic="https://a.example/x", Content_Type="image/png")
        await watch.line("skipped a fragment", "not well-formed")
        await hub.accepted(fragment(3_000, 3_001))
        await behind(hub, 0)
        async with reading(prosody) as reader:
            assert reader.newest == meaning(fragment(3_000, 3_001))


async def test_a_service_that_stops_answering_is_left(
    run_connected: Connected, prosody: Prosody, watch: LogWatch, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("rsnotify_xmpp.xmpp_connection.TIMEOUT", 0.5)
    monkeypatch.setattr("rsnotify_xmpp.xmpp_connection.PING_INTERVAL", 0.1)
    async with run_connected() as hub:
        prosody.pause()
        await watch.line("the XMPP service is unavailable", "timed out")
        await hub.accepted(fragment(0, 1))
        monkeypatch.undo()
        prosody.resume()
        await behind(hub, 0)


@pytest.mark.parametrize("stage", STAGES)
async def test_a_service_that_sends_without_end_is_left(
    run_hub: RunHub, tmp_path: Path, watch: LogWatch, stage: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("rsnotify_xmpp.xmpp_connection.TIMEOUT", PATIENCE)
    async with hostile_server(tmp_path, "text", stage) as server:
        async with run_hub(**settings(server)) as hub:
            await watch.line("the XMPP service is unavailable", "it sent")
            await server.closed.wait()
            await hub.accepted(fragment(0, 1))
        assert server.accepted / server.connections < BOUNDED


async def test_presences_of_many_senders_are_not_kept(prosody: Prosody):
    async with connect(prosody.login("hub")) as hub, connect(prosody.login("reader")) as other:
        presence = f'<presence to="hub@{DOMAIN}/RESOURCE"/>'
        other._client.send_raw(presence.replace("RESOURCE", hub._client.boundjid.resource))
        await other.request("get", DOMAIN, '<ping xmlns="urn:xmpp:ping"/>')
        await hub.request("get", DOMAIN, '<ping xmlns="urn:xmpp:ping"/>')
        assert not hub._client.client_roster.keys()


async def test_a_message_to_the_account_of_the_hub_is_ignored_and_counted(
    run_connected: Connected, prosody: Prosody
):
    async with run_connected() as hub, connect(prosody.login("reader")) as stranger:
        stranger._client.send_raw(
            f'<message to="hub@{DOMAIN}" type="chat"><body>publish this</body></message>'
        )
        await shown(hub, 'refused_total{code="xmpp-message"}', 1)


async def test_the_hub_states_the_service_and_the_node_of_each_topic(run_connected: Connected):
    async with run_connected() as hub:
        await hub.accepted(fragment(0, 1))
        async with hub.session.get(hub.url + "topics") as response:
            (row,) = (await response.json())["topics"]
        async with hub.session.get(hub.url + ".well-known/rsnotify-hub") as response:
            assert (await response.json())["xmpp"] == f"xmpp:{SERVICE}"
    assert row["xmpp"] == f"xmpp:{SERVICE}?;node={PLACE.node(TOPIC)}"


async def test_two_connections_of_an_account_receive_the_same(prosody: Prosody):
    async with connect(prosody.login("hub")) as hub:
        await (await hub.publish(PLACE, TOPIC, fragment(0, 1)))
        async with reading(prosody) as one, reading(prosody) as other:
            await (await hub.publish(PLACE, TOPIC, fragment(1, 2)))
            assert await one.next() == await other.next() == meaning(fragment(1, 2))


async def test_a_node_that_was_deleted_is_created_again(run_connected: Connected, prosody: Prosody):
    async with run_connected() as hub:
        await hub.accepted(fragment(0, 1))
        await behind(hub, 0)
        async with connect(replace(prosody.login("hub"))) as admin:
            owner = "http://jabber.org/protocol/pubsub#owner"
            delete = f'<delete node="{PLACE.node(TOPIC)}"/>'
            await admin.request("set", SERVICE, f'<pubsub xmlns="{owner}">{delete}</pubsub>')
        await hub.accepted(fragment(1, 2))
        await behind(hub, 0)
        async with reading(prosody) as reader:
            assert reader.newest == meaning(fragment(1, 2))
