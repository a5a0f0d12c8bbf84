"""What trials share; all are slow, and part of `make trials`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from tests.running import LoggingServer
from tests.trials.deployment import Background

Server = TypeVar("Server", bound=LoggingServer)


@pytest.fixture
def background() -> Iterator[Background]:
    made = Background()
    yield made
    made.close()


@pytest.fixture
def started(background: Background) -> Iterator[Callable[[Server], Server]]:
    """Start servers, which are stopped in the end."""
    servers: list[LoggingServer] = []

    def start(server: Server) -> Server:
        servers.append(server)
        background(server.start())
        return server

    yield start
    for server in servers:
        background(server.stop())
