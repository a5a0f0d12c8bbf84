"""The transports to a hub: HTTP, WebSocket and brokers, by the scheme of its URI.

Each function feeds a hub until something fails, and then raises `HubFailure`.
"""

from __future__ import annotations

from functools import partial

import aiohttp
from websockets.exceptions import InvalidStatus, WebSocketException

from rsnotify.runtime.dialing import Dialer
from rsnotify.runtime.mqtt_broker import is_broker_url
from rsnotify.runtime.tasks import first_cause
from rsnotify_publisher.hubs import Hub, HubFailure
from rsnotify_publisher.push.http_post import TOO_MANY, feed_by_post, remedy, seconds_to_wait
from rsnotify_publisher.push.hub_feed import HubFeed
from rsnotify_publisher.push.mqtt import feed_by_mqtt, feed_by_xmpp
from rsnotify_publisher.push.websocket import HubConnections, feed_by_websocket
from rsnotify_xmpp.xmpp_service import is_service_url

_NETWORK = (OSError, aiohttp.ClientError, WebSocketException)


async def feed_hub(
    hub: Hub, topic: str, feed: HubFeed, dialer: Dialer, websockets: HubConnections
) -> None:
    """Feed a hub, by the transport of its URI, until that fails.

    Raises:
        HubFailure: Always, in the end; of a broker, Unavailable.
    """
    feed_by = feed_by_post
    if not hub.uri.startswith("http"):
        feed_by = partial(feed_by_websocket, websockets)
    if is_broker_url(hub.uri):
        feed_by = feed_by_mqtt
    elif is_service_url(hub.uri):
        feed_by = feed_by_xmpp
    try:
        await feed_by(hub, topic, feed, dialer)
    except (*_NETWORK, ExceptionGroup) as error:
        cause = first_cause(error)
        if isinstance(cause, InvalidStatus):
            answer = cause.response
            location = answer.headers.get("Location", "")
            raise HubFailure(
                hub.uri,
                f"it answered {answer.status_code} {answer.reason_phrase}",
                seconds_to_wait(answer.headers.get("Retry-After")),
                remedy=remedy(hub, topic, answer.status_code, location),
                everywhere=answer.status_code == TOO_MANY,
            ) from error
        if isinstance(cause, _NETWORK):
            raise HubFailure(hub.uri, str(cause) or type(cause).__name__) from error
        raise cause from None
