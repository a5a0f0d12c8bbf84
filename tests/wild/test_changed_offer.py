"""A static host whose Capability List names other documents while the old ones stay there.

A generator that gives its files new names, or a set that moves to another folder, leaves the old
files behind. Who remembers what was offered once (core §9) and never looks again reads a Change
List that never changes: nothing is missing in it, and nothing of it is new.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wild.documents import (
    capability_list,
    change_list,
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
from tests.wild.source import Answer, WildSource


@pytest.fixture
async def copied(source: WildSource, folder: Path) -> Path:
    """Copy a resource, with a Change List of nothing so far."""
    source.offer()
    source.file("a", b"old")
    listed = [entry(source.uri("a"), lastmod=source.t(0), content=b"old")]
    source.put("resourcelist.xml", resource_list(listed, at=source.t(10)))
    source.put("changelist.xml", change_list(from_=source.t(5)))
    outcome = await follow_once(source, folder)
    assert outcome.claims, outcome
    source.forget()
    return folder


def change(source: WildSource, name: str) -> None:
    """Change the resource, and list that in a Change List of this name."""
    content = source.file("a", b"new", 60)
    changed = entry(source.uri("a"), "updated", datetime=source.t(60), content=content)
    source.put(name, change_list([changed], from_=source.t(5)))


async def test_another_change_list_is_read(source: WildSource, copied: Path) -> None:
    change(source, "second.xml")
    source.offer(changelist="second.xml")
    outcome = await command_follow_once(source, copied)
    assert_honest(copied, source, outcome)
    assert outcome.claims, outcome


async def test_an_unchanged_offer_costs_one_conditional_request_of_each_document(
    source: WildSource, folder: Path
) -> None:
    source.offer()
    source.put("resourcelist.xml", resource_list([], at=source.t(10)))
    source.put("changelist.xml", change_list(from_=source.t(5)))
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
    source: WildSource, copied: Path
) -> None:
    content = source.file("a", b"new", 60)
    changed = entry(source.uri("a"), "updated", datetime=source.t(60), content=content)
    source.put("closed.xml", change_list([changed], from_=source.t(5), until=source.t(100)))
    source.put("changelist.xml", change_list(from_=source.t(100)))
    source.put("resourcelist.xml", Answer(status=503))
    outcome = await run_honest(source, copied)
    assert not outcome.claims
    archived = entry(source.uri("closed.xml"), from_=source.t(5), until=source.t(100))
    source.put("archive.xml", urlset([archived], md(capability="changelist-archive")))
    source.offer(**{"changelist-archive": "archive.xml"})
    await run_right(source, copied)


@pytest.mark.parametrize("answer", [Answer(status=503), Answer(b"<urlset"), Answer(b"<no/>")])
async def test_an_offer_that_cannot_be_checked_is_doubted(
    answer: Answer, source: WildSource, copied: Path
) -> None:
    change(source, "second.xml")
    source.put("capabilitylist.xml", answer)
    outcome = await command_follow_once(source, copied)
    assert_honest(copied, source, outcome)
    assert outcome.code == 1
    assert "capabilitylist.xml" in outcome.reasons[0]


async def test_a_capability_list_that_is_gone_is_looked_for_from_the_start(
    source: WildSource, folder: Path
) -> None:
    source.offer()
    source.put("resourcelist.xml", resource_list([], at=source.t(10)))
    source.put("changelist.xml", change_list(from_=source.t(5)))
    assert (await follow_once(source.site, folder)).claims
    content = source.file("a", b"new", 60)
    changed = entry(source.uri("a"), "created", datetime=source.t(60), content=content)
    listed = entry(source.uri("a"), lastmod=source.t(60), content=content)
    source.put("resourcelist.xml", resource_list([listed], at=source.t(70)))
    source.put("second.xml", change_list([changed], from_=source.t(5)))
    source.put(
        "capabilities.xml",
        capability_list(
            {"changelist": source.uri("second.xml"), "resourcelist": source.uri("resourcelist.xml")}
        ),
    )
    source.put("/.well-known/resourcesync", description([source.uri("capabilities.xml")]))
    source.put("capabilitylist.xml", Answer(status=410))
    outcome = await follow_once(source.site, folder)
    assert_honest(folder, source, outcome)
    assert outcome.claims, outcome


async def test_a_capability_list_that_is_not_listed_any_more_is_left(
    source: WildSource, folder: Path
) -> None:
    source.offer()
    source.file("a", b"old")
    listed = [entry(source.uri("a"), lastmod=source.t(0), content=b"old")]
    source.put("resourcelist.xml", resource_list(listed, at=source.t(10)))
    source.put("changelist.xml", change_list(from_=source.t(5)))
    assert (await follow_once(source.site, folder)).claims
    source.remove("a")
    moved = "/elsewhere/a"
    source.put(moved, b"new")
    listed = [entry(source.uri(moved), lastmod=source.t(60), content=b"new")]
    source.put("/elsewhere/resourcelist.xml", resource_list(listed, at=source.t(100)))
    source.put("/elsewhere/changelist.xml", change_list(from_=source.t(5)))
    offered = {
        "resourcelist": source.uri("/elsewhere/resourcelist.xml"),
        "changelist": source.uri("/elsewhere/changelist.xml"),
    }
    source.put("/elsewhere/capabilitylist.xml", capability_list(offered))
    there = source.uri("/elsewhere/capabilitylist.xml")
    source.put("/.well-known/resourcesync", description([there]))
    outcome = await follow_once(source.site, folder)
    place = source.site.partition("://")[2]
    assert_honest(folder, {f"@@http/{place}{moved}": b"new"}, outcome)
    assert outcome.claims, outcome
    outcome = await command_audit(source.site, folder)
    assert outcome.code == 0, outcome
    source.put("/.well-known/resourcesync", description([there + "2", there + "3"]))
    outcome = await command_follow_once(source.site, folder)
    assert not outcome.claims
    assert "several sets" in outcome.reasons[0]


async def test_a_follower_that_begins_with_the_old_offer_is_not_level_by_it(
    source: WildSource, copied: Path
) -> None:
    change(source, "second.xml")
    source.offer(changelist="second.xml")
    now = source.answers[source._path("capabilitylist.xml")]
    source.put("capabilitylist.xml", Answer(status=503), now)
    async with following(source, copied, pace=pace(poll_with_push=0.1)) as one:
        await until(one, lambda status: bool(status.doubts))
        assert not one.status.level
        await until(one, lambda status: status.level)
        assert (copied / "a").read_bytes() == b"new"
