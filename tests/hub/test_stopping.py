"""A hub that is stopped while it works."""

from __future__ import annotations

import asyncio
import logging

import pytest

from rsnotify_hub.hub import HubService
from tests.hub.helpers import RunHub
from tests.waiting import PATIENCE


async def test_a_hub_that_is_stopped_while_it_cleans_up_logs_no_error(
    run_hub: RunHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    begun = asyncio.Event()

    async def clean_up(_: HubService) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(HubService, "clean_up", clean_up)
    monkeypatch.setattr("rsnotify_hub.hub._CLEAN_UP_SECONDS", 0.01)
    async with run_hub(), asyncio.timeout(PATIENCE):
        await begun.wait()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
