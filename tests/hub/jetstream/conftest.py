from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from rsnotify_jetstream import jetstream_log
from rsnotify_jetstream.nats_settings import NatsSettings
from tests.hub.helpers import Clock
from tests.hub.jetstream.callbacks import CallbackPorts, callback_ports
from tests.hub.jetstream.hubs import SHORT_LEASES, Hubs, running_hubs
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


@pytest.fixture
async def hubs(settings: NatsSettings, clock: Clock) -> AsyncIterator[Hubs]:
    async with running_hubs(settings, clock) as running:
        yield running


@pytest.fixture
async def mortal_hubs(settings: NatsSettings, clock: Clock) -> AsyncIterator[Hubs]:
    """Hubs, some of which end without releasing what they own."""
    async with running_hubs(settings, clock, SHORT_LEASES) as running:
        yield running


@pytest.fixture
async def callbacks() -> AsyncIterator[CallbackPorts]:
    async with callback_ports(12) as ports:
        yield ports
