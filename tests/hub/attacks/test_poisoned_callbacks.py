"""Callbacks that misbehave in every way do not delay the deliveries to others."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from msgspec import Struct

from rsnotify.runtime import http_client as connection
from rsnotify_hub.websub.request_scheduler import Capacity, RequestScheduler
from rsnotify_hub.websub_subscription import DeliveryState
from tests.hub.attacks.helpers import Names, raw_server
from tests.hub.deliveries import Deliveries, opened_channel
from tests.hub.helpers import TOPIC, Callback, Clock, RunHub, fragment
from tests.waiting import PATIENCE


class Poison(Struct, frozen=True):
    """What a callback does with every connection, before it closes it."""

    first: bytes = b""
    then: bytes = b""  # without end
    pause: float = 0
    hangs: bool = False
    reads: bool = True
    resets: bool = False

    async def answer(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if not self.reads:
            writer.transport.pause_reading()
        if self.resets:
            own: socket.socket = writer.get_extra_info("socket")
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.write(self.first)
        await writer.drain()
        while self.then:
            writer.write(self.then)
            await writer.drain()
            await asyncio.sleep(self.pause)
        if self.hangs:
            await asyncio.Event().wait()


NO = b"HTTP/1.1 500 No\r\n"
HANGS = Poison(hangs=True)
#: These end only when their time is up, which is when the test says so.
ENDLESS = {
    "hangs": HANGS,
    "trickles a head": Poison(b"HTTP/1.1 200 OK\r\nX: ", b"x", pause=0.01),
    "reads nothing": Poison(reads=False, hangs=True),
}
POISONS = ENDLESS | {
    "trickles a reason": Poison(NO + b"Content-Length: 100000\r\n\r\n", b"x", pause=0.01),
    "resets": Poison(resets=True),
    "hangs up": Poison(),
    "floods": Poison(
        NO + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    ),
    "promises more": Poison(NO + b"Content-Length: 1000\r\n\r\nshort"),
    "promises less": Poison(NO + b"Content-Length: 1\r\n\r\n" + b"HTTP/1.1 200 OK\r\n\r\n" * 9),
    "contradicts": Poison(
        NO + b"Content-Length: 5\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
    ),
    "sends huge headers": Poison(b"HTTP/1.1 200 OK\r\n", b"X-Y: " + b"x" * 60_000 + b"\r\n"),
    "promises for ever": Poison(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "switches": Poison(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", hangs=True
    ),
    "redirects": Poison(b"HTTP/1.1 307 Here\r\nLocation: /callback\r\nContent-Length: 0\r\n\r\n"),
    "speaks no HTTP": Poison(b"220 mail.example ESMTP\r\n"),
    "babbles": Poison(bytes(range(256)) * 100),
    "inflates": Poison(NO + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x08"),
    "bombs": Poison(
        NO + b"Content-Encoding: gzip\r\nRetry-After: 9999999999\r\n\r\n" + bytes(6_553_600)
    ),
}


@asynccontextmanager
async def poisoned(poison: Poison) -> AsyncIterator[str]:
    """A callback that does not even read requests first."""
    async with raw_server(poison.answer, reads_heads=False) as server:
        yield server.url("/callback")


@pytest.mark.parametrize("name", POISONS)
async def test_a_poisoned_callback_fails_and_the_others_get_everything(
    name: str, tmp_path: Path, callback: Callback, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(connection, "EXCERPT_SECONDS", 0.05)
    async with (
        poisoned(POISONS[name]) as url,
        opened_channel(tmp_path, clock, retry_seconds=600) as deliveries,
    ):
        bad = await deliveries.subscribed(url)

        def has_failed() -> bool:
            if name in ENDLESS and bad.slot is not None:
                bad.slot.expire()
            return bad.failures > 0

        await deliveries.subscribed(callback)
        for second in (1, 2, 3):
            await deliveries.publish(second)
            assert (await callback.delivery())[1] == fragment(second - 1, second)
        await deliveries.until(has_failed)
        assert bad.state is DeliveryState.RETRYING
        assert len(bad.last_failure.excerpt) <= 512
        assert bad.subscription.position == 0


async def test_many_hanging_callbacks_delay_no_others(
    tmp_path: Path, callback: Callback, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("rsnotify_hub.websub.sender.CLOSE_SECONDS", 0)
    # The slow queue has capacity for a sound callback, too, in case the machine delays it.
    quick, slow = Capacity(4, 4), Capacity(3, 2)
    scheduler = RequestScheduler(1000, quick=quick, slow=slow, quick_seconds=0.5)
    async with (
        poisoned(HANGS) as url,
        opened_channel(tmp_path, clock, scheduler, retry_seconds=600) as deliveries,
    ):
        for number in range(12):
            await deliveries.subscribed(f"{url}/{number}")
        good = await deliveries.subscribed(callback)
        for second in (1, 2, 3):
            await deliveries.publish(second)
            assert (await callback.delivery())[1] == fragment(second - 1, second)
        await deliveries.until(lambda: good.behind_since is None)


async def test_a_success_is_one_whatever_its_body(deliveries: Deliveries):
    lie = Poison(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\nx", hangs=True)
    async with poisoned(lie) as url:
        delivery = await deliveries.subscribed(url)
        await deliveries.publish(1)
        await deliveries.until(lambda: delivery.subscription.position == 1)
        assert (delivery.failures, delivery.last_failure) == (0, None)


async def test_verifications_that_hang_at_many_hosts_delay_no_other(
    run_hub: RunHub, callback: Callback, names: Names
):
    """No request ends by itself here, so another is served only because of fairness."""
    hosts = [f"host-{number}.evil.test" for number in range(20)]
    names.addresses.update((name, ["127.0.0.1"]) for name in hosts)
    async with run_hub(callback_seconds=1000) as hub, raw_server(HANGS.answer) as server:
        urls = [f"http://{name}:{server.port}/{path}" for path in range(10) for name in hosts]
        forms = (hub.form(mode="subscribe", topic=TOPIC, callback=url) for url in urls)
        assert {*await asyncio.gather(*forms)} == {(202, "")}
        async with asyncio.timeout(PATIENCE):
            while True:
                # Again, if a slow machine has ended the verification as one that takes too long.
                with suppress(TimeoutError):
                    async with asyncio.timeout(PATIENCE / 6):
                        return await hub.subscribe(callback)
