"""The page of the demo: as a film of a gap that opens and closes, and as a picture after it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rsnotify.runtime.processes import Process
from tests.browser import Browser, Page
from tests.screenshots.images import Film, both, take
from tests.waiting import PATIENCE

SHOWS = ("extensions/demo/rsnotify_demo/static", "extensions/demo/rsnotify_demo/monitor.py")

#: Until the chart, which has a minute, no longer shows the start.
_START_SECONDS = 65
#: The lag, once the browser itself no longer slows the demo.
_CALM = """(text => parseFloat(text) < 10 && text)(document.querySelector("#lag").innerText)"""
_LEVEL = "document.querySelector('#destination').dataset.state === 'level'"
_BEHIND = "Number(document.querySelector('#behind').innerText.replace(',', ''))"

#: The parts of the page that show a gap, below a caption, with a pointer that clicks.
_FILM = """
.top, .hint, .acts a, .axis, .most, #story, .legend, .facts div:has(> #lag99),
.facts div:has(> #flush), .facts div:has(> #through) { display: none }
body { padding: 0 1.4rem; overflow: hidden }
.columns { grid-template-columns: minmax(0, 1fr) }
.stack { grid-template-columns: minmax(0, 4fr) minmax(0, 5fr) }
.facts { justify-content: space-between }
#chart { height: 8.9rem }
.resources { grid-template-columns: repeat(auto-fill, minmax(9px, 1fr)) }
#caption { display: flex; align-items: center; gap: .9rem; height: 3.8rem;
  margin: 0 -1.4rem 1.2rem; padding: 0 1.4rem; background: #004d40; color: #fff;
  font-size: 1.3rem; font-weight: 600; letter-spacing: -.01em }
#caption b { display: grid; place-items: center; width: 2rem; height: 2rem;
  border-radius: 50%; background: #fff; color: #004d40; font-size: 1.1rem }
#pointer { position: fixed; z-index: 9; width: 30px; visibility: hidden }
#pointer.pressed { filter: drop-shadow(0 0 7px #f59e0b) }
"""
_PREPARE = """(style => {
  document.head.append(Object.assign(document.createElement("style"), { textContent: style }));
  document.body.insertAdjacentHTML("afterbegin", `<p id="caption"><b></b><span></span></p>
    <svg id="pointer" viewBox="0 0 24 24"><path d="M5 2v17l4.6-4.4 2.9 6.6 2.6-1.1-2.9-6.5h6.3z"
      fill="#111" stroke="#fff" stroke-width="1.4"/></svg>`);
})(STYLE)"""
_CAPTION = """((number, text) => {
  document.querySelector("#caption b").innerText = number;
  document.querySelector("#caption span").innerText = text;
})(NUMBER, TEXT)"""
_POINT = """(selector => {
  const { x, y, width, height } = document.querySelector(selector).getBoundingClientRect();
  const { style } = document.querySelector("#pointer");
  style.visibility = "visible";
  style.left = `${x + width * .7}px`;
  style.top = `${y + height * .55}px`;
})(SELECTOR)"""


async def pictures(browser: Browser, folder: Path, scratch: Path) -> None:
    async with _running_demo(scratch) as url:
        await asyncio.sleep(_START_SECONDS)
        async with both(browser, url, 960, 600) as pages:
            for page in pages:
                await page.call("Page.setBypassCSP", enabled=True)  # for the caption
                await page.goto(url)
            await asyncio.gather(*(page.until(_LEVEL) for page in pages))
            await _film(pages, folder)
        async with both(browser, url, 1080, 1150) as pages:
            await pages[0].until("document.querySelectorAll('#story li').length > 3")
            await asyncio.sleep(2)
            await take(pages, folder, "demo")


@asynccontextmanager
async def _running_demo(scratch: Path) -> AsyncIterator[str]:
    demo = await Process.start("demo", log=scratch / "demo.log")
    try:
        async with asyncio.timeout(PATIENCE):
            async for line in demo.lines():
                if found := re.match(r"page +(http\S+)", line):
                    break
        assert found
        yield found[1]
    finally:
        await demo.stop()


async def _film(pages: list[Page], folder: Path) -> None:
    film = Film(pages)

    async def everywhere(script: str, **values: Any) -> None:
        for name, value in values.items():
            script = script.replace(name, json.dumps(value))
        await asyncio.gather(*(page.evaluate(script) for page in pages))

    async def caption(number: int, text: str) -> None:
        await everywhere(_CAPTION, NUMBER=number, TEXT=text)

    async def click(selector: str, when: str = "true") -> None:
        await everywhere(_POINT, SELECTOR=selector)
        await film.take(1.2)
        await everywhere("document.querySelector('#pointer').classList.add('pressed')")
        await film.take(0.3)
        await everywhere("document.querySelector('#pointer').classList.remove('pressed')")
        await pages[0].until(when)
        await pages[0].evaluate(f"document.querySelector({selector!r}).click()")

    await everywhere(_PREPARE, STYLE=_FILM)
    lag = await pages[0].until(_CALM, seconds=300)
    await caption(
        1, f"A Source changes all the time. Half of the changes are in the copy within {lag}."
    )
    await film.roll(1.6)
    film.hold(2)
    await caption(2, "Now the link is cut, so the hub can push nothing to the copy.")
    await click("[data-action=cut]")
    await film.roll(1.2)
    await caption(3, "The Source creates 440 more resources. The copy says that it is behind.")
    await click("[data-action=flood]", when=f"{_BEHIND} < 8")  # just after it has polled
    await pages[0].until(f"{_BEHIND} > 300")
    await film.take(3)
    await caption(4, "The copy reads what it missed from the Change List of the Source.")
    await film.roll(2.5)
    film.hold(1.5)
    await caption(5, "With the link back, push continues where the copy is. Nothing was lost.")
    await click("[data-action=restore]")
    await film.roll(1)
    await pages[0].until(_LEVEL)
    await film.roll(1.2)
    film.hold(3)
    await asyncio.to_thread(film.write, folder, "gap")
