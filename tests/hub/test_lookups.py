"""Names whose server never answers."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.hub.deliveries import opened_channel
from tests.hub.helpers import PATIENCE, Callback, Clock, fragment


@pytest.fixture
def hanging_names(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Names below hangs.example are looked up for ever."""
    real, over = socket.getaddrinfo, threading.Event()

    def look_up(host: str, *args: Any, **options: Any) -> Any:
        if host.endswith("hangs.example"):
            over.wait(2 * PATIENCE)
            raise socket.gaierror("it was never answered")
        return real(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    yield
    over.set()


async def test_names_that_are_never_answered_hold_up_nobody(
    hanging_names: None, tmp_path: Path, callback: Callback, clock: Clock
):
    callback.url = callback.url.replace("127.0.0.1", "localhost")
    more_than_shared = (os.cpu_count() or 1) + 5
    async with opened_channel(
        tmp_path, clock, callback_seconds=0.5, retry_seconds=600
    ) as deliveries:
        for number in range(more_than_shared):
            await deliveries.subscribed(f"http://{number}.hangs.example/")
        await deliveries.subscribed(callback)
        for second in (1, 2, 3):
            await deliveries.publish(second)
            assert (await callback.delivery())[1] == fragment(second - 1, second)
        async with asyncio.timeout(PATIENCE):
            assert await asyncio.to_thread(lambda: "the shared threads are free")
        await deliveries.until(
            lambda: sum(each.failures for each in deliveries.channel.all()) == more_than_shared
        )
