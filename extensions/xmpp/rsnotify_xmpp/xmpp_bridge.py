"""The bridge to an XMPP PubSub service. Each fragment is an item of its topic's node."""

from __future__ import annotations

import asyncio
from functools import partial

from rsnotify_hub.bridging import Bridge, BridgeDependencies, BrokerCursors
from rsnotify_hub.filtering import TopicSelection
from rsnotify_xmpp.xmpp_connection import XmppConnection, connect
from rsnotify_xmpp.xmpp_service import SCHEME, parse_service
from rsnotify_xmpp.xmpp_transport import XmppSettings

#: The code under which messages to the hub's account are counted as refused. The account cannot be
#: used to publish.
FOREIGN_MESSAGE = "xmpp-message"


class XmppBridge(Bridge):
    """The `Bridge` to a PubSub service."""

    def __init__(self, settings: XmppSettings, dependencies: BridgeDependencies) -> None:
        assert settings.url is not None, "it was checked"
        self._service = parse_service(settings.url)
        self._login = settings
        cursors = BrokerCursors(dependencies.store, dependencies.topics, self._service.url_for(""))
        super().__init__(SCHEME, "XMPP service", cursors, dependencies)

    async def _connect(self) -> None:
        self._cursors.check_owner()
        async with connect(self._login, on_foreign=self._count_foreign) as connection:
            self._logger.info("connected to %s, for %s", connection.url, self._service.url)
            async with self._sending(partial(self._publish, connection)):
                self._warned.clear()
                await connection.lost()

    def _count_foreign(self) -> None:
        self._statistics.refused[FOREIGN_MESSAGE] += 1

    async def _publish(
        self, connection: XmppConnection, selection: TopicSelection, body: bytes, _: str
    ) -> asyncio.Future[None]:
        self._cursors.check_owner()
        return await connection.publish(self._service, selection.topic, body)
