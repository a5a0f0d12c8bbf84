"""Publishes fragments at brokers: over MQTT, and over any transport with acknowledgements.

The Source can publish at a broker with or without a hub behind it (docs/mqtt.md, docs/xmpp.md). A
broker does not report its cursor, so the Source keeps one. It moves forward as the broker
acknowledges fragments, in the order in which they were sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any

from rsnotify.errors import ConnectionRefused
from rsnotify.runtime.addresses import Dialer
from rsnotify.runtime.mqtt_broker import BrokerLogin, parse_broker
from rsnotify.runtime.mqtt_connection import connect
from rsnotify.runtime.tasks import run_together
from rsnotify_publisher.hubs import Hub
from rsnotify_publisher.push.hub_feed import FragmentFeed, OutgoingFragment

logger = logging.getLogger("rsnotify.publisher")

_XML = "application/xml"
_Sent = asyncio.Queue[tuple[OutgoingFragment, asyncio.Future[None]]]
#: Sends a fragment, and returns a future that is done when the broker has acknowledged it.
Publish = Callable[[bytes], Awaitable[asyncio.Future[None]]]


async def feed_by_mqtt(hub: Hub, topic: str, feed: FragmentFeed, dialer: Dialer) -> None:
    """Publish fragments at an MQTT broker until an error occurs. Always raises Unavailable."""
    broker = parse_broker(hub.uri)
    assert isinstance(hub.login, BrokerLogin)
    dial = dialer.dial if broker.path is None else None  # a WebSocket may need a proxy
    async with connect(broker, hub.login, version=hub.version, dial=dial) as connection:
        name = broker.topic(topic)
        publish = partial(connection.publish, name, content_type=_XML, channel=topic)
        await feed_broker(connection.lost(), publish, feed)


async def feed_broker(
    lost: Coroutine[Any, Any, None], publish: Publish, feed: FragmentFeed
) -> None:
    """Publish fragments, and confirm those that the broker has acknowledged.

    `lost` raises Unavailable when the connection is lost.
    """
    sent: _Sent = asyncio.Queue()
    await run_together(lost, _confirm(sent, feed), _send(publish, feed, sent))


async def _send(publish: Publish, feed: FragmentFeed, sent: _Sent) -> None:
    async with aclosing(feed.fragments()) as fragments:
        async for fragment in fragments:
            try:
                acknowledged = await publish(fragment.body)
            except ConnectionRefused as error:
                acknowledged = asyncio.get_running_loop().create_future()
                acknowledged.set_exception(error)
            sent.put_nowait((fragment, acknowledged))


async def _confirm(sent: _Sent, feed: FragmentFeed) -> None:
    while True:
        fragment, acknowledged = await sent.get()
        try:
            await acknowledged
        except ConnectionRefused as error:
            if not error.is_final:
                raise
            # A retry cannot succeed. Destinations detect the gap and read the Change List.
            logger.warning("a fragment was skipped: %s", error)
        feed.accepted(fragment.until)
