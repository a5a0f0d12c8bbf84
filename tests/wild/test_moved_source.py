"""A Source that moved to another host, with permanent redirects (RFC 9110 §15.4.2).

The old host is switched off some day. Who went on asking there is lost then; who follows the
redirect finds the same set, with resources at new URIs, of which the new lists tell.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.wild.documents import change_list, entry, resource_list
from tests.wild.running import (
    assert_honest,
    command_audit,
    command_follow_once,
    follow_once,
    following,
    run_right,
    until,
)
from tests.wild.source import Answer, WildSource, moved

#: The new place is another port of loopback, which the user did not name.
PRIVATE = "--allow-private-addresses"
ANYWHERE = {"allow_private_addresses": True}


@pytest.fixture
async def new() -> AsyncIterator[WildSource]:
    new = WildSource()
    await new.server.start()
    yield new
    await new.server.stop()


def describe(source: WildSource, at: float = 10) -> None:
    listed = [
        entry(source.uri(name), lastmod=source.t(0), content=content)
        for name, content in source.resources.items()
    ]
    source.offer()
    source.put("resourcelist.xml", resource_list(listed, at=source.t(at)))
    source.put("changelist.xml", change_list(from_=source.t(5)))


@pytest.fixture
async def copied(source: WildSource, folder: Path) -> Path:
    source.file("a", b"1")
    source.file("b", b"2")
    describe(source)
    await run_right(source, folder)
    return folder


def move(source: WildSource, new: WildSource, code: int = 301) -> dict[str, bytes]:
    """Move all to another host, change something there, and return what a right copy holds."""
    new.file("a", b"1")
    new.file("c", b"3")
    describe(new, at=20)
    for path in list(source.answers):
        source.put(path, moved(new.site + path, code))
    place = new.site.partition("://")[2]
    return {f"@@http/{place}/set/{name}": content for name, content in new.resources.items()}


@pytest.mark.parametrize("code", [301, 308])
async def test_a_copy_follows_to_where_its_source_moved(
    code: int, source: WildSource, new: WildSource, copied: Path
) -> None:
    right = move(source, new, code)
    outcome = await command_follow_once(source, copied, PRIVATE)
    assert_honest(copied, right, outcome)
    assert outcome.claims, outcome
    assert (await command_audit(source, copied, PRIVATE)).code == 0
    await source.server.stop()
    content = new.file("c", b"4", 60)
    updated = entry(new.uri("c"), "updated", datetime=new.t(60), content=content)
    new.put("changelist.xml", change_list([updated], from_=new.t(5)))
    right = {name: new.resources[name[-1]] for name in right}
    outcome = await follow_once(source, copied, **ANYWHERE)
    assert_honest(copied, right, outcome)
    assert outcome.claims, outcome
    outcome = await follow_once(new, copied, **ANYWHERE)  # the user has heard of it, too
    assert_honest(copied, right, outcome)
    assert outcome.claims, outcome


async def test_the_new_place_may_be_named_as_long_as_the_old_one_leads_there(
    source: WildSource, new: WildSource, copied: Path
) -> None:
    right = move(source, new)
    outcome = await follow_once(new, copied, **ANYWHERE)
    assert_honest(copied, right, outcome)
    assert outcome.claims, outcome


async def test_what_is_moved_for_a_while_is_asked_for_at_its_place(
    source: WildSource, new: WildSource, copied: Path
) -> None:
    before = source.answers[source._path("capabilitylist.xml")]
    describe(new)
    source.put("capabilitylist.xml", moved(source.uri("other.xml"), 307), before)
    source.put("other.xml", before)
    await run_right(source, copied, **ANYWHERE)
    source.put("other.xml", Answer(status=404))
    await run_right(source, copied, **ANYWHERE)


async def test_a_redirect_leads_to_no_private_address_that_was_not_named(
    source: WildSource, new: WildSource, folder: Path
) -> None:
    describe(source)
    named = source.url.replace("127.0.0.1", "localhost")
    options = {"allow_private_addresses": True}
    assert (await follow_once(named, folder, **options)).claims
    source.put("capabilitylist.xml", moved(new.url))
    describe(new)
    outcome = await follow_once(named, folder)
    assert not outcome.claims
    assert "private" in outcome.reasons[0]
    outcome = await follow_once(named, folder, **options)
    assert outcome.claims, outcome


async def test_a_follower_compares_all_where_its_source_moved(
    source: WildSource, new: WildSource, copied: Path
) -> None:
    right = move(source, new)
    async with following(source, copied, **ANYWHERE) as one:
        await until(one, lambda status: status.level and status.resources == len(right))
        assert {path.name for path in copied.rglob("*") if path.is_file()} == {"a", "c"}
