"""The demo of a gateway, in Chromium, and as the command that starts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser import Browser
from tests.gateway.demo import main, running_demo

LINES = "[...document.querySelectorAll('li')].map(each => each.textContent)"


async def test_changes_of_an_oai_pmh_repository_arrive_in_a_browser(
    browser: Browser, tmp_path: Path
):
    async with running_demo(tmp_path) as demo, browser.open(demo.url) as tab:
        await tab.until("stream.readyState === EventSource.OPEN")
        demo.items.put("new", "A new record")
        demo.items.delete("record-3")
        for shown in ("created .*oai%3Anew", "deleted .*oai%3Arecord-3"):
            await tab.until(f"{LINES}.some(text => / {shown}$/.test(text))")
        assert tab.problems == []


async def test_the_demo_runs_and_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.argv", ["demo", "--seconds", "0.1"])
    await main()
    assert capsys.readouterr().out.startswith("Open http://127.0.0.1:")
