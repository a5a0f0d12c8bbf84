"""Other hubs: hubs that accept only the publish ping, and hubs that refuse the Source."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import pytest
from aiohttp import web
from msgspec.structs import replace

from rsnotify.format.reader import read_document
from rsnotify_publisher import Publisher, parse_hub
from tests.publisher.helpers import BASE, PATIENCE, QUICK, FakeHub, quick_publisher, serving

CHANNEL = BASE + "channel.xml"


class PingedHub:
    """Accepts only forms, and fetches a topic from the folder of documents when it is pinged.

    Args:
        documents: Where the topics are.
        refuses_with: How it answers posted content.
    """

    def __init__(self, documents: Path, refuses_with: int = 400) -> None:
        self._documents = documents
        self._refuses_with = refuses_with
        self.answers_pings_with = 204
        self.posted = 0
        self.pings: list[str] = []
        self.seen: set[str] = set()
        self.url = ""
        self._news = asyncio.Condition()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        app = web.Application()
        app.router.add_post("/hub", self._answer)
        async with serving(app) as url:
            self.url = url + "/hub"
            yield self

    async def _answer(self, request: web.Request) -> web.Response:
        form = await request.post()
        topic = str(form.get("hub.topic"))
        async with self._news:
            if form.get("hub.mode") != "publish":
                self.posted += 1
                self._news.notify_all()
                return web.Response(status=self._refuses_with, text="hub.mode is missing")
            if self.answers_pings_with == 204:
                assert form.get("hub.url") == topic
                name = topic.removeprefix(BASE)
                document = read_document((self._documents / name).read_bytes())
                self.seen |= {entry.uri for entry in document.resources}
            self.pings.append(topic)
            self._news.notify_all()
        return web.Response(status=self.answers_pings_with)

    async def until(self, happened: Callable[[], object]) -> None:
        async with self._news, asyncio.timeout(PATIENCE):
            await self._news.wait_for(happened)


@pytest.fixture
async def pinged(tmp_path: Path) -> AsyncIterator[PingedHub]:
    async with PingedHub(tmp_path / "state/documents").running() as hub:
        yield hub


async def test_a_hub_that_accepts_only_the_ping_fetches_every_change(
    tmp_path: Path, pinged: PingedHub, caplog: pytest.LogCaptureFixture
):
    async with quick_publisher(tmp_path / "state", pinged.url, refresh=0.2) as publisher:
        for name in ("a", "b", "c"):
            await publisher.aupdated(BASE + name)
            await pinged.until(lambda uri=BASE + name: uri in pinged.seen)
        # The same for notices of documents.
        await pinged.until(lambda: BASE + "resourcelist.xml" in pinged.seen)
    assert pinged.posted <= 2, "once on each channel"
    assert not caplog.records


async def test_a_program_pings_for_its_last_change_before_it_ends(
    tmp_path: Path, pinged: PingedHub
):
    async with quick_publisher(tmp_path / "state", pinged.url, refresh=60) as publisher:
        assert await publisher.await_published(PATIENCE)
        await publisher.aupdated(BASE + "last")
    assert BASE + "last" in pinged.seen
    with publisher.source.open_journal() as journal:
        assert journal.cursor(pinged.url) >= journal.state().last_change


async def test_a_failed_ping_is_retried(tmp_path: Path, pinged: PingedHub):
    async with quick_publisher(tmp_path / "state", pinged.url) as publisher:
        await publisher.aupdated(BASE + "a")
        await pinged.until(lambda: BASE + "a" in pinged.seen)
        pinged.answers_pings_with = 503
        count = len(pinged.pings)
        await publisher.aupdated(BASE + "b")
        await pinged.until(lambda: len(pinged.pings) > count)
        pinged.answers_pings_with = 204
        await pinged.until(lambda: BASE + "b" in pinged.seen)


GRANT = f"give the Source a token that the hub accepts for {CHANNEL}"
REPLACE = f"it answered 403 .*the hub does not accept this token for {CHANNEL}: replace the token"


NO_TOKEN = "(?!.*give the Source a token)"
#: What a hub does, the path of its URL, the Source's token, and the expected log message.
REFUSALS: list[tuple[dict[str, Any], str, str | None, str]] = [
    ({"refuse_with": 401}, "websub", None, f"it answered 401 .*{GRANT}"),
    ({"refuse_with": 403}, "websub", None, f"it answered 403 .*{GRANT}"),
    ({"refuse_with": 404}, "websub", None, "it answered 404 .*check the hub's URL"),
    ({"refuse_with": 413}, "websub", None, "it answered 413 .*lower `fragment_bytes`"),
    (
        *({"refuse_with": 400}, "websub", None),
        "it answered 400 .*check the hub's URL, and whether the hub accepts this Source",
    ),
    (
        *({"refuse_with": 403}, "websub", "secret"),
        f"{REPLACE}.* or remove it if the hub requires none",
    ),
    (
        *({"refuse_with": 503}, "websub", None),
        "changes wait in the journal until it accepts them$",
    ),
    ({"refuse_with": 401}, "", None, "it answered 401 .*give the Source a token"),
    ({"refuse_with": 403}, "", None, "it answered 403 .*give the Source a token"),
    (
        {"refuse_with": 308, "location": "/new"},
        "websub",
        None,
        r"change the hub's URL to http://\S+:\d+/new",
    ),
    (
        {"answer_with": '{"type": "error", "code": "forbidden", "message": "not you"}'},
        *("", None, "it answered forbidden: not you.*give the Source a token"),
    ),
    (
        {"answer_with": '{"type": "subscribed"}'},
        *("", None, f"it answered the publish request with 'subscribed'{NO_TOKEN}"),
    ),
    (
        {"answer_with": '{"type": "publishing", "through": "yesterday"}'},
        *("", None, f"it sent 'yesterday' as through, which is not a datetime{NO_TOKEN}"),
    ),
    ({"answer_with": "nonsense"}, "", None, f"it sent an invalid control frame: {NO_TOKEN}"),
]


@pytest.mark.parametrize(("does", "path", "token", "said"), REFUSALS)
async def test_the_remedy_for_a_refusal_is_logged(
    tmp_path: Path,
    hub: FakeHub,
    does: dict[str, Any],
    path: str,
    token: str | None,
    said: str,
    caplog: pytest.LogCaptureFixture,
):
    for name, value in does.items():
        setattr(hub, name, value)
    async with quick_publisher(
        tmp_path / "state", parse_hub(hub.url + path, token), grace=0, framework=False
    ) as publisher:
        await publisher.aupdated(BASE + "a")
        await hub.until(lambda: len(hub.headers) > 2)
    (warning,) = [
        each.getMessage()
        for each in caplog.records
        if each.levelno >= logging.WARNING and each.name == "rsnotify.publisher"
    ]
    assert re.search(said, warning), warning
    assert "secret" not in warning


async def test_the_remedy_is_logged_if_a_restarted_hub_refuses_the_source(
    tmp_path: Path, hub: FakeHub, caplog: pytest.LogCaptureFixture
):
    hubs, options = [parse_hub(hub.url)], replace(QUICK, grace=0)
    async with Publisher(tmp_path / "state", BASE, hubs=hubs, options=options) as publisher:
        await publisher.aupdated(BASE + "a")
        await hub.has(BASE + "a")
        hub.refuse_with = 401
        await hub.stop()
        await hub.start()
        refused = len(hub.headers)
        await hub.until(lambda: len(hub.headers) > refused + 3)
    warnings = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert sum("give the Source a token" in each for each in warnings) == 1
