"""Publishes fragments at a broker, with or without a hub behind it (docs/mqtt.md, docs/xmpp.md).

A broker does not report its cursor, so the Source's own counts: what the broker has acknowledged,
in the order in which it was sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any

import rsnotify.runtime.xmpp.connection as xmpp
from rsnotify.runtime.dialing import Dialer
from rsnotify.runtime.mqtt.connect import connect
from rsnotify.runtime.mqtt.topics import parse_broker
from rsnotify.runtime.refusals import ConnectionRefused
from rsnotify.runtime.xmpp.addresses import parse_service
from rsnotify_publisher.hubs import Hub
from rsnotify_publisher.push.fragments import OutgoingFragment
from rsnotify_publisher.push.hub_feed import HubFeed

_log = logging.getLogger("rsnotify.publisher")

_XML = "application/xml"
_Sent = asyncio.Queue[tuple[OutgoingFragment, asyncio.Future[None]]]
#: Sends a fragment; the future is done when the broker has acknowledged it.
_Publish = Callable[[bytes], Awaitable[asyncio.Future[None]]]


async def feed_by_mqtt(hub: Hub, topic: str, feed: HubFeed, dialer: Dialer) -> None:
    """Feed an MQTT broker until that fails, always with Unavailable."""
    broker = parse_broker(hub.uri)
    dial = dialer.dial if broker.path is None else None  # a WebSocket may need a proxy
    async with connect(broker, hub.login, version=hub.version, dial=dial) as connection:
        name = broker.topic(topic)
        publish = partial(connection.publish, name, content_type=_XML, channel=topic)
        await _feed(connection.lost(), publish, feed)


async def feed_by_xmpp(hub: Hub, topic: str, feed: HubFeed, dialer: Dialer) -> None:
    """Feed a PubSub service until that fails, always with Unavailable."""
    async with xmpp.connect(hub.xmpp) as connection:
        publish = partial(connection.publish, parse_service(hub.uri), topic)
        await _feed(connection.lost(), publish, feed)


async def _feed(lost: Coroutine[Any, Any, None], publish: _Publish, feed: HubFeed) -> None:
    sent: _Sent = asyncio.Queue()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(lost)
        tasks.create_task(_confirm(sent, feed))
        tasks.create_task(_send(publish, feed, sent))


async def _send(publish: _Publish, feed: HubFeed, sent: _Sent) -> None:
    async with aclosing(feed.fragments()) as fragments:
        async for fragment in fragments:
            try:
                taken = await publish(fragment.body)
            except ConnectionRefused as error:
                taken = asyncio.get_running_loop().create_future()
                taken.set_exception(error)
            sent.put_nowait((fragment, taken))


async def _confirm(sent: _Sent, feed: HubFeed) -> None:
    while True:
        fragment, taken = await sent.get()
        try:
            await taken
        except ConnectionRefused as error:
            if not error.is_final:
                raise
            # A retry cannot succeed; Destinations detect the gap and read the Change List.
            _log.warning("a fragment was left out: %s", error)
        feed.accepted(fragment.until)
