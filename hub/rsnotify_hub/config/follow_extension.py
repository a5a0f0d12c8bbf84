"""The extension with which a hub follows origins itself, `[[follow]]` in its settings.

It is the entry point `follow` of the group `rsnotify.hub`, and imported only for such settings.
"""

from __future__ import annotations

import socket
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol, cast

from rsnotify.runtime.extensions import load_extension
from rsnotify_hub.config.configuration import FollowConfig, HubConfiguration

if TYPE_CHECKING:
    from aiohttp import web

    from rsnotify_hub.access.authorization import Grants


class HubFollower(Protocol):
    """Follows the origins of a hub, and publishes their changes on it.

    Args:
        configuration: The settings of the hub.
        public_url: The hub's URL for others, ending in `/`.
        listener: Where the hub listens.
    """

    def __init__(
        self, configuration: HubConfiguration, public_url: str, listener: socket.socket
    ) -> None: ...

    @staticmethod
    def check(config: FollowConfig) -> None:
        """Raise WrongSetting if an origin is wrong."""

    def add_routes(self, app: web.Application) -> None:
        """Serve the documents of the origins."""

    def running(self, grants: Grants) -> AbstractAsyncContextManager[None]:
        """Follow the origins within the context; the hub serves their documents already.

        Raises:
            RsnotifyError: The state cannot be used.
        """


def follow_extension() -> type[HubFollower]:
    """Return the type of the extension; MissingExtension if it is not installed."""
    return cast(type[HubFollower], load_extension("hub", "follow", "the gateway"))
