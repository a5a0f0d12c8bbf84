"""Lists in several documents, some of which are missing, old, or one too many."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.subscriber.destination import PATIENCE
from tests.wild.documents import (
    capability_list,
    change_list,
    entry,
    index,
    ln,
    member,
    resource_list,
    urlset,
)
from tests.wild.running import (
    Copy,
    follow_once,
    following,
    pace,
    run_honest,
    run_right,
    until,
    until_right,
)
from tests.wild.source import Request, Source

# Lists are paged with `rs:ln rel="next"` instead of an index (AtoM Heratio does so).
#
# core §11.2 and §12.2 know indexes only. RFC 8288 registers `next`; a Destination follows it,
# within bounds, or refuses the list and says so: a first page is not the whole set.


@pytest.fixture
def four_files(source: Source) -> None:
    source.begin("a", "b", "c", "d")


def page(source: Source, names: str, then: str | None, at: float | None = 10) -> bytes:
    entries = source.listed(names)
    links = [] if then is None else [ln("next", then)]
    return resource_list(entries, None if at is None else source.t(at), links=links)


@pytest.mark.usefixtures("four_files")
async def test_all_pages_of_a_resource_list_are_the_set(source: Source, copy: Copy):
    source.put("resourcelist.xml", page(source, "ab", source.uri("page-1.xml")))
    source.put("page-1.xml", page(source, "c", "page-2.xml"))  # relative, which is allowed
    source.put("page-2.xml", page(source, "d", None, at=None))
    await run_right(source, copy)


@pytest.mark.usefixtures("four_files")
async def test_pages_of_a_change_list_are_all_read(source: Source, copy: Copy):
    await follow_once(source, copy)
    changes = [source.update("a", 100), source.delete("b", 101), source.update("c", 102)]
    names = ["changelist.xml", "changes-2.xml", "changes-3.xml"]
    for name, change, further in zip(names, changes, [*names[1:], None], strict=True):
        source.list_changes(change, name=name, links=[ln("next", further)] if further else [])
    await run_right(source, copy)


@pytest.mark.usefixtures("four_files")
async def test_pages_of_an_index_are_all_read(source: Source, copy: Copy):
    at = source.t(10)
    for name in "abcd":
        source.put(f"part-{name}.xml", page(source, name, None))
    members = [member(source.uri(f"part-{name}.xml"), at=at) for name in "abcd"]
    further = [ln("next", "index-2.xml")]
    source.put("resourcelist.xml", index("resourcelist", members[:2], at=at, links=further))
    source.put("index-2.xml", index("resourcelist", members[2:], at=at))
    await run_right(source, copy)


@pytest.mark.usefixtures("four_files")
async def test_a_member_of_an_index_may_be_paged(source: Source, copy: Copy):
    at = source.t(10)
    source.put("part-1.xml", page(source, "ab", "part-2.xml"))
    source.put("part-2.xml", page(source, "c", None))
    source.put("part-3.xml", page(source, "d", None))
    members = [member(source.uri(f"part-{number}.xml"), at=at) for number in (1, 3)]
    source.put("resourcelist.xml", index("resourcelist", members, at=at))
    await run_right(source, copy)


@pytest.mark.usefixtures("four_files")
async def test_offered_resources_may_stand_on_the_second_page_of_a_capability_list(
    source: Source, copy: Copy
):
    md = '<rs:md capability="capabilitylist"/>'
    changes = entry(source.uri("changelist.xml"), capability="changelist")
    resources = entry(source.uri("resourcelist.xml"), capability="resourcelist")
    source.put("capabilitylist.xml", urlset([changes], md, ln("next", "more.xml")))
    source.put("more.xml", urlset([resources], md))
    await run_honest(source, copy)


def to_itself(source: Source) -> None:
    source.put("resourcelist.xml", page(source, "ab", source.uri("resourcelist.xml")))


def in_a_circle(source: Source) -> None:
    source.put("resourcelist.xml", page(source, "ab", "page-1.xml"))
    source.put("page-1.xml", page(source, "c", "page-2.xml"))
    source.put("page-2.xml", page(source, "d", "page-1.xml"))


def to_nowhere(source: Source) -> None:
    source.put("resourcelist.xml", page(source, "ab", "not-there.xml"))


def to_another_kind(source: Source) -> None:
    source.put("resourcelist.xml", page(source, "ab", "changelist.xml"))


@pytest.mark.usefixtures("four_files")
@pytest.mark.parametrize("leads", [to_itself, in_a_circle, to_nowhere, to_another_kind])
async def test_pages_that_lead_nowhere_are_refused_in_words(
    source: Source, copy: Copy, leads: Callable[[Source], None]
):
    await follow_once(source, copy)
    source.file("e", b"e")
    leads(source)
    source.list_changes(from_=400)  # nothing tells of the time before
    await run_honest(source, copy)
    assert set(copy.files()) >= set("abcd"), "what is not on the pages read was deleted"
    assert len(source.log) < 200


@pytest.mark.usefixtures("four_files")
async def test_pages_without_end_never_count_as_the_whole_set(source: Source, copy: Copy):
    def endless(request: Request) -> bytes:
        number = int(request.path.partition("?")[2] or 0)
        following = f"/set/resourcelist.xml?{number + 1}"
        source.put(following, endless)
        return page(source, "abcd"[number % 3], following)

    await follow_once(source, copy)
    source.put("resourcelist.xml", endless)
    source.list_changes(from_=400)  # nothing tells of the time before
    async with following(source, copy) as subscriber:
        await until(subscriber, lambda _: "/set/resourcelist.xml?200" in source.answers)
        assert not subscriber.status.level
        assert subscriber.status.doubts
    assert copy.files() == source.resources, "what is not on the pages read was deleted"


# A Capability List with two documents of one capability: neither alone is the set (core §9).


NAMES = {"resourcelist": ("resourcelist.xml", "more.xml"), "changelist": ("changelist.xml", "l")}


def offer_two(source: Source, capability: str) -> None:
    """Offer a second document of a capability, with a resource of its own."""
    offered = {"resourcelist": "resourcelist.xml", "changelist": "changelist.xml"}
    text = capability_list({kind: source.uri(name) for kind, name in offered.items()}).decode()
    second = entry(source.uri(NAMES[capability][1]), capability=capability)
    source.put("capabilitylist.xml", text.replace("</urlset>", f"{second}</urlset>"))


@pytest.fixture
def two_lists(source: Source) -> None:
    source.offer()
    source.file("a", b"a")
    source.list_resources()
    source.list_changes()
    source.file("b", b"b")
    only = [entry(source.uri("b"), content=b"b")]
    source.put("more.xml", resource_list(only, at=source.t(10)))
    source.list_changes(source.changed("b", "created", 20), name="l")


@pytest.mark.usefixtures("two_lists")
@pytest.mark.parametrize("capability", NAMES)
async def test_two_lists_are_refused_with_both_names(source: Source, copy: Copy, capability: str):
    offer_two(source, capability)
    outcome = await run_honest(source, copy)
    assert all(name in str(outcome.reasons) for name in NAMES[capability])


@pytest.mark.usefixtures("two_lists")
@pytest.mark.parametrize("capability", NAMES)
async def test_a_second_list_that_is_offered_later_is_a_doubt_until_it_is_not_any_more(
    source: Source, copy: Copy, capability: str
):
    del source.resources["b"]
    await run_right(source, copy)
    offer_two(source, capability)
    async with following(source, copy) as subscriber:
        await until(subscriber, lambda status: any("core §9" in one for one in status.doubts))
        assert not subscriber.status.level
        source.offer()
        await until_right(subscriber, copy, source)


# The members of an index were written at different times, or come from caches of different age.
#
# core §11.2 lets each member of a Resource List Index have its own `at`. A resource that moved from
# one member to another between two generations is in neither: that it is not listed says nothing.


@pytest.fixture
def unlisted_files(source: Source) -> None:
    source.offer()
    source.files("a", "b", "c", "d")
    source.list_changes(from_=0)


def part(source: Source, number: int, names: str, at: float | None) -> None:
    entries = [
        entry(source.uri(name), content=source.resources.get(name, name.encode())) for name in names
    ]
    written = None if at is None else source.t(at)
    source.put(f"part-{number}.xml", resource_list(entries, written))


def list_parts(source: Source, at: float, *ats: float | None) -> None:
    members = [
        member(source.uri(f"part-{number}.xml"), at=one and source.t(one))
        for number, one in enumerate(ats)
    ]
    source.put("resourcelist.xml", index("resourcelist", members, at=source.t(at)))


@pytest.mark.usefixtures("unlisted_files")
@pytest.mark.parametrize("told", [True, False], ids=["each says its at", "the index alone does"])
async def test_a_change_that_only_the_younger_part_has_is_applied(
    source: Source, copy: Copy, told: bool
):
    part(source, 0, "ab", 20 if told else None)  # an old copy of it
    changes = [source.update("a", 50), source.delete("b", 51), source.update("c", 52)]
    part(source, 1, "cd", 100 if told else None)
    list_parts(source, 100, 20 if told else None, 100 if told else None)
    source.list_changes(*changes, from_=0)
    await run_right(source, copy, pace=pace(gone_after=PATIENCE))


@pytest.mark.usefixtures("unlisted_files")
@pytest.mark.parametrize("gone", [True, False], ids=["deleted since", "moved to the other part"])
async def test_what_a_new_part_lacks_is_deleted_if_the_server_lacks_it(
    source: Source, copy: Copy, gone: bool
):
    part(source, 0, "ab", 20)
    part(source, 1, "cd", 20)
    list_parts(source, 20, 20, 20)
    await run_honest(source, copy)
    if gone:
        source.remove("c")
    part(source, 1, "d", 600)  # of the first part, an old copy is served
    list_parts(source, 600, 20, 600)
    source.list_changes(from_=500)
    await run_honest(source, copy)
    if gone:
        async with following(source, copy) as subscriber:
            # Of the other part, nothing tells what changed meanwhile.
            await until(subscriber, lambda _: copy.files() == source.resources)


@pytest.mark.usefixtures("unlisted_files")
async def test_an_old_copy_of_a_part_of_the_change_list_hides_nothing(source: Source, copy: Copy):
    part(source, 0, "abcd", 20)
    list_parts(source, 20, 20)
    source.put("changes-0.xml", change_list([], source.t(0)))
    members = [member(source.uri("changes-0.xml"), from_=source.t(0))]
    source.put("changelist.xml", index("changelist", members, from_=source.t(0)))
    await run_honest(source, copy)
    first = source.update("a", 100)
    second = source.update("b", 300)
    # The first part is closed by now; what is served of it is still the open one of before.
    source.put("changes-1.xml", change_list([second], source.t(200)))
    members = [
        member(source.uri("changes-0.xml"), from_=source.t(0), until=source.t(200)),
        member(source.uri("changes-1.xml"), from_=source.t(200)),
    ]
    source.put("changelist.xml", index("changelist", members, from_=source.t(0)))
    await run_honest(source, copy)
    source.put("changes-0.xml", change_list([first], source.t(0), source.t(200)))
    await run_right(source, copy)
