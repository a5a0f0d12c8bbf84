"""Pictures of the running demo and of its hub's dashboard, with a subscription in trouble.

    python -m tests.screenshots FOLDER

writes demo, dashboard and details as PNG files, each in light, dark and on a phone.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp

from rsnotify.runtime.processes import Process
from tests.browser import Browser, Page, connect
from tests.chromium import running_chromium
from tests.hub.helpers import PATIENCE, Client, callback_server

#: The window of each form: width, height, and whether it is dark.
FORMS = {"light": (1360, 900, False), "dark": (1360, 900, True), "phone": (390, 844, False)}
PAGES = ("demo", "dashboard", "details")

_PROBLEM = "The database of this aggregator is being moved. It is back at 14:00.\n"


@asynccontextmanager
async def _running_demo(folder: Path) -> AsyncIterator[tuple[str, str]]:
    os.environ["RSNOTIFY_HUB_ALLOW_PRIVATE_ADDRESSES"] = "1"  # the callbacks are on this machine
    demo = await Process.start("demo", log=folder / "demo.log")
    urls: dict[str, str] = {}
    try:
        async with asyncio.timeout(PATIENCE):
            async for line in demo.lines():
                if found := re.match(r"(\w+) +(http\S+)", line):
                    urls[found[1]] = found[2]
                if "page" in urls:
                    break
        yield urls["hub"], urls["page"]
    finally:
        await demo.stop()


async def _subscribe(hub: Client, stack: AsyncExitStack) -> None:
    """Make two subscriptions, one of which is in trouble."""
    topics = await hub.topics(lambda rows: any(row["rate"] > 1 for row in rows))
    topic = max(topics, key=lambda row: float(row["rate"]))
    for path, answers in (("/resourcesync/updates", []), ("/push/4f1c9a2e7b", [503] * 10_000)):
        callback = await stack.enter_async_context(callback_server())
        callback.url = callback.url.removesuffix("/callback") + path
        callback.answers, callback.words = answers, _PROBLEM
        await hub.form(mode="subscribe", topic=topic["topic"], callback=callback.url)
        await callback.intent()
    await hub.subscriptions(lambda rows: any(row["failures"] > 1 for row in rows))


async def _open(page: Page, name: str) -> None:
    if name == "demo":
        await page.until("document.querySelectorAll('#story li').length > 0")
        return
    await page.until("document.querySelectorAll('#subscriptions tbody tr').length === 2")
    await page.until("document.querySelectorAll('.change').length > 8")
    if name == "details":
        await page.click("#failures .callback")
        await page.until("document.querySelector('#details .sent')")


async def take(browser: Browser, urls: dict[str, str], folder: Path) -> None:
    for form, (width, height, dark) in FORMS.items():
        for name in PAGES:
            url = urls[name]
            async with browser.open(url, width=width, height=height, dark=dark) as page:
                await _open(page, name)
                await asyncio.sleep(4)  # for some history in the charts
                file = folder / f"{name}-{form}.png"
                # Of a phone, what it shows; a dialog covers no more than that.
                await page.screenshot(file, whole=form != "phone" and name != "details")
                print(file)


async def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        hub_url, page_url = await stack.enter_async_context(_running_demo(scratch))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        await _subscribe(Client(hub_url, session), stack)
        chromium = stack.enter_context(running_chromium())
        browser = await stack.enter_async_context(connect(chromium))
        await take(browser, {"demo": page_url, "dashboard": hub_url, "details": hub_url}, folder)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("name the folder for the pictures: python -m tests.screenshots FOLDER")
    asyncio.run(main(Path(sys.argv[1])))
