"""The extension that makes a hub follow origins itself, `[[follow]]` in its settings.

The extension is the entry point `follow` in the group `rsnotify.hub`. It is imported only if the
settings name origins.
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
    """Follows the hub's origins, and publishes their changes on the hub.

    Args:
        configuration: The settings of the hub.
        public_url: The hub's public URL, ending in `/`.
        listener: The socket that the hub listens on.
    """

    def __init__(
        self, configuration: HubConfiguration, public_url: str, listener: socket.socket
    ) -> None: ...

    @staticmethod
    def check(config: FollowConfig) -> None:
        """Raise WrongSetting if the settings of an origin are wrong."""

    def add_routes(self, app: web.Application) -> None:
        """Add routes that serve the documents of the origins."""

    def running(self, grants: Grants) -> AbstractAsyncContextManager[None]:
        """Return a context that follows the origins. The hub already serves their documents.

        Raises:
            RsnotifyError: The stored state cannot be used.
        """


def follow_extension() -> type[HubFollower]:
    """Return the extension's type, or raise MissingExtension if it is not installed."""
    return cast(type[HubFollower], load_extension("hub", "follow", "the gateway"))
