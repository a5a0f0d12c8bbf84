"""The interface of the extension that lets a hub follow origins, `[[follow]]` in its settings."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol, cast

from rsnotify.runtime.extensions import load_extension

if TYPE_CHECKING:
    from socket import socket

    from aiohttp import web

    from rsnotify_hub.access.grants import Grants
    from rsnotify_hub.config.configuration import FollowConfig, HubConfig


class HubFollower(Protocol):
    """Follows origins and publishes their changes on the hub.

    The extension is the entry point `follow` in the group `rsnotify.hub`. It is imported only if
    the settings list origins. The hub listens on `listener`, and `public_url` ends in `/`.
    """

    def __init__(self, configuration: HubConfig, public_url: str, listener: socket) -> None: ...

    @staticmethod
    def check(config: FollowConfig) -> None:
        """Raise WrongSetting if an origin's settings are wrong."""

    def add_routes(self, app: web.Application) -> None:
        """Add routes that serve the documents of the origins."""

    def running(self, grants: Grants) -> AbstractAsyncContextManager[None]:
        """Follow the origins while the context is active. The hub already serves their documents.

        Raises:
            RsnotifyError: The stored state cannot be used.
        """


def load_hub_follower() -> type[HubFollower]:
    """Import the extension, or raise MissingExtension if it is not installed."""
    return cast(type[HubFollower], load_extension("hub", "follow", "the gateway"))
