"""What the hub says of the NATS servers at the start."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from rsnotify.format.datetimes import Instant
from rsnotify_hub.application import serve
from rsnotify_hub.config.loading import load_configuration
from rsnotify_jetstream.jetstream_log import JetStreamLog
from rsnotify_jetstream.nats_settings import NatsSettings
from rsnotify_jetstream.server_check import ServerFacts, read_facts, warnings_of
from tests.hub.jetstream.nodes import Notified, connected
from tests.hub.storing import FOREVER
from tests.nats_servers import NatsCluster

GOOD = ServerFacts(
    outdated=None,
    max_payload=8_000_000,
    servers=3,
    offline=(),
    stream={"name": "rsnotify-log", "num_replicas": 3, "max_age": 0, "max_bytes": -1},
    storage=10,
    storage_limit=None,
    skew=timedelta(0),
)


def warnings(**changed: Any) -> list[str]:
    return warnings_of(replace(GOOD, **changed), largest_fragment=1_000_000)


def test_durability_per_write_cannot_be_seen_and_the_warning_says_what_to_set():
    (only,) = warnings()
    assert "cannot determine whether NATS flushes" in only
    assert "Set sync_interval: always" in only


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"stream": GOOD.stream | {"num_replicas": 1}}, "replicas=3"),
        ({"max_payload": 500_000}, "max_payload: 1016384"),
        ({"storage": 90, "storage_limit": 100}, "max_storage"),
        ({"stream": GOOD.stream | {"max_age": 5}}, "max_age"),
        ({"stream": GOOD.stream | {"max_bytes": 5}}, "max_bytes"),
        ({"outdated": "NATS 2.11 is too old"}, "too old"),
        ({"offline": ("n2",)}, "n2 of the 3 NATS servers"),
        ({"skew": timedelta(seconds=9)}, "9 seconds ahead of"),
        ({"skew": timedelta(seconds=-9)}, "9 seconds behind"),
    ],
)
def test_each_weakness_is_named_with_what_to_do(changed: dict[str, Any], expected: str):
    assert len([text for text in warnings(**changed) if expected in text]) == 1


@pytest.mark.parametrize("ahead", [0, 3600])
async def test_the_facts_are_read_from_a_server(settings: NatsSettings, ahead: float):
    def clock() -> Instant:
        return datetime.now(UTC) + timedelta(seconds=ahead)

    async with connected(settings) as connection:
        log = JetStreamLog(connection, FOREVER, clock)
        await log.start(Notified())
        facts = await read_facts(connection, log, clock)
        await log.close()
    assert facts.outdated is None
    assert facts.max_payload == 2**20
    assert (facts.servers, facts.offline, facts.stream["num_replicas"]) == (1, (), 1)
    assert facts.storage > 0
    assert abs(facts.skew + timedelta(seconds=ahead)) < timedelta(seconds=60)


async def test_the_time_of_a_check_that_another_node_has_stored_is_not_compared(
    settings: NatsSettings,
):
    class Overtaken(JetStreamLog):
        async def write_check(self) -> int:
            position = await super().write_check()
            await super().write_check()
            return position

    def clock() -> Instant:
        return datetime.now(UTC) - timedelta(hours=1)

    async with connected(settings) as connection:
        log = Overtaken(connection, FOREVER, clock)
        await log.start(Notified())
        assert (await read_facts(connection, log, clock)).skew == timedelta(0)
        await log.close()


async def test_of_two_hubs_the_one_whose_clock_is_wrong_warns_when_it_starts(
    nats_server: NatsCluster, settings: NatsSettings, caplog: pytest.LogCaptureFixture
):
    def warned(about: str) -> bool:
        found = about in caplog.text
        caplog.clear()
        return found

    def clock(wrong: timedelta) -> Callable[[], Instant]:
        return lambda: datetime.now(UTC) + wrong

    store = f"{nats_server.url}?prefix={settings.prefix}"
    configuration = load_configuration(None, port=0, store=store)
    async with serve(configuration, clock=clock(timedelta(0))):
        assert not warned("the clock of NATS")
        async with serve(configuration, clock=clock(timedelta(hours=1))):
            assert warned("seconds behind the clock of this hub: set the clocks")
        async with serve(configuration, clock=clock(-timedelta(hours=1))):
            assert warned("seconds ahead of the clock of this hub: set the clocks")
