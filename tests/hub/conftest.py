from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rsnotify_hub.application import serve
from rsnotify_hub.config.loading import load_configuration
from rsnotify_hub.live.connections import KeepAlive
from rsnotify_hub.topic_log import TopicLogs
from tests.hub.deliveries import Deliveries, opened_channel
from tests.hub.helpers import ADMIN, Callback, Client, Clock, LogWatch, RunHub, callback_server
from tests.hub.storing import Listener, logs
from tests.nats_servers import NatsCluster, running_nats

#: Long timeouts, so that tests pass on a slow machine; tests of timeouts set their own.
PATIENT = {
    "header_seconds": 600,
    "request_seconds": 600,
    "callback_seconds": 600,
    "websocket_ping_seconds": 600,
}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    """One NATS server, which all tests share."""
    with running_nats(tmp_path_factory.mktemp("nats")) as server, pytest.MonkeyPatch.context() as m:
        m.setattr("rsnotify_jetstream.jetstream_log.APPEND_SECONDS", 600)
        yield server


@pytest.fixture
async def watch() -> Any:
    handler = LogWatch()
    logger = logging.getLogger("rsnotify.hub")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


@pytest.fixture
def run_hub(tmp_path: Path, clock: Clock) -> RunHub:
    """Run a hub on a free port, over the test's folder; called again, over the same."""

    @asynccontextmanager
    async def run(**settings: Any) -> AsyncIterator[Client]:
        defaults = {
            "port": 0,
            "data": str(tmp_path / "hub"),
            "allow_private_addresses": True,
            "retry_seconds": 0.01,
            **PATIENT,
        }
        settings = {**defaults, **settings}
        if needs_token := "publishers" in settings:
            settings.setdefault("admins", [{"token": ADMIN}])
        configuration = load_configuration(None, **settings)
        async with (
            serve(configuration, clock=clock) as url,
            aiohttp.ClientSession() as session,
            Client(url, session, needs_token=needs_token) as client,
        ):
            yield client

    return run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The folder of the fixture `hub`."""
    return tmp_path / "hub"


@pytest.fixture
async def hub(run_hub: RunHub) -> AsyncIterator[Client]:
    async with run_hub() as client:
        yield client


@pytest.fixture
def nats_settings(nats_server: NatsCluster, tmp_path: Path) -> Any:
    """A part of the shared server that no other test uses."""
    from tests.hub.jetstream.nodes import prefixed  # only here: the hub works without NATS

    name = "".join(char if char.isalnum() else "-" for char in tmp_path.name)
    return prefixed(nats_server.url, name[-60:])


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Check each live connection of the hub once; the hub itself never does."""
    made: list[KeepAlive] = []
    monkeypatch.setattr(KeepAlive, "_schedule", lambda keep_alive: made.append(keep_alive))

    def check_all() -> None:
        for connection in made[0].connections():
            connection.check()

    return check_all


@pytest.fixture
async def callback() -> AsyncIterator[Callback]:
    async with callback_server() as server:
        yield server


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
async def topics(tmp_path: Path, clock: Clock, listener: Listener) -> AsyncIterator[TopicLogs]:
    async with logs(tmp_path, clock, listener=listener) as (opened, _):
        yield opened


@pytest.fixture
async def deliveries(tmp_path: Path, clock: Clock) -> AsyncIterator[Deliveries]:
    async with opened_channel(tmp_path, clock) as opened:
        yield opened


@pytest.fixture
async def slow_retries(tmp_path: Path, clock: Clock) -> AsyncIterator[Deliveries]:
    """As `deliveries`, but no failed attempt is repeated within a test."""
    async with opened_channel(tmp_path, clock, retry_seconds=3600) as opened:
        yield opened
