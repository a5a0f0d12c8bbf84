"""Receive fragments from a node of an XMPP PubSub service (docs/xmpp.md).

A service has no log to read from a given instant, but it keeps the newest fragment of a node. A
fragment states when it begins, so the newest one reveals a gap. If the service keeps none, the
reader reports a gap, and the Destination reads the lists.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from rsnotify.errors import ConfigurationError, Unavailable
from rsnotify.format.datetimes import Instant
from rsnotify_subscriber.push.transport import TransportListener
from rsnotify_xmpp.xmpp_connection import PubSubItem, connect
from rsnotify_xmpp.xmpp_service import PubSubService, XmppLogin

logger = logging.getLogger("rsnotify.subscriber")


@dataclass
class XmppReader:
    """Receives the fragments of one node with an account; a `Transport`.

    It connects to the account's server, regardless of the service that the Source names. The
    subscription remains when the connection ends, because other connections of the account may
    need it.

    Attributes:
        ignored: The number of messages that were not fragments of the topic.
    """

    service: PubSubService
    topic: str
    login: XmppLogin
    ignored: int = 0

    async def receive(self, since: Instant | None, listener: TransportListener) -> None:
        place = self.service.jid, self.service.node(self.topic)

        def receive_item(item: PubSubItem) -> None:
            if (item.sender, item.node) == place:
                listener.fragment(item.payload)
            else:
                self._ignore()

        try:
            async with connect(self.login, receive_item, self._ignore) as connection:
                newest = await connection.subscribe(self.service, self.topic)
                listener.up()
                if newest is None:
                    listener.gap()
                else:
                    listener.fragment(newest)
                await connection.lost()
        except ConfigurationError as error:  # may be temporary while a certificate is replaced
            raise Unavailable(self.service.url, str(error)) from None

    def _ignore(self) -> None:
        self.ignored += 1
        logger.debug(
            "ignored an XMPP message that is not a fragment of %s (%s so far)",
            self.topic,
            self.ignored,
        )
