"""The page of docs/browser.md, in a real browser and of another origin than the hub's."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from msgspec import Struct

from rsnotify_hub.config.loading import load_configuration
from tests.browser import Browser
from tests.hub.helpers import TOPIC, Client, RunHub, fragment, serving
from tests.ports import free_port
from tests.reader import ROOT, fences_of
from tests.waiting import PATIENCE

PAGE = (ROOT / "docs/browser.md").read_text()
LINES = "[...document.querySelectorAll('li')].map(each => each.textContent).join()"


class Site(Struct):
    """A web site with the page of the documentation, for a hub on a free port."""

    page: str
    port: int
    origin: str = ""

    async def show(self, request: web.Request) -> web.Response:
        if request.path != "/":
            return web.Response(status=204)
        return web.Response(text=self.page, content_type="text/html")


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    page, port = block("html"), free_port()
    assert len(page.strip().splitlines()) == 10
    assert f'"{TOPIC}"' in page
    found = Site(page.replace("https://hub.example/", f"http://127.0.0.1:{port}/"), port)
    async with serving(get=found.show) as found.origin:
        yield found


def shown(*seconds: int) -> str:
    lines = ",".join(f"updated https://source.example/data/{second}" for second in seconds)
    return f"{LINES} === '{lines}'"


async def test_the_page_shows_each_change_once_also_over_a_restart_of_the_hub(
    browser: Browser, run_hub: RunHub, site: Site
):
    async with browser.open("about:blank") as tab:
        async with run_hub(port=site.port, websocket_origins=[site.origin]) as hub:
            await hub.accepted(fragment(0, 1))
            await tab.goto(site.origin + "/")
            await tab.until(f"({LINES}, stream.readyState === EventSource.OPEN)")
            await hub.topics(lambda rows: rows[0]["event_streams"] == 1)
            await hub.accepted(fragment(1, 2), fragment(2, 3))
            await tab.until(shown(2, 3))
            assert tab.problems == []
        async with run_hub(port=site.port, websocket_origins=[site.origin]) as hub:
            await hub.accepted(fragment(3, 4))
            await tab.until(shown(2, 3, 4))
            await hub.accepted(fragment(4, 5))
            await tab.until(shown(2, 3, 4, 5))


async def test_the_page_says_that_changes_are_missing(
    browser: Browser, run_hub: RunHub, site: Site
):
    site.page = site.page.replace("${topic}", "${topic}&since=2025-12-31T00:00:00Z")
    async with (
        browser.open("about:blank") as tab,
        run_hub(port=site.port, websocket_origins=[site.origin]) as hub,
    ):
        await hub.accepted(fragment(0, 1))
        await tab.goto(site.origin + "/")
        await tab.until(f"{LINES}.startsWith('Some changes are missing.,updated ')")


def block(language: str) -> str:
    (found,) = [body for name, body in fences_of(PAGE) if name == language]
    return found


def test_the_setting_of_the_page_is_one(tmp_path: Path):
    file = tmp_path / "hub.toml"
    file.write_text(block("toml"))
    assert load_configuration(str(file)).websocket.websocket_origins == ("https://page.example",)


async def test_the_command_of_the_page_shows_changes(hub: Client):
    await hub.accepted(fragment(0, 1))
    command = shlex.split(block("sh").replace("https://hub.example/", hub.url))
    assert command[0] == "curl"
    curl = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(PATIENCE):
        await hub.topics(lambda rows: rows[0]["event_streams"] == 1)
        await hub.accepted(fragment(400 * 86_400, 400 * 86_400 + 1))
        while b"<url>" not in await curl.stdout.readline():
            pass
    curl.terminate()
    await curl.wait()
