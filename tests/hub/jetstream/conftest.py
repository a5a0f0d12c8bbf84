from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rsnotify_jetstream.settings import NatsSettings
from tests.hub.jetstream.nodes import prefixed
from tests.nats_servers import NatsCluster, running_nats


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    """One server, which all tests share."""
    with running_nats(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
def settings(nats_server: NatsCluster, tmp_path: Path) -> NatsSettings:
    """A part of the shared server that no other test uses."""
    name = "".join(char if char.isalnum() else "-" for char in tmp_path.name)
    return prefixed(nats_server.url, name[-60:])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NatsCluster]:
    with running_nats(tmp_path, servers=3) as servers:
        yield servers
