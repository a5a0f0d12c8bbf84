"""Content inside fragments and lists does no harm to a Destination that only pulls."""

from __future__ import annotations

import asyncio
from pathlib import Path

from msgspec.structs import replace

from rsnotify.format.datetimes import format_datetime
from tests.interop.clients import ResyncClient, contents
from tests.publisher.helpers import FakeHub, Start, put
from tests.subscriber.source import SmallSource, path_of


async def test_it_follows_a_change_list_that_carries_content(client: ResyncClient) -> None:
    source = SmallSource()
    await source.server.start()
    try:
        for name in ("b", "a"):
            source.put(name, name.encode())
        await asyncio.to_thread(client.baseline, source.base)
        since = format_datetime(source.last)
        source.put_inline("a", b"changed")
        source.put_inline("c", b"new")
        source.delete("b")
        # It reads no other time of a change.
        source.changes = [replace(one, lastmod=one.datetime) for one in source.changes]
        source.gets.clear()
        await asyncio.to_thread(client.incremental, source.base, "--from", since)
        assert contents(client.copy) == {"a": b"changed", "c": b"new"}
        assert all(source.gets[path_of(name)] == 1 for name in ("a", "c"))
    finally:
        await source.server.stop()


async def test_it_follows_a_source_that_sends_content_to_others(
    folder: Path, source: Start, client: ResyncClient
) -> None:
    hub = FakeHub()
    await hub.start()
    try:
        put(folder / "a.ttl", "<a> <b> <c> .")
        process = await asyncio.to_thread(source, "--hub", hub.url)
        await asyncio.to_thread(client.baseline, process.url)
        put(folder / "a.ttl", "<a> <b> <changed> .")
        put(folder / "b.ttl", "<b> <b> <new> .")
        await hub.has(process.url + "a.ttl", process.url + "b.ttl")
        entries = [entry for fragment in hub.fragments for entry in fragment.resources]
        assert any(link.href.startswith("data:") for entry in entries for link in entry.links)
        await asyncio.to_thread(process.wait_for_change, "updated", "a.ttl")
        await asyncio.to_thread(process.wait_for_change, "created", "b.ttl")
        await asyncio.to_thread(client.incremental, process.url)
        assert contents(client.copy) == contents(folder)
    finally:
        await hub.stop()
