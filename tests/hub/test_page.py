from __future__ import annotations

import re
from datetime import timedelta

from rsnotify_hub.log.store import LogState
from rsnotify_hub.pages import MAX_ROWS, SubscriptionRow, TopicRow, first_page
from rsnotify_hub.subscriptions import Subscription
from tests.hub.helpers import TOPIC, Callback, Client, at, fragment, subscription_rows


def topic(name: str) -> TopicRow:
    state = LogState(
        topic=name,
        first=1,
        position=9,
        begins=at(0),
        through=at(5),
        received=at(6),
        kept=4,
        size=100,
        heartbeat=None,
    )
    return TopicRow(state, websockets=12, callbacks=34)


def test_everything_from_outside_is_escaped():
    evil = 'https://a.example/"><script>alert(1)</script>&amp;'
    subscription = Subscription(evil, "https://b.example/?canary", "canary", at(60), 0)
    page = first_page(
        [topic(evil)], [SubscriptionRow(subscription, at(0), 3)], now=at(0) + timedelta(seconds=2)
    )
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 2
    assert "canary" not in page
    assert "b.example" in page
    assert "2.0 s, 3 failed tries" in page


def test_a_topic_shows_its_log_and_who_listens():
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", first_page([topic(TOPIC)], [], now=at(0)))
    assert cells == [
        TOPIC,
        "2026-01-01T00:00:05.000000Z",
        "4",
        "12",
        "34",
        "2026-01-01T00:00:06.000000Z",
    ]


def test_a_long_table_is_cut():
    page = first_page([topic(TOPIC)] * (MAX_ROWS + 7), [], now=at(0))
    assert page.count(TOPIC) == MAX_ROWS
    assert "And 7 more." in page


async def test_the_page_counts_what_is_there(hub: Client, callback: Callback):
    callback.url += "?key=canary"
    await hub.subscribe(callback, secret="canary")
    listener = await hub.listen()
    await hub.accepted(fragment(0, 1))
    await callback.delivery()
    page = await hub.page(lambda page: "<td>none</td>" in page)
    assert re.findall(r'<td class="number">(\d+)</td>', page) == ["1", "1", "1"]
    assert "<td>127.0.0.1</td>" in page
    assert subscription_rows(page) == 1
    assert "canary" not in page
    await listener.close()
    page = await hub.page(lambda page: '<td class="number">0</td>' in page)


async def test_the_page_loads_nothing_and_runs_nothing(hub: Client):
    async with hub.session.get(hub.url) as response:
        assert response.content_type == "text/html"
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        page = await response.text()
    assert 'http-equiv="refresh"' in page
    assert not re.search(r"<script|<link|src=|href=", page)
