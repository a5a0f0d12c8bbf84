"""The servers of others that take part, each stopped, killed, suspended and started in one way."""

from __future__ import annotations

import asyncio
import shutil
from signal import SIGTERM, Signals
from typing import Protocol

from tests import mosquitto, nats_servers, postgresql
from tests.nats_servers import NatsCluster, NatsServer
from tests.postgresql import PostgreSQL

#: The program of each, and where it is searched for.
_PROGRAMS = {
    "mosquitto": ("mosquitto", mosquitto.PATH),
    "nats": ("nats-server", nats_servers.PATH),
    "prosody": ("prosody", None),
    "postgresql": ("initdb", postgresql.PATH),
}
SERVICES = tuple(_PROGRAMS)


def installed() -> set[str]:
    """Return the services that can be run here."""
    return {name for name, (program, path) in _PROGRAMS.items() if shutil.which(program, path=path)}


def missing() -> list[str]:
    return sorted(_PROGRAMS.keys() - installed())


class Service(Protocol):
    async def start(self) -> None:
        """Start it, and wait until it can be reached."""

    async def stop(self, how: Signals = SIGTERM) -> None:
        """End it: in order, or by SIGKILL."""

    def pause(self) -> None:
        """Make it unresponsive from now on."""

    def resume(self) -> None:
        """Resume it."""


class Blocking:
    """A server whose methods wait, in a thread."""

    def __init__(self, server: NatsServer | PostgreSQL) -> None:
        self._server = server
        self.pause = server.pause
        self.resume = server.resume

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)
        if isinstance(self._server, NatsServer):
            await asyncio.to_thread(NatsCluster([self._server]).wait)

    async def stop(self, how: Signals = SIGTERM) -> None:
        await asyncio.to_thread(self._server.stop, how)
