"""Addresses: whatever others write, rsnotify connects to public addresses only.

Each way in receives every vector. A vector has a port of its own, so that an attempt to connect is
always known to be that of one vector, however many are tried at the same time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
from aiohttp import web
from msgspec import Struct

from rsnotify.errors import RsnotifyError
from rsnotify.format.model import Capability, Document, Link, Rel, Resource
from rsnotify.format.writer import write_document
from rsnotify.runtime.mqtt_broker import parse_broker
from rsnotify_gateway.adapters.feeds import FeedAdapter
from rsnotify_gateway.adapters.iiif import IIIFAdapter
from rsnotify_gateway.adapters.ldes import LdesAdapter
from rsnotify_gateway.adapters.sitemaps import SitemapAdapter
from rsnotify_gateway.client import OriginClient
from rsnotify_hub.websub.callback_requests import CallbackRequests, open_client
from rsnotify_hub.websub_subscription import Subscription
from rsnotify_subscriber import Callbacks
from rsnotify_subscriber.fetching.sessions import Connections, Sessions
from rsnotify_subscriber.push.mqtt_transport import DEFAULT_MQTT, MqttTransport
from rsnotify_subscriber.push.websocket_transport import WebSocketTransport
from rsnotify_subscriber.push.websub_transport import WebSubTransport
from rsnotify_validation.inspection import inspect
from rsnotify_validation.target_validation import validate_target
from tests.hub.helpers import START, TOPIC, LogWatch, RunHub
from tests.security.corpus import vectors
from tests.security.network import PORTS, SITE, Network
from tests.subscriber.destination import PATIENCE, Destination
from tests.subscriber.source import SmallSource, body


class AddressVector(Struct, frozen=True, forbid_unknown_fields=True):
    """A vector of `addresses.toml`, where the fields are explained."""

    host: str
    why: str
    answers: list[list[str]] = []
    dials: set[str] = set()
    optional: bool = False

    def url(self, scheme: str, port: int) -> str:
        host = self.host if "{port}" in self.host else self.host + ":{port}"
        return f"{scheme}://{host.replace('{port}', str(port))}/"

    @property
    def name(self) -> str:
        host = "public.test" if "public.test" in self.host else self.host
        return host.lower().removesuffix(".")


VECTORS = vectors("addresses", AddressVector)
#: A control: without the check, all of this is dialled.
CONTROL = {
    "127.0.0.1": ["127.0.0.1"],
    "[::ffff:127.0.0.1]": ["::ffff:127.0.0.1"],
    "private.test": ["10.0.0.1"],
}

#: Makes rsnotify use URLs; the second is whether all addresses are allowed.
Way = Callable[["World", list[str], bool], Awaitable[None]]


class World(Struct):
    """Where a way in finds what it needs."""

    folder: Path
    source: SmallSource
    destination: Destination
    run_hub: RunHub
    watch: LogWatch

    def site(self, path: str = "") -> str:
        return self.source.site.replace("127.0.0.1", SITE) + path

    def serve(self, pages: Mapping[str, bytes], content_type: str = "application/xml") -> None:
        """Serve documents that name the URLs."""
        for path, page in pages.items():
            self.source.answers[path] = body(page, content_type)


async def attempted(*attempts: Awaitable[object]) -> None:
    async def one(attempt: Awaitable[object]) -> None:
        with suppress(RsnotifyError):
            await attempt

    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*map(one, attempts))


# -- the subscriber's library ---------------------------------------------------------------------


async def _get(sessions: Sessions, url: str) -> None:
    async with sessions.get(url, {}):
        pass


async def _post(sessions: Sessions, url: str) -> None:
    async with sessions.post(url, {"hub.mode": "subscribe"}):
        pass


async def _get_small(sessions: Sessions, url: str) -> None:
    if await sessions.get_small(url) is None:
        await _get(sessions, url)


def by_sessions(request: Callable[[Sessions, str], Awaitable[None]]) -> Way:
    async def way(world: World, urls: list[str], anywhere: bool) -> None:
        async with Sessions(world.site(), allow_private_addresses=anywhere) as sessions:
            await attempted(*(request(sessions, url) for url in urls))

    return way


async def redirects(world: World, urls: list[str], anywhere: bool) -> None:
    async def redirect(request: web.Request) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": urls[int(request.query_string)]})

    world.source.answers["/redirect"] = redirect
    here = [world.site(f"redirect?{number}") for number in range(len(urls))]
    async with Sessions(world.site(), allow_private_addresses=anywhere) as sessions:
        await attempted(*(_get(sessions, url) for url in here))
        await attempted(*(_post(sessions, url) for url in here))


class Silent:
    def up(self, hub: str | None = None) -> None: ...

    def audience(self, listeners: int) -> None: ...

    def gap(self) -> None: ...

    def fragment(self, document: bytes) -> None: ...


async def websocket_hubs(world: World, urls: list[str], anywhere: bool) -> None:
    async with Sessions(world.site(), allow_private_addresses=anywhere) as sessions:
        made = [
            WebSocketTransport("ws" + url[4:], TOPIC, sessions.allows_any_address) for url in urls
        ]
        await attempted(*(each.receive(None, Silent()) for each in made))


async def mqtt_brokers(world: World, urls: list[str], anywhere: bool) -> None:
    async def join(sessions: Sessions, url: str) -> None:
        broker = parse_broker(url)
        await MqttTransport(broker, TOPIC, DEFAULT_MQTT, sessions.allows_any_address).receive(
            None, Silent()
        )

    async with Sessions(world.site(), allow_private_addresses=anywhere) as sessions:
        for scheme in ("mqtt", "ws+mqtt"):
            await attempted(*(join(sessions, scheme + url[4:]) for url in urls))


async def websub_hubs(world: World, urls: list[str], anywhere: bool) -> None:
    async def topic(request: web.Request) -> web.StreamResponse:
        hub = urls[int(request.query_string)]
        link = f'<{hub}>; rel="hub", <{request.url}>; rel="self"'
        return web.Response(headers={"Link": link.encode("ascii", "replace").decode()})

    world.source.answers["/topic"] = topic
    callbacks = Callbacks("http://127.0.0.1:1/")
    async with Sessions(world.site(), allow_private_addresses=anywhere) as sessions:
        made = [
            WebSubTransport(world.site(f"topic?{number}"), (url,), sessions, callbacks)
            for number, url in enumerate(urls)
        ]
        await attempted(*(each.receive(None, Silent()) for each in made))


# -- the subscriber's programs --------------------------------------------------------------------


def listing(capability: str, urls: list[str]) -> bytes:
    entries = tuple(Resource(url, capability=Capability.RESOURCE_LIST) for url in urls)
    if capability == Capability.RESOURCE_LIST:
        entries = tuple(Resource(url) for url in urls)
    return write_document(Document(capability, entries))


async def follow(world: World, urls: list[str], anywhere: bool) -> None:
    entries = [Resource(url) for url in urls if url.isascii() and "\t" not in url]
    world.source.list_only(*entries)
    await attempted(world.destination.catch_up(allow_private_addresses=anywhere))


async def inspecting(world: World, urls: list[str], anywhere: bool) -> None:
    offered = tuple(Resource(url, capability=Capability.RESOURCE_LIST) for url in urls)
    links = (Link(Rel.UP, world.site()),)
    document = Document(Capability.CAPABILITY_LIST, offered, links=links)
    world.serve({"/data/capabilitylist.xml": write_document(document)})
    await attempted(
        inspect(world.site("data/capabilitylist.xml"), allow_private_addresses=anywhere)
    )


async def validating(world: World, urls: list[str], anywhere: bool) -> None:
    parts = tuple(Resource(url) for url in urls)
    index = Document(Capability.RESOURCE_LIST, parts, index=True, at=START)
    world.serve({"/list.xml": write_document(index)})
    url = world.site("list.xml")
    await attempted(validate_target(url, deep=True, allow_private_addresses=anywhere))


# -- the gateway ----------------------------------------------------------------------------------

SITEMAP = '<sitemapindex xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"><sitemap><loc>%s</loc></sitemap></sitemapindex>'
FEED = '<feed xmlns="http://www.w3.org/2005/Atom"><link rel="next" href="%s"/></feed>'
TURTLE = "<> <https://w3id.org/tree#relation> [ <https://w3id.org/tree#node> <%s> ] ."


def feed_adapter(url: str, client: OriginClient) -> FeedAdapter:
    return FeedAdapter(url, client, Callbacks("http://127.0.0.1:1/"))


def by_gateway(
    make: Callable[[str, OriginClient], object], page: Callable[[str], str], content_type: str
) -> Way:
    """Serve an origin that names the URL of its next page."""

    async def way(world: World, urls: list[str], anywhere: bool) -> None:
        pages = {f"/{number}": page(url).encode() for number, url in enumerate(urls)}
        world.serve(pages, content_type)

        async def check(client: OriginClient, path: str) -> None:
            adapter = make(world.site(path[1:]), client)
            async for _ in adapter.changes(None, None):  # type: ignore[attr-defined]
                pass

        async with Connections() as connections:
            client = OriginClient(
                world.site(), connections, robots=False, allow_private_addresses=anywhere
            )
            async with client:
                await attempted(*(check(client, path) for path in pages))

    return way


async def robots(world: World, urls: list[str], anywhere: bool) -> None:
    """The robots.txt of a host that an origin names."""
    async with Connections() as connections:
        client = OriginClient(world.site(), connections, allow_private_addresses=anywhere)
        async with client:
            await attempted(*(client.content(url, 1) for url in urls))


# -- the hub --------------------------------------------------------------------------------------


async def hub_callbacks(world: World, urls: list[str], anywhere: bool) -> None:
    async with world.run_hub(allow_private_addresses=anywhere, subscription_rate=1000) as hub:
        for number, url in enumerate(urls):
            topic = f"{TOPIC}?{number}!"
            status, _ = await hub.form(mode="subscribe", topic=topic, callback=url)
            assert status in (202, 400), url
            if status == 202:
                await world.watch.line("did not confirm", topic)
    world.watch.lines.clear()


async def hub_topics(world: World, urls: list[str], anywhere: bool) -> None:
    async with world.run_hub(allow_private_addresses=anywhere) as hub:
        for url in urls:
            status, reason = await hub.form(mode="publish", url=url)
            assert status in (400, 502), (url, status, reason)


async def hub_redirects(world: World, urls: list[str], anywhere: bool) -> None:
    async def redirect(request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": urls[int(request.query_string)]})

    world.source.answers["/redirect"] = redirect
    async with world.run_hub(allow_private_addresses=anywhere) as hub:
        for number in range(len(urls)):
            status, _ = await hub.form(mode="publish", url=world.site(f"redirect?{number}"))
            assert status == 502


async def hub_deliveries(world: World, urls: list[str], anywhere: bool) -> None:
    """Deliveries to callbacks that were verified when their addresses were public."""
    async with open_client(allow_private_addresses=anywhere) as client:
        requests = CallbackRequests(
            client, TOPIC, method="sha256", clock=lambda: START, allow_private_addresses=anywhere
        )
        for url in urls:
            subscription = Subscription(TOPIC, url, None, START + timedelta(days=1), 0)
            assert (await requests.send(subscription, b"", "text/plain")).status is None
        requests.close()


WAYS: dict[str, Way] = {
    "documents": by_sessions(_get),
    "small content": by_sessions(_get_small),
    "subscription requests": by_sessions(_post),
    "redirects": redirects,
    "WebSocket hubs": websocket_hubs,
    "MQTT brokers": mqtt_brokers,
    "WebSub hubs": websub_hubs,
    "follow": follow,
    "inspect": inspecting,
    "validate": validating,
    "gateway: sitemaps": by_gateway(
        SitemapAdapter, lambda url: SITEMAP % escape(url), "application/xml"
    ),
    "gateway: feeds": by_gateway(feed_adapter, lambda url: FEED % escape(url), "application/xml"),
    "gateway: IIIF": by_gateway(
        lambda url, client: IIIFAdapter(url, client, None),
        lambda url: json.dumps({"type": "OrderedCollection", "last": url}),
        "application/json",
    ),
    "gateway: LDES": by_gateway(LdesAdapter, lambda url: TURTLE % url, "text/turtle"),
    "gateway: robots": robots,
    "hub: callbacks": hub_callbacks,
    "hub: topics": hub_topics,
    "hub: redirects": hub_redirects,
    "hub: deliveries": hub_deliveries,
}


@pytest.fixture
async def world(
    tmp_path: Path, source: SmallSource, destination: Destination, run_hub: RunHub, watch: LogWatch
) -> World:
    return World(tmp_path, source, destination, run_hub, watch)


@pytest.mark.parametrize("name", WAYS)
async def test_only_public_addresses_are_dialled(name: str, world: World, network: Network):
    network.answers |= {vector.name: vector.answers for vector in VECTORS if vector.answers}
    # Once more for each further answer of the name server.
    urls = [
        vector.url("http", PORTS + number)
        for number, vector in enumerate(VECTORS)
        for _ in vector.answers or [()]
    ]
    await WAYS[name](world, urls, False)
    for number, vector in enumerate(VECTORS):
        tried = network.dialled[PORTS + number]
        assert tried <= vector.dials, f"{vector.host} ({vector.why}) led to {tried}"
        assert vector.optional or tried == vector.dials, f"{vector.host} is not dialled"
    # What becomes a URL without the port of the vector.
    others = {port: hosts for port, hosts in network.dialled.items() if port < PORTS}
    assert others.items() <= {80: {"9.9.9.9"}}.items(), others


@pytest.mark.parametrize("name", WAYS)
async def test_without_the_check_other_addresses_would_be_dialled(
    name: str, world: World, network: Network
):
    network.answers["private.test"] = [CONTROL["private.test"]]
    urls = [f"http://{host}:{PORTS + number}/" for number, host in enumerate(CONTROL)]
    await WAYS[name](world, urls, True)
    assert network.dialled == {
        PORTS + number: set(addresses) for number, addresses in enumerate(CONTROL.values())
    }
