"""A real hub whose disk is full for a while."""

from __future__ import annotations

import resource
import sqlite3
from pathlib import Path

import pytest

from rsnotify.format.reader import read_document
from tests.hub.helpers import TOPIC, Callback, Client, fragment, heard, seconds_of
from tests.hub.processes import hub_process

prlimit = getattr(resource, "prlimit", None)
pytestmark = pytest.mark.skipif(prlimit is None, reason="prlimit is of Linux")

LARGE = 20_000


def allow_files(process: int, size: int | None) -> None:
    """Limit the size of the files that a process may write; None removes the limit."""
    assert prlimit is not None
    _, most = prlimit(process, resource.RLIMIT_FSIZE)
    prlimit(process, resource.RLIMIT_FSIZE, (most if size is None else size, most))


async def fill(hub: Client) -> int:
    """Publish until the hub refuses; return the last accepted second."""
    for second in range(1, 1000):
        body = fragment(second - 1, second, padding=LARGE)
        headers = {"Content-Type": "application/xml", "Link": f'<{TOPIC}>; rel="self"'}
        async with hub.session.post(hub.url + "websub", data=body, headers=headers) as answer:
            if answer.status != 202:
                assert answer.status == 503
                assert int(answer.headers["Retry-After"]) > 0
                assert "cannot write" in await answer.text()
                return second - 1
    raise AssertionError("the disk never was full")


async def changes_known(hub: Client) -> list[float]:
    status, body = await hub.get(f"topics?topic={TOPIC}&since=2026")
    assert status == 200
    found = seconds_of(body)
    assert read_document(body.encode()).until is not None
    return found


async def test_a_hub_with_a_full_disk_acknowledges_nothing_serves_readers_and_recovers(
    tmp_path: Path, callback: Callback
):
    async with hub_process(tmp_path, "--config", str(quick_retries(tmp_path))) as (hub, process):
        await hub.subscribe(callback)
        live = await hub.listen()
        allow_files(process.pid, 500_000)
        last = await fill(hub)
        assert last > 3
        # Readers are served: from memory, from the disk, and live.
        assert await heard(live, last) == list(range(1, last + 1))
        assert await heard(await hub.listen(0), last) == list(range(1, last + 1))
        assert await changes_known(hub) == list(range(1, last + 1))
        assert (await hub.get("healthz"))[0] == 200
        assert 503 in [(await hub.get("readyz"))[0] for _ in range(50)]  # each writes a little
        for _ in range(3):
            status, _ = await hub.publish(fragment(last, last + 1, padding=LARGE))
            assert status == 503
        source = await hub.source()
        await source.send_str(fragment(last, last + 1, padding=LARGE).decode())
        refusal = await source.receive_json()
        assert (refusal["type"], refusal["code"]) == ("error", "unavailable")

        allow_files(process.pid, None)
        await hub.accepted(fragment(last, last + 1, padding=LARGE))
        assert (await hub.get("readyz"))[0] == 200
        expected = list(range(1, last + 2))
        assert await heard(live, last + 1) == [last + 1]
        assert await heard(await hub.listen(0), last + 1) == expected
        assert await changes_known(hub) == expected
        delivered: list[float] = []
        while not delivered or delivered[-1] != last + 1:
            delivered += seconds_of((await callback.delivery())[1])
        assert sorted(set(delivered)) == expected
    database = sqlite3.connect(tmp_path / "hub.sqlite")
    assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    database.close()


def quick_retries(folder: Path) -> Path:
    path = folder / "hub.toml"
    # A client that is silent while the test does other things is not disconnected.
    path.write_text("retry_seconds = 0.05\nwebsocket_ping_seconds = 600\n")
    return path
