"""Names whose server never answers."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.hub.deliveries import opened_channel
from tests.hub.helpers import Callback, Clock, fragment
from tests.waiting import PATIENCE


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


#: A process that ends while a name is looked up for ever.
ENDING = """
import asyncio, socket, threading
from rsnotify.runtime.addresses import AddressResolver

socket.getaddrinfo = lambda *args, **options: threading.Event().wait()

async def main():
    await asyncio.wait_for(AddressResolver().resolve("hangs.example"), 0.1)

try:
    asyncio.run(main())
except TimeoutError:
    print("ended")
"""


def test_a_lookup_that_hangs_does_not_delay_the_end_of_the_hub():
    ended = subprocess.run(
        [sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("ended\n", "", 0)


async def test_lookups_that_hang_delay_no_other(
    hanging_names: None, tmp_path: Path, callback: Callback, clock: Clock
):
    callback.url = callback.url.replace("127.0.0.1", "localhost")
    more_than_shared = (os.cpu_count() or 1) + 5
    async with opened_channel(tmp_path, clock, retry_seconds=600) as deliveries:
        for number in range(more_than_shared):
            await deliveries.subscribed(f"http://{number}.hangs.example/")
        await deliveries.subscribed(callback)
        for second in (1, 2, 3):
            await deliveries.publish(second)
            assert (await callback.delivery())[1] == fragment(second - 1, second)
        async with asyncio.timeout(PATIENCE):
            assert await asyncio.to_thread(lambda: "the shared threads are free")
        for each in deliveries.channel.registry.all():
            if each.slot is not None and each.host.endswith("hangs.example"):
                each.slot.expire()  # its time is up
        await deliveries.until(
            lambda: (
                sum(each.failures for each in deliveries.channel.registry.all()) == more_than_shared
            )
        )
