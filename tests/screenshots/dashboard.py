"""The dashboard of a hub that four Sources publish to, with a history and a failing subscriber."""

from __future__ import annotations

import asyncio
import math
import random
import socket
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import aiohttp
import msgspec

from rsnotify.format.model import ChangeType, Document, Link, Resource
from rsnotify.format.writer import write_document
from rsnotify_hub.admin.history import DAY, QUARTER, WEEK
from rsnotify_hub.admin.schemas import HistoryInfo, MinuteInfo
from rsnotify_hub.application import serve
from rsnotify_hub.config.loading import load_configuration
from tests.browser import Browser, Page
from tests.hub.helpers import Client, callback_server
from tests.screenshots.images import both, take

SHOWS = ("hub/rsnotify_hub/admin/static",)

_CALLBACKS = ("search.example/updates", "catalogue.example/changes", "aggregator.example/rs")
_FAILING = _CALLBACKS[-1]
_KINDS = [ChangeType.UPDATED] * 8 + [ChangeType.CREATED, ChangeType.DELETED]
_PROBLEM = "The database of this aggregator is being moved. It is back at 14:00.\n"


class _Source:
    """A Source that publishes a change now and then."""

    def __init__(self, base: str, name: str, rate: float) -> None:
        self._base, self._name, self._rate = base, name, rate
        self._through: datetime | None = None
        self.topic = f"{base}channel.xml"

    async def run(self, client: Client, clock: _Clock) -> None:
        while True:
            await self.publish(client, clock())
            await asyncio.sleep(random.expovariate(self._rate))

    async def publish(self, client: Client, at: datetime) -> None:
        change = Resource(
            uri=self._base + self._name.format(random.randrange(1000, 99_000)),
            change=random.choice(_KINDS),
            datetime=at,
            length=random.randrange(300, 9000),
        )
        document = Document(
            capability="change-notification",
            from_=self._through or at - timedelta(seconds=1),
            until=at,
            links=(Link(rel="up", href=f"{self._base}capabilitylist.xml"),),
            resources=(change,),
        )
        self._through = at
        await client.accepted(write_document(document), topic=self.topic)


class _Clock:
    """Is behind by `ago`, so that a picture can show what began some time ago."""

    ago = timedelta(days=9, hours=4)

    def __call__(self) -> datetime:
        return datetime.now(UTC) - self.ago


async def pictures(browser: Browser, folder: Path, scratch: Path) -> None:
    async with _running_hub(scratch) as url:
        async with both(browser, f"{url}#range=24h", 1230, 1222) as pages:
            await _loaded(pages)
            await take(pages, folder, "dashboard")
        async with both(browser, url, 1080, 800) as pages:
            await _loaded(pages)
            for page in pages:
                await page.click("#failures .callback")
                await page.until("document.querySelector('#details .sent')")
            await take(pages, folder, "details")


async def _loaded(pages: list[Page]) -> None:
    for page in pages:
        await page.until("document.querySelectorAll('#subscriptions tbody tr').length === 3")
        await page.until("document.querySelectorAll('.change').length > 8")
        await page.evaluate("document.querySelector('#host').innerText = 'hub.example'")
    await asyncio.sleep(4)  # for the rates


@asynccontextmanager
async def _running_hub(scratch: Path) -> AsyncIterator[str]:
    data, clock = scratch / "hub", _Clock()
    _write_history(data / "history.json", clock)
    configuration = load_configuration(
        None, port=0, data=str(data), allow_private_addresses=True, retry_seconds=2
    )
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        places: dict[str, int] = {}
        stack.enter_context(_resolving(places))
        hub = await enter(serve(configuration, clock=clock))
        session = await enter(aiohttp.ClientSession())
        client = await enter(Client(hub, session))
        clock.ago = timedelta(minutes=6)
        sources = _sources()
        await _subscribe(client, sources, places, stack)
        # Only the failing callback gets a delivery before the clock moves.
        await sources[len(_CALLBACKS) - 1].publish(client, clock())
        await client.subscriptions(lambda rows: any(row["failures"] > 2 for row in rows))
        clock.ago = timedelta(0)
        for source in sources:
            _run(source.run(client, clock), stack)
        yield hub


def _sources() -> list[_Source]:
    return [
        _Source("https://data.museum.example/objects/", "object-{}.ttl", 11.0),
        _Source("https://air.city.example/stations/", "station-{}.json", 6.0),
        _Source("https://theses.university.example/", "thesis-{}.xml", 2.0),
        _Source("https://library.example/authorities/", "person-{}.rdf", 0.7),
    ]


async def _subscribe(
    client: Client, sources: list[_Source], places: dict[str, int], stack: AsyncExitStack
) -> None:
    """Subscribe over WebSocket to each Source, and by a callback to each but the last."""
    for source in sources:
        _run(_read(await client.listen(topic=source.topic)), stack)
    for source, address in zip(sources, _CALLBACKS, strict=False):
        callback = await stack.enter_async_context(callback_server())
        host = address.partition("/")[0]
        places[host] = int(callback.url.split(":")[2].partition("/")[0])
        callback.url = f"http://{address}"
        if address == _FAILING:
            callback.answers, callback.words = [503] * 1000, _PROBLEM
        await client.form(mode="subscribe", topic=source.topic, callback=callback.url)
        await callback.intent()


def _run(work: Coroutine[Any, Any, None], stack: AsyncExitStack) -> None:
    task = asyncio.create_task(work)

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(end)


async def _read(reader: aiohttp.ClientWebSocketResponse) -> None:
    async for _ in reader:
        pass


@contextmanager
def _resolving(places: dict[str, int]) -> Iterator[None]:
    """Resolve these host names to ports of this machine."""
    real = socket.getaddrinfo

    def answer(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        if host in places:
            host, port = "127.0.0.1", places[host]
        return real(host, port, *arguments, **options)

    with patch("socket.getaddrinfo", answer):
        yield


def _write_history(file: Path, clock: _Clock) -> None:
    """Write a week of days and nights, in which a subscriber was once in trouble."""
    now = int(datetime.now(UTC).timestamp()) // 60
    draw = random.Random(7)

    def row(minute: int, length: int) -> MinuteInfo:
        hour = minute / 60 % 24
        rate = 12 + 9 * math.sin((hour - 9) / 24 * 2 * math.pi) + draw.uniform(-1.5, 1.5)
        accepted = round(60 * rate * length)
        bad = now - 430 <= minute < now - 365 or minute > now - 6
        failed = draw.randrange(3, 9) * length if bad else 0
        lag = draw.uniform(0.02, 0.2)
        p99 = 60.0 * (minute - now + 430) if bad and minute < now - 100 else 6 * lag
        return MinuteInfo(
            minute, accepted, 2 * accepted, failed, 7, int(bad), 60 * length, lag, p99,
            (draw.randrange(60) == 0) * draw.randrange(1, 9), int(draw.randrange(90) == 0),
            (draw.randrange(120) == 0) * draw.randrange(8000),
        )  # fmt: skip

    minutes = tuple(row(minute, 1) for minute in range(now - DAY + 1, now))
    quarters = [row(minute, QUARTER) for minute in range(now - WEEK + QUARTER, now, QUARTER)]
    content: dict[str, Any] = msgspec.to_builtins(HistoryInfo(minutes, quarters))
    file.parent.mkdir()
    file.write_bytes(msgspec.json.encode({"version": 2, **content}))
