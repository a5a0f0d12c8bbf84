"""Documents of another set at the URI of this one, as of a server that confuses its hosts.

Their link with `rel="up"` names another Capability List. Healthy Sources have such links, too: they
are reached by several names, or have moved.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from rsnotify.errors import WrongDocument
from tests.wild.documents import (
    capability_list,
    change_list,
    entry,
    index,
    ln,
    md,
    member,
    resource_list,
    urlset,
)
from tests.wild.running import (
    Copy,
    Folder,
    Outcome,
    assert_honest,
    audited,
    follow_once,
    following,
    pace,
    run_honest,
    until,
    until_right,
)
from tests.wild.source import Answer, Source

OTHER = "http://localhost:1/other/capabilitylist.xml"


@pytest.fixture(autouse=True)
def begun(source: Source) -> None:
    source.offer()
    for name in ("a", "b"):
        source.file(name, b"1")
    lists(source, [])


def lists(source: Source, up: list[str], at: float = 10, from_: float = 5) -> None:
    """Put a Resource List and a Change List with these links."""
    source.list_resources(at, links=up)
    source.list_changes(from_=from_, links=up)


def update(source: Source) -> None:
    """Change a resource, which the right Change List says."""
    source.list_changes(source.update("a", 50, b"2"))


def wrong_change_list(source: Source) -> bytes:
    return change_list(from_=source.t(5), until=source.t(1000), links=[ln("up", OTHER)])


async def followed(source: Source, copy: Copy) -> Outcome:
    outcome = await run_honest(source, copy)
    if isinstance(copy, Folder):
        with suppress(WrongDocument):  # the command says so, too
            assert_honest(copy, source, await audited(source, copy.path))
    return outcome


@pytest.mark.parametrize("form", ["a list", "a member of an index", "a rotated list"])
async def test_an_empty_change_list_of_another_host_does_not_move_t(
    source: Source, copy: Copy, form: str
):
    before = await followed(source, copy)
    update(source)
    right = source.answers["/set/changelist.xml"]
    source.put("changelist.xml", wrong_change_list(source))
    if form == "a member of an index":
        members = [member(source.uri("1.xml"), from_=source.t(5))]
        source.put("changelist.xml", index("changelist", members, from_=source.t(5)))
        source.put("1.xml", wrong_change_list(source))
    elif form == "a rotated list":
        rotated = change_list(from_=source.t(7), until=source.t(1000), links=[ln("up", OTHER)])
        source.put("changelist.xml", rotated)
    wrong = await followed(source, copy)
    assert not wrong.claims
    assert wrong.status.through == before.status.through
    assert any(OTHER in reason for reason in wrong.reasons)
    source.answers["/set/changelist.xml"] = right
    assert (await followed(source, copy)).claims


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "data:,x", "http://[", "http://xn--/", "http://169.254.1.1/c"]
)
async def test_a_link_that_leads_nowhere_is_a_doubt(source: Source, copy: Copy, target: str):
    await followed(source, copy)
    update(source)
    wrong = change_list(from_=source.t(5), until=source.t(1000), links=[ln("up", target)])
    source.put("changelist.xml", wrong)
    outcome = await followed(source, copy)
    assert not outcome.claims
    assert any("rel=up" in reason for reason in outcome.reasons)


async def test_a_cache_with_the_list_of_another_host_is_passed(source: Source, copy: Copy):
    await followed(source, copy)
    update(source)
    right, wrong = source.answers["/set/changelist.xml"], wrong_change_list(source)
    source.put("changelist.xml", lambda asked: right if asked.past_caches else Answer(wrong))
    assert (await followed(source, copy)).claims


@pytest.mark.parametrize("links", [[], [ln("up", OTHER)]], ids=["no link", "a foreign link"])
async def test_an_empty_resource_list_from_a_cache_or_another_host_removes_nothing(
    source: Source, copy: Copy, links: list[str]
):
    source.offer(changelist=None)
    await followed(source, copy)
    right = source.answers["/set/resourcelist.xml"]
    empty = Answer(resource_list(at=source.t(1000), links=links))
    is_cached = not links
    source.put(
        "resourcelist.xml", lambda asked: right if is_cached and asked.past_caches else empty
    )
    outcome = await followed(source, copy)
    assert outcome.claims is is_cached
    assert copy.files() == source.resources


async def test_the_resources_of_another_host_do_not_replace_those_of_this_one(
    source: Source, copy: Copy
):
    await followed(source, copy)
    lists(source, [], at=50)
    entries = [entry("http://localhost:1/other/x", content=b"x")]
    wrong = resource_list(entries, at=source.t(1000), links=[ln("up", OTHER)])
    source.put("resourcelist.xml", wrong)
    outcome = await follow_once(source, copy, pace=pace(compare=0.0))
    assert copy.files() == source.resources
    assert any(OTHER in reason for reason in outcome.reasons) or outcome.claims


async def test_a_member_of_an_archive_from_another_host_closes_no_gap(source: Source, copy: Copy):
    source.offer(**{"changelist-archive": "archive.xml"})
    await followed(source, copy)
    update(source)
    right = change_list([source.changed("a", "updated", 50)], source.t(5), source.t(100))
    source.list_changes(from_=100)
    closed = [entry(source.uri("1.xml"), from_=source.t(5), until=source.t(100))]
    source.put("archive.xml", urlset(closed, md(capability="changelist-archive")))
    source.put("1.xml", change_list([], source.t(5), source.t(100), links=[ln("up", OTHER)]))
    await followed(source, copy)
    source.put("1.xml", right)
    source.list_resources(110)
    assert (await followed(source, copy)).claims


def renamed(source: Source) -> str:
    return source.uri("capabilitylist.xml").replace("http://127.0.0.1", "http://localhost")


HEALTHY: dict[str, Callable[[Source], str]] = {
    "the right one": lambda source: source.url,
    "another scheme": lambda source: source.url.replace("http:", "https:"),
    "relative": lambda _: "capabilitylist.xml",
    "another name of the host": renamed,
    "a host that is there no more": lambda _: OTHER,
    "the Source Description": lambda source: source.uri("/.well-known/resourcesync"),
}


@pytest.mark.parametrize("when", ["always", "from now on"])
@pytest.mark.parametrize("name", HEALTHY)
async def test_a_healthy_source_behind_other_names_is_not_doubted(
    source: Source, copy: Copy, name: str, when: str
):
    up = [ln("up", HEALTHY[name](source))]
    if when == "always":
        lists(source, up)
    assert (await followed(source, copy)).claims
    source.list_changes(source.update("a", 50, b"2"), links=up)
    assert (await followed(source, copy)).claims
    # The next list is empty, and its link is known by now.
    closed = change_list(from_=source.t(50), until=source.t(60), links=up)
    source.put("changelist.xml", closed)
    source.forget()
    assert (await followed(source, copy)).claims


async def test_a_name_that_the_capability_list_has_too_is_accepted(source: Source, copy: Copy):
    await followed(source, copy)
    offered = {kind: source.uri(f"{kind}.xml") for kind in ("resourcelist", "changelist")}
    described = "http://localhost:1/.well-known/resourcesync"
    source.put("capabilitylist.xml", capability_list(offered, links=[ln("up", described)]))
    source.list_changes(from_=20, links=[ln("up", OTHER)])
    assert not any(OTHER in reason for reason in (await followed(source, copy)).reasons)


async def test_a_list_of_another_host_is_not_requested_without_pause(source: Source, copy: Copy):
    await followed(source, copy)
    update(source)
    right = source.answers["/set/changelist.xml"]
    source.put("changelist.xml", wrong_change_list(source))
    source.forget()
    async with following(source, copy) as subscriber:
        await until(subscriber, lambda _: len(source.requests("changelist.xml")) >= 6)
        assert not subscriber.status.level
        source.answers["/set/changelist.xml"] = right
        await until_right(subscriber, copy, source)


async def test_no_first_copy_is_made_of_an_empty_change_list_of_another_host(
    source: Source, copy: Copy
):
    source.offer(resourcelist=None)
    source.put("changelist.xml", wrong_change_list(source))
    outcome = await follow_once(source, copy)
    assert not outcome.claims
    assert any(OTHER in reason for reason in outcome.reasons)
