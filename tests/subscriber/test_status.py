"""The metrics and the status of followed Sources: in a registry, over HTTP, in a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest
import typer
from prometheus_client import CollectorRegistry

from rsnotify.errors import ConfigurationError, Unavailable
from rsnotify.runtime.listening import address, listen
from rsnotify.runtime.status_endpoints import serving_status
from rsnotify.sync.doubts import DoubtKind
from rsnotify_subscriber import Fleet, FollowMetrics, PushState, Status
from rsnotify_subscriber.commands.follow_status import routes, show_status
from rsnotify_subscriber.fleet.fleet import FollowedSourceStatus, Phase, Standing, standing
from rsnotify_subscriber.metrics import not_ready
from tests.axe import barriers
from tests.browser import Browser
from tests.subscriber.destination import PATIENCE, Destination
from tests.subscriber.hub import SmallHub, push
from tests.subscriber.source import SmallSource

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LONG_AGO = datetime.now(UTC) - timedelta(hours=2, minutes=1)
HTML = "<img src=x onerror=alert(1)>"


def followed(
    phase: Phase = Phase.FOLLOWED, error: str | None = None, **status: Any
) -> FollowedSourceStatus:
    kinds = tuple(status.pop("kinds", ()))
    doubts = tuple(f"doubt about {kind}" for kind in kinds)
    found = Status(doubt_kinds=kinds, doubts=doubts, **{"through": AT} | status)
    return FollowedSourceStatus(phase, found, error, "http://source.example/")


LEVEL = followed(level=True, push=PushState.UP, way=("ws://hub.example/ws",), resources=5)
BEHIND = followed(kinds=[DoubtKind.WAITING], behind_since=LONG_AGO, pending=1_000)
DOUBT = followed(
    kinds=[DoubtKind.UNCOVERED_GAP], behind_since=LONG_AGO, push=PushState.DOWN, error=HTML
)


class FixedFleet(Fleet):
    """A fleet whose Sources have statuses that a test gives."""

    def __init__(self, **sources: FollowedSourceStatus) -> None:
        super().__init__()
        self.sources = sources

    @property
    def status(self) -> dict[str, FollowedSourceStatus]:
        return self.sources


@asynccontextmanager
async def serving(fleet: Fleet) -> AsyncIterator[str]:
    with listen("127.0.0.1", 0) as listener:
        collect = FollowMetrics(fleet).collect
        async with serving_status(listener, collect, lambda: not_ready(fleet), *routes(fleet)):
            yield address("127.0.0.1", listener)


@pytest.mark.parametrize(
    ("one", "stands"),
    [
        (LEVEL, Standing.LEVEL),
        (followed(level=True, in_step=True, error="a hub is away"), Standing.LEVEL),
        (followed(kinds=[DoubtKind.WAITING]), Standing.LEVEL),  # for less than a second
        (followed(level=True, in_step=False), Standing.DOUBT),
        (followed(kinds=[DoubtKind.UNAVAILABLE]), Standing.DOUBT),
        (BEHIND, Standing.BEHIND),
        (followed(kinds=[DoubtKind.COMPARING], behind_since=AT), Standing.BEHIND),
        (followed(Phase.WAITING, behind_since=AT), Standing.BEHIND),
        (followed(behind_since=AT, error="the Source is away"), Standing.DOUBT),
        (followed(kinds=[DoubtKind.WAITING, DoubtKind.FILES], behind_since=AT), Standing.DOUBT),
        (followed(Phase.FAILED, level=True), Standing.DOUBT),
    ],
)
def test_a_copy_is_level_behind_or_in_doubt(one: FollowedSourceStatus, stands: Standing) -> None:
    assert standing(one) is stands
    ready = not_ready(FixedFleet(a=one))
    assert (ready == "") is (stands is Standing.LEVEL)


@pytest.mark.parametrize(
    ("sources", "sentence"),
    [
        ({"a": LEVEL, "b": LEVEL}, ""),
        ({"a": BEHIND}, "not level: doubt about changes-waiting"),
        ({"a": followed(behind_since=AT, error="away")}, "not level: away"),
        ({"a": followed(behind_since=AT)}, "not level: the Source has not been read yet"),
        ({"a": LEVEL, "b": BEHIND, "c": DOUBT}, "not level: 2 of 3 Sources: b, c"),
        (dict.fromkeys("abcd", DOUBT), "not level: 4 of 4 Sources: a, b, c, …"),
    ],
)
def test_the_reason_why_a_follower_is_not_ready(
    sources: dict[str, FollowedSourceStatus], sentence: str
) -> None:
    assert not_ready(FixedFleet(**sources)) == sentence


def read(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    return {
        (sample.name.removeprefix("rsnotify_follow_"), *sample.labels.values()): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


@pytest.mark.usefixtures("some_content")
async def test_the_metrics_of_a_subscriber_in_a_registry_that_another_thread_reads(
    source: SmallSource, hub: SmallHub, destination: Destination
) -> None:
    source.hubs = [hub.url]
    registry, url = CollectorRegistry(auto_describe=True), source.url
    expected = {
        ("level", url): 1,
        ("behind_seconds", url): 0,
        ("push_up", url): 1,
        ("pending", url): 0,
        ("resources", url): 6,
        ("copied_total",): 5,
        ("lag_seconds_count",): 1,
        ("baselines_total",): 1,
        ("pulls_total", "Resource List"): 1,
        ("doubts", "offer"): 0,
        ("fragments_total",): 1,
    }
    async with destination.following() as subscriber:
        FollowMetrics(subscriber, registry=registry)
        source.put("new", b"pushed")
        await push(source, hub)
        async with asyncio.timeout(PATIENCE):
            while True:
                found = await asyncio.to_thread(read, registry)
                if expected.items() <= found.items():
                    break
                await asyncio.sleep(0.01)
        with pytest.raises(ValueError, match="Duplicated"):
            registry.register(FollowMetrics(subscriber))
    through = subscriber.status.through
    assert through is not None
    assert 0 < found["through_timestamp_seconds", url] <= through.timestamp()
    for name in ("fragment_bytes_total", "commit_seconds_count"):
        assert found[name,] >= 1
    assert found["requests_total", "2xx"] >= 6
    assert found["received_bytes_total",] > 100


@pytest.mark.parametrize(
    ("path", "host", "status", "text"),
    [
        ("healthz", "", 200, "ok\n"),
        ("readyz", "", 503, "not level: 1 of 2 Sources: maps\n"),
        ("metrics", "", 200, 'rsnotify_follow_level{source="maps"} 0.0\n'),
        ("metrics", "localhost", 200, "process_resident_memory_bytes"),
        ("status", "", 200, '"standing":"doubt"'),
        ("status", "evil.example", 403, "use the address of this server, or localhost\n"),
        ("", "", 200, "<!doctype html>"),
        ("other", "", 404, ""),
    ],
)
async def test_the_status_over_http(path: str, host: str, status: int, text: str) -> None:
    headers = {"Host": host} if host else {}
    async with (
        serving(FixedFleet(maps=DOUBT, birds=LEVEL)) as url,
        aiohttp.ClientSession(headers=headers) as session,
        session.get(url + path) as response,
    ):
        assert response.status == status
        assert text in await response.text()
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]


async def test_the_page_shows_how_each_copy_stands_and_the_details_on_a_click(
    browser: Browser,
) -> None:
    fleet = FixedFleet(maps=LEVEL, birds=BEHIND, plants=DOUBT)
    async with serving(fleet) as url, browser.open(url) as page:
        await page.until("document.querySelectorAll('#sources button').length === 3")
        assert await page.text("#summary") == "1 of 3 Sources level, 1 behind, 1 in doubt"
        names = {name for role, name in await page.spoken() if role == "button"}
        assert names == {"maps: level", "birds: behind", "plants: doubt"}
        await page.click("#sources li:nth-child(3) button")
        await page.until("document.activeElement.id === 'name'")
        details = await page.text("#details")
        for part in (
            "the copy may be wrong, for 2 hours",
            HTML,
            "doubt about uncovered-gap",
            "http://source.example/",
            "by polling: no hub can be reached",
        ):
            assert part in details
        assert await barriers(page) == []
        await page.view(390, 800, dark=True)
        assert await barriers(page) == []
        fleet.sources = {"maps": LEVEL}
        await page.until("document.querySelectorAll('#sources button').length === 1")
        await page.until("document.querySelector('#details').hidden")
        await page.click("#sources button")
        await page.until("!document.querySelector('#details').hidden")
        assert "by push, from ws://hub.example/ws" in await page.text("#details")
        assert page.problems == []


@pytest.mark.parametrize(
    ("sources", "lines", "code"),
    [
        (
            {"maps": LEVEL, "plants": DOUBT},
            [
                "level   maps  synced through 2026-01-02 03:04:05Z",
                f"doubt   plants  synced through 2026-01-02 03:04:05Z: {HTML}",
                "1 of 2 Sources level, 1 in doubt",
            ],
            1,
        ),
        (
            {"maps": LEVEL},
            ["level   maps  synced through 2026-01-02 03:04:05Z", "1 of 1 Source level"],
            0,
        ),
        (
            {"new": followed(error="no answer in time", through=None)},
            ["doubt   new  not synced yet: no answer in time", "0 of 1 Source level, 1 in doubt"],
            1,
        ),
    ],
)
async def test_another_command_shows_the_status(
    sources: dict[str, FollowedSourceStatus],
    lines: list[str],
    code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with serving(FixedFleet(**sources)) as url:
        found = 0
        for place in (url, url + "status", url.rstrip("/").rpartition(":")[2]):
            try:
                await asyncio.to_thread(show_status, place, json=False)
            except typer.Exit as ended:
                found = ended.exit_code
            assert capsys.readouterr().out.splitlines() == lines
            assert found == code


async def test_a_status_that_is_not_there_is_an_error_with_a_remedy() -> None:
    with pytest.raises(ConfigurationError, match="is neither a port nor a URL"):
        show_status("ftp://a.example/", json=False)
    with pytest.raises(Unavailable, match="--status-port, and use that port"):
        await asyncio.to_thread(show_status, "1", json=False)
