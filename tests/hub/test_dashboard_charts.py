"""The charts of the dashboard, and its first answer, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from rsnotify_hub.admin.history import DAY, QUARTER, WEEK
from rsnotify_hub.admin.schemas import HistoryInfo, MinuteInfo
from tests.axe import barriers
from tests.browser import Browser, Page
from tests.hub.helpers import Callback, Clock, RunHub, fragment
from tests.hub.test_dashboard import RIGHTMOST

TIMES = "[...document.querySelectorAll('.most .when')].map(each => each.innerText)"
#: Whether a chart has pixels in the colour of its first line.
DRAWN = """(card => {
    const canvas = card.querySelector("canvas");
    const numbers = color => color.match(/\\d+/g).map(Number);
    const [red, green, blue] = numbers(getComputedStyle(card.querySelector(".mark")).color);
    const all = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    for (let at = 0; at < all.length; at += 4)
      if (all[at + 3] > 200 && Math.abs(all[at] - red) + Math.abs(all[at + 1] - green)
        + Math.abs(all[at + 2] - blue) < 30) return true;
  })"""


def write_history(file: Path, now: int) -> None:
    """Write a week: 2 fragments a second, but 4 in the last hour, and trouble three days ago."""

    def row(minute: int, length: int) -> MinuteInfo:
        late, bad = minute >= now - 60, now - 4320 <= minute < now - 4200
        accepted = (240 if late else 120) * length
        lags = (1.5, 700.0) if bad else (0.0, 0.0)
        failed = 30 * length if bad else 0
        return MinuteInfo(minute, accepted, 5 * accepted, failed, 7, 0, 60 * length, *lags, 1, 0, 0)

    minutes = tuple(row(minute, 1) for minute in range(now - DAY + 1, now))
    quarters = [row(minute, QUARTER) for minute in range(now - WEEK + QUARTER, now, QUARTER)]
    content: dict[str, Any] = msgspec.to_builtins(HistoryInfo(minutes, quarters))
    file.parent.mkdir()
    file.write_bytes(msgspec.json.encode({"version": 2, **content}))


async def point_at(page: Page, selector: str, part: float) -> None:
    """Move the mouse over an element, to some part of its width."""
    x, y = await page.evaluate(
        f"""(({{ x, y, width, height }}) => [x + {part} * width, y + height / 2])(
          document.querySelector("{selector}").getBoundingClientRect())"""
    )
    await page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)


async def test_charts_show_values_by_mouse_and_keyboard_and_as_a_table(
    browser: Browser, run_hub: RunHub, clock: Clock, tmp_path: Path
):
    write_history(tmp_path / "hub/history.json", int(clock.now.timestamp()) // 60)
    async with run_hub() as hub, browser.open(hub.url, width=1280, height=1000) as page:
        await page.until("document.querySelector('#in .most').innerText.includes('4.0/s')")
        for card in ("in", "out", "listeners", "queues"):
            assert await page.until(f"{DRAWN}(document.querySelector('#{card}'))")

        await page.click(".ranges [value='7d']")
        await page.until("document.querySelector('#lag .most').innerText.includes('p99 12 min')")
        assert await page.evaluate("location.hash") == "#range=7d"
        assert re.search(r"30/min, at \w+ \d+ May", await page.text("#failed .most"))
        assert await page.until(f"{DRAWN}(document.querySelector('#lag'))")

        await page.click(".ranges [value='24h']")
        await page.until("document.querySelector('#failed .empty').checkVisibility()")
        assert "No attempt failed" in await page.text("#failed .empty")
        await point_at(page, "#in .u-over", 0.5)
        await page.until("document.querySelector('#in .most b').innerText === '2.0/s'")
        await page.until("document.querySelector('#out .most b').innerText === '10/s'")
        assert len(set(await page.evaluate(TIMES))) == 1, "the same time in all charts"
        await point_at(page, "#tiles-title", 0.5)
        await page.until(f"{TIMES}.every(text => text === 'at most')")

        await page.evaluate("document.querySelector('#in .chart').focus()")
        for key in ("End", "ArrowLeft", "ArrowLeft"):
            await page.press(key)
        spoken = "document.activeElement.ariaValueText"
        await page.until(f"{spoken}.endsWith(': Fragments 4.0/s')")
        await page.press("Home")
        await page.until(f"{spoken}.endsWith(': Fragments 2.0/s')")

        await page.view(390, 844, dark=True)
        await page.click(".numbers summary")
        await page.until("document.querySelectorAll('.numbers tbody tr').length > 40")
        assert "2.0/s\t10/s" in await page.text(".numbers tbody")
        assert await page.until(f"{DRAWN}(document.querySelector('#in'))")
        assert await page.evaluate(RIGHTMOST) <= 390
        assert await page.evaluate("document.documentElement.scrollWidth") == 390
        assert await barriers(page) == []
        assert page.problems == []


async def test_the_first_answer_is_who_does_not_receive_since_when_and_why(
    browser: Browser, run_hub: RunHub, callback: Callback, clock: Clock
):
    verdict = "document.querySelector('#health').innerText"
    async with run_hub(retry_seconds=3600) as hub, browser.open(hub.url) as page:
        await page.until(f"{verdict}.includes('No Source has published yet')")
        await hub.subscribe(callback)
        await page.until(f"{verdict}.includes('All subscribers receive')")
        callback.answers = [503]
        await hub.accepted(fragment(0, 1))
        await callback.delivery()
        clock.advance(minutes=12)
        await page.until(f"{verdict}.includes('1 of 1 subscriber does not receive')")
        await page.until(f"{verdict}.match(/since .*, for 12 min\\s+returned 503/)")
        assert await page.evaluate("document.title") == "1 in trouble · rsnotify hub"
        await page.click("#find input")
        await page.type("nothing has this")  # what the tables show does not matter
        await page.until("document.querySelector('#subscriptions').innerText.includes('matches')")
        await page.click("#health li button")
        await page.until("document.querySelector('#details .redeliver')")
        await page.click("#details .redeliver")
        await page.until(f"{verdict}.includes('All subscribers receive')")
        assert page.problems == []
