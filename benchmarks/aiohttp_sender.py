"""A bare sender of signed POSTs to many callbacks, with aiohttp's client.

`aiohttp_sender.py PORT` reads bodies in hex, one per line, from its standard input, and POSTs each
to all callbacks of the process at that port (`callback_server.py`). It retries failed requests as
the hub does.
"""

from __future__ import annotations

import asyncio
import hmac
import sys
from random import Random

import aiohttp
import uvloop
from callback_server import callbacks, secret_of
from fanout import TOPIC

from rsnotify.sync.retry import Retry
from rsnotify_hub.config.configuration import WebSubConfig

_DEFAULTS = WebSubConfig()
_RETRY = Retry(_DEFAULTS.retry_seconds, _DEFAULTS.max_retry_seconds)


class AiohttpCallback:
    """POSTs to one callback; if that lags behind, only the newest body."""

    def __init__(self, client: aiohttp.ClientSession, url: str, secret: bytes) -> None:
        self._client = client
        self._url = url
        self._secret = secret
        self._body = b""
        self._task: asyncio.Task[None] | None = None

    def post(self, body: bytes) -> None:
        """Send a body, at once or after the request in progress or its retry delay."""
        self._body = body
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        failures, sent = 0, b""
        while sent != self._body:  # another may have been posted meanwhile
            body = self._body
            if await self._succeeds(body):
                failures, sent = 0, body
            else:
                failures += 1
                await asyncio.sleep(_RETRY.delay(failures, Random(failures)))

    async def _succeeds(self, body: bytes) -> bool:
        headers = {
            "Content-Type": "application/xml",
            "Link": f'<{TOPIC}>; rel="self", <http://127.0.0.1:8080/websub>; rel="hub"',
            "X-Hub-Signature": "sha256=" + hmac.digest(self._secret, body, "sha256").hex(),
        }
        try:
            async with self._client.post(
                self._url, data=body, headers=headers, allow_redirects=False
            ) as response:
                return response.status < 300
        except (aiohttp.ClientError, TimeoutError):
            return False


async def main(port: int) -> None:
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=_DEFAULTS.callback_seconds),
    ) as client:
        destinations = [
            AiohttpCallback(client, url, secret_of(url).encode()) for url in callbacks(port)
        ]
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            for callback in destinations:
                callback.post(bytes.fromhex(line))


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
