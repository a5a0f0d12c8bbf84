"""A busy run of a real hub: no secret is in its files, logs or answers."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import jwt
import msgspec
import pytest

from rsnotify.format.datetimes import parse_datetime
from tests.hub.helpers import TOPIC, Callback, Client, fragment
from tests.hub.raw_sockets import answer_to
from tests.waiting import PATIENCE

#: Every secret contains this, so that one search finds them all.
CANARY = "canary-bird"
SOURCE, ADMIN, WRONG = (f"{CANARY}-{name}-token" for name in ("source", "admin", "wrong"))
JWT_KEY = f"{CANARY}-jwt-key".ljust(32, "x")
AUDIENCE = "https://hub.example/"
GRANTS = {"publish": [TOPIC], "admin": True}
WEB_TOKEN = jwt.encode(
    {"aud": AUDIENCE, "exp": int(time.time()) + 86_400, "rsnotify": GRANTS}, JWT_KEY, "HS256"
)
STALE = jwt.encode({"aud": AUDIENCE, "exp": 1, "rsnotify": GRANTS}, JWT_KEY, "HS256")
#: Encoded forms of the secrets, which must not occur either.
LEAKS = [CANARY, quote(CANARY + "/x", safe=""), *WEB_TOKEN.split("."), *STALE.split(".")]
LEAKS = [leak for leak in LEAKS if leak != jwt.encode({}, JWT_KEY, "HS256").split(".")[0]]
LEAKS += [sha256(secret.encode()).hexdigest() for secret in (SOURCE, ADMIN, WRONG)]


class Run:
    """A hub, and all its output."""

    def __init__(self, hub: Client, errors: list[str]) -> None:
        self.hub = hub
        self.answers: list[str] = []
        self.log = errors

    async def ask(self, method: str, path: str, token: str | None = None, **more: Any) -> int:
        headers = dict(more.pop("headers", {}))
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        url = self.hub.url + path
        async with self.hub.session.request(method, url, headers=headers, **more) as response:
            text = (await response.read()).decode("utf-8", "replace")
            self.answers.append(f"{method} {path} {response.status} {response.raw_headers} {text}")
            return response.status

    async def publish(self, body: bytes, token: str | None, topic: str = TOPIC) -> int:
        link = f'<{topic}>; rel="self", <{self.hub.url}websub>; rel="hub"'
        headers = {"Content-Type": "application/xml", "Link": link}
        return await self.ask("POST", "websub", token, data=body, headers=headers)

    async def subscribe(self, callback: str, topic: str = TOPIC, **fields: str) -> int:
        given = {"mode": "subscribe", "topic": topic, "callback": callback, **fields}
        data = {f"hub.{name}": value for name, value in given.items()}
        return await self.ask("POST", "websub", data={**data, "hub.secret": f"{CANARY}-secret"})

    async def subscribed(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while '"total":1' not in self.answers[-1]:
                await self.ask("GET", "admin/subscriptions", ADMIN)

    async def logged(self, *parts: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while not any(all(part in line for part in parts) for line in self.log):
                await self.ask("GET", "healthz")


@asynccontextmanager
async def running(folder: Path, log_format: str) -> AsyncIterator[Run]:
    environ = {
        **os.environ,
        "RSNOTIFY_HUB_PUBLISHERS": json.dumps([{"token": SOURCE, "topics": [TOPIC]}]),
        "RSNOTIFY_HUB_ADMINS": json.dumps([{"token": ADMIN}]),
        "RSNOTIFY_HUB_JWT_KEY": JWT_KEY,
        "RSNOTIFY_HUB_JWT_ALGORITHMS": '["HS256"]',
        "RSNOTIFY_HUB_JWT_AUDIENCE": AUDIENCE,
        "RSNOTIFY_HUB_LOG_FORMAT": log_format,
        "RSNOTIFY_HUB_RETRY_SECONDS": "0.01",
        "RSNOTIFY_HUB_TOKENS_FILE": str(folder / "tokens.toml"),
    }
    (folder / "tokens.toml").write_text("")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rsnotify", "-v", "hub", "--port", "0"),
        *("--data", str(folder / "hub"), "--allow-private-addresses"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environ,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    lines: list[str] = []
    reading = asyncio.create_task(_keep(process.stderr, lines))
    try:
        async with asyncio.timeout(PATIENCE):
            url = (await process.stdout.readline()).decode().split()[-1]
        async with aiohttp.ClientSession() as session, Client(url, session) as client:
            yield Run(client, lines)
    finally:
        process.terminate()
        await asyncio.gather(process.stdout.read(), reading)
        await process.wait()


async def _keep(stream: asyncio.StreamReader, lines: list[str]) -> None:
    while line := await stream.readline():
        lines.append(line.decode().rstrip())


async def busy(run: Run, callback: Callback, folder: Path) -> None:
    """Send the requests of clients, including failing ones."""
    secret_url = f"{callback.url}?{CANARY}=1"
    assert await run.subscribe(secret_url) == 202
    await callback.intent()
    await run.subscribed()
    await rejected(run)
    callback.answers = [500, 500]
    for second, token in enumerate((SOURCE, WEB_TOKEN)):
        assert await run.publish(fragment(second, second + 1), token) == 202
    for _ in range(3):
        await callback.delivery()
    await run.logged("callback")
    await act(run)
    callback.confirms = False
    assert await run.subscribe(secret_url, mode="unsubscribe") == 202
    await callback.intent()
    (folder / "tokens.toml").write_text(f'[[admins]]\ntoken = "{CANARY}-in-a-file"\n')
    await run.logged("cannot reload the grants")
    callback.confirms = True
    callback.answers = [410]
    assert await run.publish(fragment(2, 3), SOURCE) == 202
    await run.logged("410")


async def rejected(run: Run) -> None:
    """Send requests that are refused."""
    gone = f"http://127.0.0.1:1/?{CANARY}"
    for token in (WRONG, STALE):
        assert await run.publish(fragment(0, 1), token) == 403
        assert await run.ask("GET", "admin/status", token) == 403
    assert await run.publish(f"<{CANARY}".encode(), WRONG) == 403
    assert await run.subscribe(gone) == 202
    assert await run.subscribe(gone, topic="https://nobody.example/") == 202
    assert await run.subscribe(f"http://user:{CANARY}@127.0.0.1/") == 400
    assert await run.subscribe(f"ftp://127.0.0.1/?{CANARY}") == 400
    assert await run.subscribe(gone, lease_seconds=CANARY) == 400
    await run.logged("is unreachable")
    for head in (f"Authorization: Bearer {CANARY}\x01", f"Authorization {CANARY}", f"A{CANARY}\0:"):
        sent = f"GET / HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n"
        assert await answer_to(run.hub.url, sent.encode())  # only the sender receives this
    assert await answer_to(run.hub.url, f"GET /?{CANARY} HTTP/9\r\n\r\n".encode())
    socket = await run.hub.websocket(Authorization=f"Bearer {WRONG}")
    await socket.send_json({"type": "publish", "topic": TOPIC})
    run.answers.append(str(await socket.receive()))


async def act(run: Run) -> None:
    """Send all requests of an admin, and read everything."""
    socket = await run.hub.listen(0)
    run.answers.append(await socket.receive_str())
    async with run.hub.session.get(run.hub.url + "admin/openapi.json") as response:
        paths = (await response.json())["paths"]
    for path in paths:
        if "get" in paths[path] and "{" not in path:
            assert await run.ask("GET", path.lstrip("/"), ADMIN) == 200
    headers = {"Authorization": f"Bearer {WEB_TOKEN}"}
    async with run.hub.session.get(run.hub.url + "admin/subscriptions", headers=headers) as found:
        (row,) = (await found.json())["subscriptions"]
    for action in ("suspend", "resume", "redeliver"):
        assert await run.ask("POST", f"admin/subscriptions/{row['id']}/{action}", ADMIN) == 200
    for path in ("", "topics", "metrics", "healthz", "readyz", "dashboard/session", "nowhere"):
        await run.ask("GET", path, ADMIN)


@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_no_secret_is_in_anything_that_a_busy_hub_writes_or_answers(
    tmp_path: Path, callback: Callback, log_format: str
):
    async with running(tmp_path, log_format) as run:
        await busy(run, callback, tmp_path)
    assert len(run.log) > 8
    assert len(run.answers) > 30
    for text in (*run.answers, *run.log):
        assert [leak for leak in LEAKS if leak in text] == [], text
    if log_format == "json":
        for line in run.log:
            event = msgspec.json.decode(line, type=dict[str, Any])
            assert {"level", "logger", "message"} < set(event)
            parse_datetime(event["time"])
