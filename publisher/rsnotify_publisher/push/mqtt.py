"""Publishes fragments at an MQTT broker, with or without a hub behind it (docs/mqtt.md).

A broker does not report its cursor, so the Source's own counts: what the broker has acknowledged,
in the order in which it was sent.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing

from rsnotify.runtime.dialing import Dialer
from rsnotify.runtime.mqtt.connect import connect
from rsnotify.runtime.mqtt.connection import BrokerConnection
from rsnotify.runtime.mqtt.topics import parse_broker
from rsnotify.runtime.refusals import ConnectionRefused
from rsnotify_publisher.hubs import Hub
from rsnotify_publisher.push.fragments import OutgoingFragment
from rsnotify_publisher.push.hub_feed import HubFeed

_log = logging.getLogger("rsnotify.publisher")

_XML = "application/xml"
_Sent = asyncio.Queue[tuple[OutgoingFragment, asyncio.Future[None]]]


async def feed_by_mqtt(hub: Hub, topic: str, feed: HubFeed, dialer: Dialer) -> None:
    """Feed a broker until that fails, always with Unavailable."""
    broker = parse_broker(hub.uri)
    sent: _Sent = asyncio.Queue()
    dial = dialer.dial if broker.path is None else None  # a WebSocket may need a proxy
    async with (
        connect(broker, hub.login, version=hub.version, dial=dial) as connection,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(connection.lost())
        tasks.create_task(_confirm(sent, feed))
        tasks.create_task(_send(connection, broker.topic(topic), topic, feed, sent))


async def _send(
    connection: BrokerConnection, name: str, channel: str, feed: HubFeed, sent: _Sent
) -> None:
    async with aclosing(feed.fragments()) as fragments:
        async for fragment in fragments:
            try:
                taken = await connection.publish(
                    name, fragment.body, content_type=_XML, channel=channel
                )
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
