from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rsnotify_jetstream.settings import NatsSettings
from tests.nats_servers import NatsCluster, running_nats


@pytest.fixture
def settings(nats_settings: NatsSettings) -> NatsSettings:
    return nats_settings


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NatsCluster]:
    with running_nats(tmp_path, servers=3) as servers:
        yield servers
