"""npm's `aedes`, an MQTT broker in memory, as a process."""

from __future__ import annotations

from pathlib import Path

from tests.interop.clients import Node
from tests.ports import free_port
from tests.running import LoggingServer


class Aedes(LoggingServer):
    def __init__(self) -> None:
        self._node = Node("aedes")
        self.port = free_port()
        super().__init__()

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    async def start(self) -> None:
        await self._run(
            *self._node.command(Path(__file__).with_name("broker.mjs"), str(self.port)),
            ready="^ready$",
            cwd=self._node.folder,
        )
