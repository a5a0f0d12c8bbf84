"""The dashboard for a person on call, in a real browser: what is in trouble, and why."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rsnotify_hub.websub_subscription import subscription_id
from tests.axe import barriers
from tests.browser import Browser, Page
from tests.hub.helpers import (
    TOPIC,
    Callback,
    Client,
    Clock,
    RunHub,
    callback_server,
    fragment,
)
from tests.ports import free_port

OTHER = "https://other.example/channel"
LIVE = "document.querySelector('#connection').dataset.state === 'live'"
ROWS = "[...document.querySelectorAll('#subscriptions tbody tr')].map(row => row.innerText)"
FOCUSED = "document.activeElement"
HTML = "<img src=x onerror=alert(1)><script>alert(2)</script>"


@pytest.fixture
async def sound() -> AsyncIterator[Callback]:
    """A callback of another subscription, which works."""
    async with callback_server() as server:
        yield server


@pytest.fixture
async def troubled_hub(
    run_hub: RunHub, callback: Callback, sound: Callback
) -> AsyncIterator[Client]:
    """A hub with a subscription that fails, and one of another topic that works."""
    callback.url += "/secret-part?key=secret-key"
    callback.answers, callback.words = [503] * 1000, HTML + " secret-key"
    async with run_hub(retry_seconds=3600) as hub:
        await hub.subscribe(callback)
        await hub.subscribe(sound, topic=OTHER)
        await hub.accepted(fragment(0, 1))
        await hub.accepted(fragment(0, 1), topic=OTHER)
        await hub.subscriptions(lambda rows: rows[0]["state"] == "retrying", sort="trouble")
        yield hub


@pytest.fixture
async def troubled(troubled_hub: Client, browser: Browser) -> AsyncIterator[Page]:
    async with browser.open(troubled_hub.url) as page:
        await page.until(f"{LIVE} && {ROWS}.length === 2")
        yield page


async def rows_become(page: Page, *parts: str) -> None:
    """Wait until there is one subscription for each part, in order."""
    given = ", ".join(f"'{part}'" for part in parts)
    await page.until(
        f"(rows => rows.length === {len(parts)} && [{given}].every((part, index) => "
        f"rows[index].includes(part)))({ROWS})"
    )


async def test_trouble_is_first_and_its_tile_leads_there_by_keyboard_too(troubled: Page):
    shown = "[...document.querySelectorAll('.tables > section:not([hidden])')]"
    panels = await troubled.evaluate(f"{shown}.map(each => each.id)")
    assert panels == ["parts", "subscriptions", "failures", "connections", "topics"]
    await rows_become(troubled, "retrying", "active")
    await troubled.until("document.querySelector('#health .figure').innerText === '1'")
    await troubled.evaluate("document.querySelector('#health button').focus()")
    await troubled.press("Enter")
    await rows_become(troubled, "retrying")
    assert await troubled.evaluate(f"{FOCUSED}.id") == "subscriptions"
    assert await troubled.evaluate("location.hash") == "#state=trouble"
    assert await troubled.evaluate("document.querySelector('#subscriptions select').value") == (
        "trouble"
    )
    assert troubled.problems == []


async def test_search_and_topic_select_subscriptions_and_failures(
    troubled: Page, callback: Callback, sound: Callback
):
    shown = "[...document.querySelectorAll('#topics .choose')].map(each => each.innerText).join()"
    await troubled.click("#search")
    await troubled.type("OTHER.ex")
    await rows_become(troubled, "other.example")
    await troubled.until(f"{shown}.includes('other.example') && !{shown}.includes('source')")
    await troubled.until("document.querySelector('#failures').hidden")
    await troubled.evaluate("document.querySelector('#search').select()")
    await troubled.type(subscription_id(TOPIC, callback.url)[:8])
    await rows_become(troubled, "source.example")
    await troubled.until("!document.querySelector('#failures').hidden")
    assert await troubled.evaluate(f"{FOCUSED}.id") == "search"
    await troubled.evaluate("document.querySelector('#search').select()")
    await troubled.type("nothing has this")
    await troubled.until(
        "document.querySelector('#subscriptions').innerText.includes('No subscription matches')"
    )
    await troubled.evaluate("document.querySelector('#search').select()")
    await troubled.type("e")
    failures = "document.querySelector('#failures')"
    await troubled.until(f"{failures}.innerText.includes('source.example')")
    await troubled.click("#topics [aria-label='https://other.example/channel']")
    await troubled.until(f"{failures}.hidden")
    await troubled.click("#topics [aria-pressed=true]")
    await troubled.until(f"!{failures}.hidden")
    assert troubled.problems == []


async def test_the_attempts_of_a_subscription_show_response_and_payload_as_text(
    troubled: Page, callback: Callback
):
    await troubled.click("#failures .callback")
    answer = await troubled.until("document.querySelector('#details .answer')?.innerText")
    assert answer == HTML + " [...]"
    assert await troubled.until("document.querySelector('#details .sent')?.innerText") == (
        fragment(0, 1).decode()
    )
    attempt = await troubled.text("#details summary")
    assert "503" in attempt
    assert " ms" in attempt
    # The callback may be a secret: it is on the screen only if the user wants to see it.
    assert callback.url not in await troubled.evaluate("document.documentElement.outerHTML")
    assert "/ca…/se…?…" in await troubled.text("#details dl")
    await troubled.click("#details .reveal")
    await troubled.until(
        f"document.querySelector('#details .whole').innerText === '{callback.url}'"
    )
    assert troubled.problems == []


async def test_updates_do_not_take_the_focus_from_a_row_that_moves(
    troubled_hub: Client, troubled: Page, callback: Callback, sound: Callback
):
    await rows_become(troubled, "source.example", "other.example")
    await troubled.evaluate("document.querySelectorAll('#subscriptions .details')[1].focus()")
    name = await troubled.evaluate(f"{FOCUSED}.ariaLabel")
    assert OTHER in name
    sound.answers, callback.answers = [500] * 1000, []
    id = subscription_id(TOPIC, callback.url)
    await troubled_hub.admin("POST", f"subscriptions/{id}/redeliver")
    await troubled_hub.accepted(fragment(1, 2), topic=OTHER)
    await rows_become(troubled, "other.example", "source.example")
    assert await troubled.evaluate(f"{FOCUSED}.ariaLabel") == name
    assert troubled.problems == []


async def test_the_focus_follows_the_order_of_the_page(troubled: Page):
    await troubled.evaluate(
        "document.querySelector('.pause').click(); document.activeElement.blur()"
    )
    places: list[tuple[float, float]] = []
    while not await troubled.evaluate(f"Boolean({FOCUSED}.closest('#topics, #failures'))"):
        assert len(places) < 40
        await troubled.press("Tab")
        place = await troubled.evaluate(
            f"(({{top, left}}) => [top + scrollY, left])({FOCUSED}.getBoundingClientRect())"
        )
        places.append((round(place[0] / 40), place[1]))
    header, main = places[:4], places[4:]
    assert [row for row, _ in main] == sorted(row for row, _ in main), (header, main)


async def test_a_silent_source_and_a_broker_that_is_away_are_in_trouble(
    run_hub: RunHub, browser: Browser, clock: Clock
):
    async with run_hub(mqtt_url=f"mqtt://127.0.0.1:{free_port()}") as hub:
        await hub.accepted(fragment(0, 1))
        clock.advance(minutes=20)
        await hub.accepted(fragment(0, 1), topic=OTHER)
        async with browser.open(hub.url) as page:
            parts = "document.querySelector('#parts').innerText"
            await page.until(f"{parts}.includes('not connected')")
            await page.until("document.querySelector('#health .figure').innerText === '2'")
            first, second, *_ = await page.evaluate(
                "[...document.querySelectorAll('#parts li')].map(each => each.innerText)"
            )
            assert first.startswith("in trouble")
            assert "MQTT broker" in first
            assert "not connected for 20 min" in first
            assert "cannot connect" in first
            assert "1 of 2 silent, not even a heartbeat: source.example for 20 min" in second
            # By keyboard, as a click may miss what moves meanwhile.
            await page.evaluate("document.querySelector('#parts button:not([hidden])').focus()")
            await page.press("Enter")
            await page.until("document.querySelectorAll('#topics .choose').length === 1")
            assert "silent" in await page.text("#topics tbody")
            assert await page.evaluate(f"{FOCUSED}.id") == "topics"
            assert page.problems == []


async def test_an_empty_hub_says_what_to_do_next(browser: Browser, hub: Client):
    async with browser.open(hub.url) as page:
        await page.until("document.querySelector('#subscriptions pre')")
        assert f"--hub {hub.url}" in await page.text("#topics pre")
        assert "rsnotify follow" in await page.text("#subscriptions pre")
        assert await barriers(page) == []
        await page.evaluate(
            "document.querySelector('#topics select').removeAttribute('aria-label');"
            "document.querySelector('#topics h2').style.color = '#bbb'"
        )
        found = [each.split(" (")[0][:11] for each in await barriers(page)]
        assert found == ["color-contrast"[:11], "select-name", "contrast 1."], "the check works"


async def test_nothing_keeps_people_from_using_it(troubled: Page):
    for width, dark in ((1280, False), (1280, True), (360, False)):
        await troubled.view(width, 800, dark=dark)
        assert await barriers(troubled) == [], (width, dark)
        await troubled.click("#subscriptions .details")
        await troubled.until("document.querySelector('#details .sent')")
        assert await barriers(troubled) == [], (width, dark)
        await troubled.press("Escape")
        assert await troubled.evaluate(f"{FOCUSED}.className") == "details", "where it was before"
