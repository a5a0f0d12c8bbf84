"""The dashboard at `/`, in a real browser."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rsnotify.format.model import ChangeType, Document, Resource
from rsnotify.format.writer import write_document
from tests.axe import barriers
from tests.browser import Browser, Page
from tests.hub.helpers import ADMIN, TOPIC, Callback, Client, RunHub, at, fragment, seconds_of
from tests.ports import free_port

STATIC = Path(__file__).parents[2] / "hub/rsnotify_hub/admin/static"
LIVE = "document.querySelector('#connection').dataset.state === 'live'"
CHANGES = "[...document.querySelectorAll('.change .uri')].map(each => each.textContent)"
#: No poll follows on the next one: timers that are as long as the page's polls do not end.
NO_POLLS = """window.later = window.setTimeout;
    window.setTimeout = (call, wait, ...given) => wait < 750 && later(call, wait, ...given);
    true"""
POLLS = "window.setTimeout = later; dispatchEvent(new Event('online'))"
BADGE = "document.querySelector('#subscriptions tbody .badge')"
CHOICE = "#details .actions select"
RIGHTMOST = """Math.max(document.documentElement.scrollWidth, ...[...document.querySelectorAll(
    "header *, main :not(thead, thead *, .scroll *)")]
    .map(each => each.getBoundingClientRect().right))"""
SOURCE = "the-token-of-a-source"
SCRIPT = "<script>alert(1)</script>"
MARKUP = 'https://a.example/"><img src=x onerror=alert(1)><script>alert(2)</script>'


@pytest.fixture
async def page(browser: Browser, hub: Client) -> AsyncIterator[Page]:
    async with browser.open(hub.url) as opened:
        await opened.until(LIVE)
        yield opened


def change(second: float) -> str:
    return f"https://source.example/data/{second}"


def shows(second: float) -> str:
    return f"{CHANGES}.includes('{change(second)}')"


def change_of(uri: str, second: float) -> bytes:
    entry = Resource(uri=uri, change=ChangeType.UPDATED, datetime=at(second))
    return write_document(
        Document(
            capability="change-notification",
            from_=at(second - 1),
            until=at(second),
            resources=(entry,),
        )
    )


async def test_a_change_shows_though_the_page_does_not_poll(page: Page, hub: Client):
    assert "Nothing was published yet" in await page.text("#topics")
    await hub.accepted(fragment(0, 1))
    await page.until(shows(1))
    await page.evaluate(NO_POLLS)
    for second in range(1, 6):
        await hub.accepted(fragment(second, second + 1))
        await page.until(shows(second + 1))
    await page.evaluate(POLLS)
    assert await page.text("#topics .choose") == "https://source.example\n/data/channel.xml"
    await page.until("document.querySelector('#topics .log').innerText === '6 fragments\\n2.8 kB'")
    assert page.problems == []


async def test_after_a_restart_it_shows_missed_changes_once(browser: Browser, run_hub: RunHub):
    port = free_port()
    async with run_hub(port=port) as hub:
        tab = browser.open(hub.url)
        page = await tab.__aenter__()
        await hub.accepted(fragment(0, 1))
        await page.until(shows(1))
    await page.until("document.querySelector('#connection').dataset.state === 'lost'")
    async with run_hub(port=port) as hub:
        await hub.accepted(fragment(1, 2))
        await page.until(LIVE)
        await hub.accepted(fragment(2, 3))
        await page.until(shows(3))
        assert await page.evaluate(CHANGES) == [change(3), change(2), change(1)]
        assert page.problems_but("network") == []
        await tab.__aexit__(None, None, None)


async def test_no_text_of_a_client_is_executed(page: Page, hub: Client):
    evil = [
        "javascript:alert(1)",
        "JaVaScRiPt:alert(1)//https://a.example/",
        "data:text/html,<script>alert(1)</script>",
        MARKUP,
    ]
    for second, uri in enumerate(evil, 1):
        await hub.accepted(change_of(uri, second), topic=f"{TOPIC}?{second}&'-alert(3)-'")
    await page.until(f"document.querySelectorAll('.change').length === {len(evil)}")
    assert sorted(await page.evaluate(CHANGES)) == sorted(evil)
    links = await page.evaluate("[...document.links].map(link => link.protocol)")
    assert set(links) <= {"http:", "https:"}
    for number in (1, 2, 3):  # only http(s) URIs are links
        await page.click(f".change:nth-child({number} of :has(> span.uri)) span.uri")
    assert page.problems == []


async def test_it_shows_why_a_subscription_lags_and_an_admin_acts_on_it(
    browser: Browser, run_hub: RunHub, callback: Callback
):
    callback.answers, callback.words = [503] * 1000, SCRIPT
    async with run_hub(retry_seconds=3600) as hub, browser.open(hub.url) as page:
        await hub.subscribe(callback)
        await hub.accepted(fragment(0, 1))
        await callback.delivery()
        await page.until(f"{BADGE}.dataset.state === 'retrying'")
        row = await page.text("#subscriptions tbody tr")
        assert re.search(r"retrying.*127\.0\.0\.1.*1 fragment.*503", row, re.DOTALL)
        # Concurrent requests may have been sent before or after the failure.
        await page.until("document.querySelector('#health .figure').innerText === '1'")
        await page.until("document.querySelector('#failures li').innerText.includes('503')")

        await page.click("#subscriptions .details")
        await page.until(f"document.querySelector('#details .answer').innerText === '{SCRIPT}'")
        assert "Since the hub started on 1 Jun 2026" in await page.text("#details .since")
        callback.answers = []
        await page.click("#details .redeliver")
        await callback.delivery()
        await page.until(f"{BADGE}.dataset.state === 'active'")

        await page.click("#details .suspend")
        await page.until(f"{BADGE}.dataset.state === 'suspended'")
        await hub.accepted(fragment(1, 2))
        await page.click("#details .resume")
        await callback.delivery()
        await page.until("document.querySelector('#details .suspend')")

        await page.evaluate(f"document.querySelector('{CHOICE}').selectedIndex = 3")
        assert await page.text(f"{CHOICE} :checked") == "the whole log"
        await page.click("#details .redeliver")
        assert seconds_of((await callback.delivery())[1]) == [1, 2]

        await page.click("#details .drop")
        assert await page.text("#details .drop") == "Confirm drop"
        await page.click("#details .drop")
        assert (await callback.intent())["hub.mode"] == "denied"
        await page.until("document.querySelectorAll('#subscriptions tbody tr').length === 0")
        assert not await page.evaluate("document.querySelector('#details').open")
        # Its details may have been requested again before it was dropped.
        assert page.problems_but("network") == []


async def test_an_admin_signs_in_for_one_tab_only(
    browser: Browser, run_hub: RunHub, callback: Callback
):
    async with run_hub(publishers=[{"token": SOURCE, "topics": [TOPIC]}]) as hub:
        await hub.subscribe(callback)
        await hub.publish(fragment(0, 1), Authorization=f"Bearer {SOURCE}")
        async with browser.open(hub.url) as page:
            await page.until(shows(1))
            assert "Sign in as an admin" in await page.text("#subscriptions")
            assert "127.0.0.1" not in await page.text("#subscriptions")

            await page.click("#access")
            assert await barriers(page) == []
            await page.type("not-the-token")
            await page.press("Enter")
            await page.until("document.querySelector('#sign-in .problem').innerText")
            await page.evaluate("document.querySelector('#token').value = ''")
            await page.type(ADMIN)
            await page.press("Enter")
            await page.until("document.querySelector('#subscriptions .details')")

            await page.goto(hub.url)
            await page.until("document.querySelector('#subscriptions .details')")
            kept = "[localStorage.length, document.cookie, location.href, document.title].join()"
            assert ADMIN not in await page.evaluate(f"{kept} + document.body.outerHTML")

            await page.click("#access")
            await page.until("!document.querySelector('#subscriptions .details')")
            assert page.problems == []
            await page.evaluate("sessionStorage.setItem('rsnotify-admin-token', 'withdrawn')")
            await page.goto(hub.url)
            await page.until(LIVE)
            assert await page.text("#access") == "Sign in"
            assert await page.evaluate("sessionStorage.length") == 0
        async with browser.open(hub.url) as other:
            await other.until(LIVE)
            assert await other.text("#access") == "Sign in"


async def test_one_topic_can_be_selected_by_keyboard_too(page: Page, hub: Client):
    other = TOPIC + "2"
    await hub.accepted(fragment(0, 1))
    await hub.accepted(fragment(1, 2), topic=other)
    await page.until(f"{shows(1)} && {shows(2)}")
    await page.evaluate("document.querySelectorAll('#topics .choose')[1].focus()")
    await page.press("Enter")
    await page.until(f"!{shows(1)} && {shows(2)}")
    assert await page.text("#narrowed .subject") == other
    await page.press("Tab")  # the focus was not lost
    assert await page.evaluate("document.activeElement.getAttribute('aria-label')") == (
        f"Open {other}"
    )
    address = await page.evaluate("location.href")
    await page.goto("about:blank")
    await page.goto(address)
    await page.until(f"!{shows(1)} && {shows(2)}")
    await page.click("#narrowed button")
    await page.until(f"{shows(1)} && {shows(2)}")
    assert page.problems == []


async def test_many_topics_leave_the_subscriptions_in_sight(page: Page, hub: Client):
    for number in range(25):
        await hub.accepted(fragment(0, 1), topic=f"{TOPIC}{number}")
    shown = "document.querySelectorAll('#topics tbody tr').length"
    await page.until("document.querySelector('#topics .amount').textContent === '25 topics'")
    assert await page.evaluate(shown) == 20
    await page.click("#topics .more")
    await page.until(f"{shown} === 25")
    assert page.problems == []


async def test_it_fits_a_phone_and_follows_its_colours(
    browser: Browser, hub: Client, callback: Callback
):
    await hub.subscribe(callback, topic=TOPIC + "/long" * 40)
    await hub.accepted(fragment(0, 1), topic=TOPIC + "/long" * 40)
    async with browser.open(hub.url) as page:
        await page.until(f"{shows(1)} && {BADGE}")
        for dark in (False, True):
            await page.view(360, 740, dark=dark)
            await page.until(f"{RIGHTMOST} <= 360")  # once it is laid out again
            ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (max(map(int, re.findall(r"\d+", ground))) < 128) is dark


async def test_its_files_may_load_nothing_from_elsewhere(hub: Client):
    kinds = ("*.css", "*.js", "*.svg")
    files = [path.relative_to(STATIC) for kind in kinds for path in STATIC.rglob(kind)]
    paths = ["", *(f"dashboard/{path.as_posix()}" for path in files)]
    assert "dashboard/vendor/uPlot.iife.min.js" in paths
    for path in paths:
        async with hub.session.get(hub.url + path) as response:
            policy = response.headers["Content-Security-Policy"]
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            await response.read()
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
    assert (await hub.get("dashboard/pages.py"))[0] == 404
