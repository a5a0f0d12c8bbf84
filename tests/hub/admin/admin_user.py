"""A client of the admin API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.hub.helpers import Client
from tests.waiting import PATIENCE


class AdminUser:
    """An admin who uses the admin API of a hub."""

    def __init__(self, hub: Client, token: str | None = None) -> None:
        self._hub = hub
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def request(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        """Return the status, and the JSON of the answer if it has a body."""
        url = f"{self._hub.url}admin/{path}"
        async with self._hub.session.request(
            method, url, headers=self._headers, **options
        ) as response:
            if response.status == 204:
                assert await response.read() == b""
                return 204, None
            assert response.content_type == "application/json"
            return response.status, await response.json()

    async def get(self, path: str, **query: Any) -> Any:
        status, answer = await self.request("GET", path, params=query)
        assert status == 200, answer
        return answer

    async def until(self, path: str, condition: Callable[[Any], bool], **query: Any) -> Any:
        """Poll until the answer fulfils a condition."""
        async with asyncio.timeout(PATIENCE):
            while not condition(answer := await self.get(path, **query)):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.02)
        return answer

    async def level(self) -> Any:
        """Wait until the only subscription has received everything."""
        return await self.subscription(lambda row: row["behind"] == 0)

    async def subscription(self, condition: Callable[[Any], bool], **query: Any) -> Any:
        """Poll until the only subscription fulfils a condition."""
        page = await self.until(
            "subscriptions",
            lambda page: len(page["subscriptions"]) == 1 and condition(page["subscriptions"][0]),
            **query,
        )
        return page["subscriptions"][0]
