"""A Source that moved to another host, with permanent redirects (RFC 9110 §15.4.2).

The old host is switched off some day. Who went on asking there is lost then; who follows the
redirect finds the same set, with resources at new URIs, of which the new lists tell.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rsnotify.errors import Unavailable
from rsnotify_subscriber import audit
from rsnotify_subscriber.storage.destination_state import DestinationState
from rsnotify_subscriber.storage.identity import Identity
from tests.wild.documents import (
    capability_list,
    description,
    entry,
    md,
    resource_list,
    urlset,
)
from tests.wild.running import (
    assert_honest,
    command_audit,
    command_follow_once,
    follow_once,
    following,
    pace,
    run_honest,
    run_right,
    until,
)
from tests.wild.source import Answer, Source, moved

#: The new place is another port of loopback, which the user did not name.
PRIVATE = "--allow-private-addresses"
ANYWHERE = {"allow_private_addresses": True}


@pytest.fixture
async def new() -> AsyncIterator[Source]:
    new = Source()
    await new.server.start()
    yield new
    await new.server.stop()


def describe(source: Source, at: float = 10) -> None:
    source.offer()
    source.list_resources(at, dated=True)
    source.list_changes()


@pytest.fixture
async def copied(source: Source, folder: Path) -> Path:
    source.file("a", b"1")
    source.file("b", b"2")
    describe(source)
    await run_right(source, folder)
    return folder


def move(source: Source, new: Source, code: int = 301) -> dict[str, bytes]:
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
    code: int, source: Source, new: Source, copied: Path
):
    right = move(source, new, code)
    outcome = await command_follow_once(source, copied, PRIVATE)
    assert_honest(copied, right, outcome)
    assert outcome.claims, outcome
    assert (await command_audit(source, copied, PRIVATE)).code == 0
    await source.server.stop()
    new.list_changes(new.update("c", 60, b"4"))
    right = {name: new.resources[name[-1]] for name in right}
    await run_right(source, copied, right, **ANYWHERE)
    await run_right(new, copied, right, **ANYWHERE)  # the user has heard of it, too


async def test_the_new_place_may_be_named_as_long_as_the_old_one_leads_there(
    source: Source, new: Source, copied: Path
):
    right = move(source, new)
    await run_right(new, copied, right, **ANYWHERE)


async def test_what_is_moved_for_a_while_is_asked_for_at_its_place(
    source: Source, new: Source, copied: Path
):
    before = source.answers[source._path("capabilitylist.xml")]
    describe(new)
    source.put("capabilitylist.xml", moved(source.uri("other.xml"), 307), before)
    source.put("other.xml", before)
    await run_right(source, copied, **ANYWHERE)
    source.put("other.xml", Answer(status=404))
    await run_right(source, copied, **ANYWHERE)


async def test_a_redirect_leads_to_no_private_address_that_was_not_named(
    source: Source, new: Source, folder: Path
):
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
    source: Source, new: Source, copied: Path, monkeypatch: pytest.MonkeyPatch
):
    store = DestinationState.store_identity

    def store_slowly(self: DestinationState, identity: Identity) -> None:
        time.sleep(0.3)  # on a busy disk; in the thread of the state
        store(self, identity)

    monkeypatch.setattr(DestinationState, "store_identity", store_slowly)
    right = move(source, new)
    async with following(source, copied, **ANYWHERE) as one:
        await until(one, lambda status: status.level and status.resources == len(right))
        assert {path.name for path in copied.rglob("*") if path.is_file()} == {"a", "c"}


# An operator names another Source than the one that the folder is a copy of.


@pytest.fixture
async def copy_of_one_set(source: Source, folder: Path) -> Path:
    """Copy one of two sets, whose documents are in one folder."""
    source.offer()
    source.put("a", b"1")
    source.put("b", b"2")
    for name, content in ((".xml", b"1"), ("-other.xml", b"2")):
        uri = source.uri("a" if content == b"1" else "b")
        listed = [entry(uri, lastmod=source.t(0), content=content)]
        source.put(f"resourcelist{name}", resource_list(listed, at=source.t(10)))
        source.list_changes(name=f"changelist{name}")
        offered = {kind: source.uri(kind + name) for kind in ("resourcelist", "changelist")}
        source.put(f"capabilitylist{name}", capability_list(offered))
    source.resources["a"] = b"1"
    await run_right(source, folder)
    return folder


@pytest.mark.parametrize("name", ["capabilitylist-other.xml", "changelist-other.xml"])
async def test_another_set_is_neither_audited_nor_followed(
    name: str, source: Source, copy_of_one_set: Path
):
    other = source.uri(name)
    outcome = await command_audit(other, copy_of_one_set)
    assert outcome.code == 2
    assert source.url in outcome.reasons[0]
    assert other in outcome.reasons[0]
    outcome = await command_follow_once(other, copy_of_one_set)
    assert outcome.code == 2
    assert source.url in outcome.reasons[0]
    assert_honest(copy_of_one_set, source, outcome)


@pytest.mark.parametrize("name", ["/", "resourcelist.xml", "changelist.xml"])
async def test_another_way_to_the_same_set_may_be_named(
    name: str, source: Source, copy_of_one_set: Path
):
    await run_right(source.uri(name), copy_of_one_set, source.resources)
    assert (await audit(source.uri(name), copy_of_one_set, pause=0)).in_step


async def test_a_source_that_is_away_is_not_audited_by_heart(source: Source, copy_of_one_set: Path):
    await source.server.stop()
    for url in (source.url, source.uri("changelist.xml")):
        with pytest.raises(Unavailable):
            await audit(url, copy_of_one_set, pause=0)


# A static host whose Capability List names other documents while the old ones stay there.
#
# A generator that gives its files new names, or a set that moves to another folder, leaves the old
# files behind. Who remembers what was offered once (core §9) and never looks again reads a Change
# List that never changes: nothing is missing in it, and nothing of it is new.


@pytest.fixture
async def copy_of_one_resource(source: Source, folder: Path) -> Path:
    """Copy a resource, with a Change List of nothing so far."""
    source.file("a", b"old")
    describe(source)
    await run_right(source, folder)
    source.forget()
    return folder


def list_a_change(source: Source, name: str) -> None:
    """Change the resource, and list that in a Change List of this name."""
    source.list_changes(source.update("a", 60, b"new"), name=name)


async def test_another_change_list_is_read(source: Source, copy_of_one_resource: Path):
    list_a_change(source, "second.xml")
    source.offer(changelist="second.xml")
    await run_right(source, copy_of_one_resource)


async def test_an_unchanged_offer_costs_one_conditional_request_of_each_document(
    source: Source, folder: Path
):
    describe(source)
    offered = ("capabilitylist.xml", "/.well-known/resourcesync")
    for name in offered:
        answer = source.answers[source._path(name)]
        assert isinstance(answer, Answer)
        answer.etag, answer.modified = '"1"', source.t(0)
    for _ in range(3):
        source.forget()
        outcome = await follow_once(source.site, folder)
        assert outcome.claims, outcome
    for name in offered:
        assert [one.status for one in source.requests(name)] == [304], name
    assert len(source.log) == 3  # and the Change List


async def test_an_archive_that_is_offered_later_closes_a_gap(
    source: Source, copy_of_one_resource: Path
):
    source.list_changes(source.update("a", 60, b"new"), until=100, name="closed.xml")
    source.list_changes(from_=100)
    source.put("resourcelist.xml", Answer(status=503))
    outcome = await run_honest(source, copy_of_one_resource)
    assert not outcome.claims
    archived = entry(source.uri("closed.xml"), from_=source.t(5), until=source.t(100))
    source.put("archive.xml", urlset([archived], md(capability="changelist-archive")))
    source.offer(**{"changelist-archive": "archive.xml"})
    await run_right(source, copy_of_one_resource)


@pytest.mark.parametrize("answer", [Answer(status=503), Answer(b"<urlset"), Answer(b"<no/>")])
async def test_an_offer_that_cannot_be_checked_is_doubted(
    answer: Answer, source: Source, copy_of_one_resource: Path
):
    list_a_change(source, "second.xml")
    source.put("capabilitylist.xml", answer)
    outcome = await run_honest(source, copy_of_one_resource)
    assert not outcome.claims
    assert "capabilitylist.xml" in outcome.reasons[0]


async def test_a_capability_list_that_is_gone_is_looked_for_from_the_start(
    source: Source, folder: Path
):
    describe(source)
    assert (await follow_once(source.site, folder)).claims
    source.list_changes(source.create("a", 60, b"new"), name="second.xml")
    source.list_resources(70)
    source.offer(changelist="second.xml")
    source.put("capabilities.xml", source.answers[source._path("capabilitylist.xml")])
    source.put("/.well-known/resourcesync", description([source.uri("capabilities.xml")]))
    source.put("capabilitylist.xml", Answer(status=410))
    await run_right(source.site, folder, source.resources)


async def test_a_capability_list_that_is_not_listed_any_more_is_left(source: Source, folder: Path):
    source.file("a", b"old")
    describe(source)
    assert (await follow_once(source.site, folder)).claims
    source.remove("a")
    moved = "/elsewhere/a"
    source.put(moved, b"new")
    listed = [entry(source.uri(moved), lastmod=source.t(60), content=b"new")]
    source.put("/elsewhere/resourcelist.xml", resource_list(listed, at=source.t(100)))
    source.list_changes(name="/elsewhere/changelist.xml")
    kinds = ("resourcelist", "changelist")
    offered = {kind: source.uri(f"/elsewhere/{kind}.xml") for kind in kinds}
    source.put("/elsewhere/capabilitylist.xml", capability_list(offered))
    there = source.uri("/elsewhere/capabilitylist.xml")
    source.put("/.well-known/resourcesync", description([there]))
    place = source.site.partition("://")[2]
    await run_right(source.site, folder, {f"@@http/{place}{moved}": b"new"})
    outcome = await command_audit(source.site, folder)
    assert outcome.code == 0, outcome
    source.put("/.well-known/resourcesync", description([there + "2", there + "3"]))
    outcome = await command_follow_once(source.site, folder)
    assert not outcome.claims
    assert "several sets" in outcome.reasons[0]


async def test_a_follower_that_begins_with_the_old_offer_is_not_level_by_it(
    source: Source, copy_of_one_resource: Path
):
    list_a_change(source, "second.xml")
    source.offer(changelist="second.xml")
    now = source.answers[source._path("capabilitylist.xml")]
    source.put("capabilitylist.xml", Answer(status=503), now)
    async with following(source, copy_of_one_resource, pace=pace(poll_with_push=0.1)) as one:
        await until(one, lambda status: bool(status.doubts))
        assert not one.status.level
        await until(one, lambda status: status.level)
        assert (copy_of_one_resource / "a").read_bytes() == b"new"
