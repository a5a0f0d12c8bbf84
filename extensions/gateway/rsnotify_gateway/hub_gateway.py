"""A gateway in the hub's process, for origins that the hub itself follows (`[[follow]]`).

Only a hub that follows origins imports this module, through the entry point `follow` of
`rsnotify.hub`. The hub serves the documents below `follow/` and keeps the state in its data folder.
Like any Source, the gateway publishes to the hub over HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from secrets import token_urlsafe

from aiohttp import web

from rsnotify.format.offer import HUB_DOCUMENT
from rsnotify.runtime.settings import convert_settings, digest
from rsnotify.runtime.tasks import first_completed
from rsnotify_gateway import Gateway, OriginSettings
from rsnotify_gateway.config import check_origins
from rsnotify_hub.access.grants import Grants
from rsnotify_hub.application import url_of
from rsnotify_hub.config.configuration import FollowConfig, HubConfig, PublisherGrant
from rsnotify_publisher import Hub

logger = logging.getLogger("rsnotify.hub")

#: The path of the documents, below the hub's URL.
_PATH = "follow/"


class HubGateway:
    """The gateway of a hub, which listens on `listener`. `public_url` ends in `/`."""

    def __init__(self, configuration: HubConfig, public_url: str, listener: socket.socket) -> None:
        self._base_url = public_url + _PATH
        self._token = token_urlsafe()
        here = _local_url(listener)
        advertised = (public_url + "websub", "ws" + public_url.removeprefix("http") + "ws")
        hub = Hub(here + "websub", advertised, self._token, documents=(here + HUB_DOCUMENT,))
        self._gateway = Gateway(
            Path(configuration.log.data) / "follow",
            self._base_url,
            origins_of(configuration.follow),
            contact=configuration.follow.contact or "",
            hubs=[hub],
        )

    @staticmethod
    def check(config: FollowConfig) -> None:
        """Raise WrongSetting if an origin's settings are wrong."""
        origins_of(config)

    def add_routes(self, app: web.Application) -> None:
        """Add the routes of the documents, and of the callbacks for feeds' hubs."""
        app.add_routes(self._gateway.routes("/" + _PATH))

    @asynccontextmanager
    async def running(self, grants: Grants) -> AsyncIterator[None]:
        """Follow the origins while the context is active. The hub already serves the documents.

        Raises:
            RsnotifyError: The state cannot be used.
        """
        grants.internal = (PublisherGrant(digest(self._token), (self._base_url,)),)
        began = asyncio.Event()

        async def begin() -> None:
            began.set()

        async with first_completed(self._gateway.run(begin), began.wait()) as (work, _):
            if work.done():
                work.result()
            work.add_done_callback(_log_end)
            yield


def _log_end(work: asyncio.Task[None]) -> None:
    if not work.cancelled() and (error := work.exception()) is not None:
        logger.error(
            "the gateway failed and follows no origins; restart the hub: %s", error, exc_info=error
        )


def _local_url(listener: socket.socket) -> str:
    """Return the URL at which the gateway reaches the hub in the same process."""
    host, port = listener.getsockname()[:2]
    if not ip_address(host).is_unspecified:
        return url_of(listener)
    return f"http://[::1]:{port}/" if ":" in host else f"http://127.0.0.1:{port}/"


def origins_of(config: FollowConfig) -> list[OriginSettings]:
    """Return the configured origins. Raise `WrongSetting` if a setting is wrong."""
    origins = [
        convert_settings(table, OriginSettings, "follow", number)
        for number, table in enumerate(config.tables)
    ]
    check_origins("follow", origins)
    return origins
