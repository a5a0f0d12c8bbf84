from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rsnotify_jetstream import jetstream_log
from rsnotify_jetstream.nats_settings import NatsSettings
from tests.hub.jetstream.nodes import part_of, prefixed
from tests.nats_servers import NatsCluster, running_nats


@pytest.fixture
def settings(nats_server: NatsCluster, tmp_path: Path) -> NatsSettings:
    """A part of the shared server that no other test uses."""
    return prefixed(nats_server.url, part_of(tmp_path))


@pytest.fixture(scope="session")
def three_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with running_nats(tmp_path_factory.mktemp("cluster"), servers=3) as servers:
        yield servers


@pytest.fixture(autouse=True)
def patient_appends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for appends as long as servers may take to start or to elect a leader."""
    monkeypatch.setattr(jetstream_log, "APPEND_SECONDS", 600)


@pytest.fixture
def cluster(three_servers: NatsCluster) -> Iterator[NatsCluster]:
    """Three servers that all tests share; those that a test has stopped are started again."""
    yield three_servers
    three_servers.restore()


@pytest.fixture
def three_copies(cluster: NatsCluster, tmp_path: Path) -> NatsSettings:
    """A part of the shared cluster that no other test uses."""
    return prefixed(cluster.url, part_of(tmp_path))
