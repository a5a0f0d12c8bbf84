from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rsnotify_jetstream.settings import NatsSettings
from tests.hub.jetstream.nodes import part_of, prefixed
from tests.nats_servers import NatsCluster, running_nats


@pytest.fixture
def settings(nats_server: NatsCluster, tmp_path: Path) -> NatsSettings:
    """A part of the shared server that no other test uses."""
    return prefixed(nats_server.url, part_of(tmp_path))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NatsCluster]:
    with running_nats(tmp_path, servers=3) as servers:
        yield servers
