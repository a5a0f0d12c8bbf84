"""The page of `rsnotify demo`, in a real browser: it shows how a gap opens and closes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import aiohttp
import pytest

from tests.browser import Browser, Page
from tests.running import Running

PAGE = re.compile(r"^page +(http\S+)", re.MULTILINE)


@contextmanager
def running() -> Iterator[Running]:
    # So slow that it is in step on a busy machine, too: a gap is closed when no more than 3 changes
    # are on their way, which is what a third of a second brings.
    demo = Running([sys.executable, "-m", "rsnotify", "demo", "--rate", "8"], os.environ)
    try:
        yield demo
    finally:
        demo.stop()


async def shows(page: Page, part: str, state: str) -> None:
    await page.until(f"document.querySelector('#{part}').dataset.state == '{state}'")


async def logged(page: Page, kind: str, words: str) -> None:
    await page.until(
        f"""[...document.querySelectorAll('#story [data-kind="{kind}"]')]
            .some(item => item.innerText.includes({words!r}))"""
    )


async def squares(page: Page, held: str, *, at_least: int = 1) -> None:
    """Wait until so many resources are in a state."""
    await page.until(f"""document.querySelectorAll('[data-held="{held}"]').length >= {at_least}""")


async def test_the_page_shows_how_a_gap_opens_and_closes(browser: Browser) -> None:
    with running() as demo:
        await asyncio.to_thread(demo.says, PAGE)
        (url,) = PAGE.findall(demo.output())
        async with browser.open(url) as page:
            await use(page)
            demo.ask(signal.SIGINT)  # as Ctrl-C does
            code = await asyncio.to_thread(demo.ends)
            lines = demo.output().splitlines()[-8:]
            assert code == 0, lines
            assert any(line.startswith("in step") for line in lines), lines
            await shows(page, "connection", "lost")
            assert page.problems_but("network") == []


async def use(page: Page) -> None:
    await shows(page, "destination", "level")
    await shows(page, "push", "up")
    await squares(page, "s", at_least=40)

    await page.click('[data-action="cut"]')
    await shows(page, "push", "cut")
    await logged(page, "gap", "A gap opens")
    await logged(page, "push", "polls the Source")
    await page.until("document.querySelector('#pull').dataset.live == ''")
    await page.click('[data-action="restore"]')
    await shows(page, "push", "up")
    await logged(page, "level", "The gap is closed")

    await page.click('[data-action="stop"]')
    await shows(page, "destination", "stopped")
    await page.click('[data-action="flood"]')
    await squares(page, "m", at_least=400)
    # The number keeps growing, to `1,000` and more.
    behind = "document.querySelector('#behind').innerText.replaceAll(',', '')"
    await page.until(f"Number({behind}) >= 440")
    await page.click('[data-action="start"]')
    await squares(page, "s", at_least=480)
    await shows(page, "destination", "level")

    await page.click('[data-action="cut"]')
    await page.click('[data-action="stop"]')


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 204),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example:80"}, 403),
    ],
)
async def test_only_its_own_page_can_use_the_buttons(
    other_page: aiohttp.ClientSession, headers: dict[str, str], status: int
) -> None:
    async with other_page.post("/do/restore", headers=headers) as answer:
        assert answer.status == status


@pytest.fixture
async def other_page() -> AsyncIterator[aiohttp.ClientSession]:
    """Return a client of a page without frames."""
    from rsnotify_demo.demo import Facts, serve_page

    monitor = SimpleNamespace(actions={"restore": lambda: None})
    async with (
        serve_page(monitor, Facts("", "", "", 1.0), 0) as url,  # type: ignore[arg-type]
        aiohttp.ClientSession(url) as session,
    ):
        yield session


async def test_the_page_loads_and_runs_only_its_own_files(
    other_page: aiohttp.ClientSession,
) -> None:
    async with other_page.get("/") as answer:
        policy = answer.headers["Content-Security-Policy"]
        page = await answer.text()
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert not re.search(r"https?://|<style|\bon\w+=|style=", page)
    for name in re.findall(r'(?:src|href)="([^"#]+)"', page):
        async with other_page.get(f"/{name}") as answer:
            assert answer.status == 200
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
