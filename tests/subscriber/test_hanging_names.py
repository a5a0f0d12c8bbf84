"""Names in documents whose server never answers."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from typing import Any

import pytest

from rsnotify.errors import FetchError
from rsnotify.runtime.addresses import AddressResolver
from rsnotify_subscriber.fetching.sessions import Sessions
from tests.subscriber.source import SmallSource

#: Seconds; only what hangs takes them.
PATIENCE = 60.0


class HangingNames:
    """Lookups of names below hangs.example, which do not end before `over` is set."""

    def __init__(self, most: int) -> None:
        self.over = threading.Event()
        self.all_begun = threading.Barrier(most + 1)
        self._real = socket.getaddrinfo

    def __call__(self, host: str, *arguments: Any, **options: Any) -> Any:
        if not host.endswith("hangs.example"):
            return self._real(host, *arguments, **options)
        self.all_begun.wait(PATIENCE)
        self.over.wait(2 * PATIENCE)
        raise socket.gaierror(socket.EAI_AGAIN, "it was never answered")


async def test_lookups_that_hang_delay_no_other_request_and_no_other_work(
    source: SmallSource, monkeypatch: pytest.MonkeyPatch
):
    resource = source.put("a", b"1")
    more_than_shared = (os.cpu_count() or 1) + 5
    names = HangingNames(more_than_shared)
    monkeypatch.setattr(socket, "getaddrinfo", names)

    async def get(uri: str) -> int:
        async with sessions.get(uri, {}) as response:
            return response.status

    async with Sessions("", allow_private_addresses=True) as sessions:
        hanging = [
            asyncio.create_task(get(f"http://{number}.hangs.example/"))
            for number in range(more_than_shared)
        ]
        loop = asyncio.get_running_loop()
        begun: asyncio.Future[None] = loop.create_future()

        def wait() -> None:
            names.all_begun.wait(PATIENCE)
            loop.call_soon_threadsafe(begun.set_result, None)

        threading.Thread(target=wait, daemon=True).start()
        try:
            async with asyncio.timeout(PATIENCE):
                await begun
                assert await get(resource.uri.replace("127.0.0.1", "localhost")) == 200
                assert await asyncio.to_thread(lambda: "the shared threads are free")
        finally:
            names.over.set()
        results = await asyncio.gather(*hanging, return_exceptions=True)
    assert all(isinstance(each, FetchError) for each in results)


async def test_a_link_local_address_is_dialled_at_its_interface(monkeypatch: pytest.MonkeyPatch):
    found = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fe80::1", 80, 0, 7))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [found])
    (address,) = await AddressResolver().resolve("link.example", 80)
    assert (address["host"], address["port"]) == ("fe80::1%7", 80)
