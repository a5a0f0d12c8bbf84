"""The driver itself: it sees what goes wrong in a page, and does what a person would."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from tests.browser import Browser, BrowserError, Page, Problem
from tests.publisher.helpers import serving

PAGE = """<!DOCTYPE html><html lang="en"><title>test</title>
<meta name="viewport" content="width=device-width">
<h1>Hello</h1>
<button disabled>not yet</button>
<input aria-label="name">
<p id="scheme"></p>
<script src="script.js"></script>
"""
SCRIPT = """
const button = document.querySelector("button");
setTimeout(() => { button.disabled = false }, 30);
button.onclick = event => { button.textContent = event.isTrusted ? "clicked" : "pretended" };
document.querySelector("input").onkeydown = event => { document.title = event.key };
const dark = matchMedia("(prefers-color-scheme: dark)").matches;
document.querySelector("#scheme").textContent = `${dark ? "dark" : "light"} ${innerWidth}`;
"""


@asynccontextmanager
async def site(script: str = SCRIPT) -> AsyncIterator[str]:
    async def page(request: web.Request) -> web.Response:
        policy = {"Content-Security-Policy": "default-src 'none'; script-src 'self'"}
        return web.Response(text=PAGE, content_type="text/html", headers=policy)

    async def code(request: web.Request) -> web.Response:
        return web.Response(text=script, content_type="text/javascript")

    async def icon(request: web.Request) -> web.Response:
        return web.Response(status=204)

    app = web.Application()
    app.router.add_get("/", page)
    app.router.add_get("/script.js", code)
    app.router.add_get("/favicon.ico", icon)
    async with serving(app) as url:
        yield url + "/"


async def clicks_types_and_presses(page: Page) -> None:
    await page.click("button")
    assert await page.text("button") == "clicked"
    await page.click("input")
    await page.type("canary")
    await page.press("Enter")
    assert await page.evaluate("[document.querySelector('input').value, document.title]") == [
        "canary",
        "Enter",
    ]


async def test_it_acts_like_a_user(browser: Browser, tmp_path: Path):
    async with site() as url, browser.open(url, width=400, dark=True) as page:
        assert await page.text("#scheme") == "dark 400"
        await clicks_types_and_presses(page)
        assert ("heading", "Hello") in await page.spoken()
        await page.screenshot(tmp_path / "page.png", whole=True)
        assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
        assert page.problems == []
        with pytest.raises(BrowserError, match=r"not within 0.2 s: 1 > 2\nHello"):
            await page.until("1 > 2", seconds=0.2)


async def test_it_reports_errors_of_the_page(browser: Browser):
    script = """
    console.error("told");
    setTimeout(() => { throw new Error("thrown") });
    document.body.insertAdjacentHTML("beforeend", "<img src=x onerror=alert(2)>");
    fetch("/elsewhere").catch(() => {});
    alert("hi");
    """
    async with site(script) as url, browser.open(url) as page:
        await page.evaluate("new Promise(resolve => setTimeout(resolve))")
        kinds = [problem.kind for problem in page.problems]
    assert Problem("console", "told") in page.problems
    assert Problem("dialog", "hi") in page.problems
    assert kinds.count("exception") == 1
    assert kinds.count("csp") >= 2
    assert kinds.count("dialog") == 1


async def test_tabs_share_nothing(browser: Browser):
    async with site() as url, browser.open(url) as one, browser.open(url) as other:
        await one.evaluate("sessionStorage.canary = localStorage.canary = 1")
        assert await other.evaluate("sessionStorage.length + localStorage.length") == 0
