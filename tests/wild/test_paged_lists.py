"""Lists are paged with `rs:ln rel="next"` instead of an index (AtoM Heratio does so).

core §11.2 and §12.2 know indexes only. RFC 8288 registers `next`; a Destination follows it, within
bounds, or refuses the list and says so: a first page is not the whole set.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.wild.documents import change_list, entry, index, ln, member, resource_list, urlset
from tests.wild.running import Copy, audited, follow_once, following, run_honest, run_right, until
from tests.wild.source import Request, WildSource


@pytest.fixture(autouse=True)
def begun(source: WildSource) -> None:
    source.begin("a", "b", "c", "d")


def page_name(number: int) -> str:
    return f"page-{number}.xml" if number else "resourcelist.xml"


def page(source: WildSource, names: str, then: str | None, at: float | None = 10) -> bytes:
    entries = [entry(source.uri(name), content=source.resources[name]) for name in names]
    links = [] if then is None else [ln("next", then)]
    return resource_list(entries, None if at is None else source.t(at), links=links)


async def test_all_pages_of_a_resource_list_are_the_set(source: WildSource, copy: Copy) -> None:
    source.put("resourcelist.xml", page(source, "ab", source.uri("page-1.xml")))
    source.put("page-1.xml", page(source, "c", "page-2.xml"))  # relative, which is allowed
    source.put("page-2.xml", page(source, "d", None, at=None))
    await run_right(source, copy)


async def test_audit_reads_all_pages(source: WildSource, folder: Path) -> None:
    await follow_once(source, folder)
    source.put("resourcelist.xml", page(source, "ab", source.uri("page-1.xml")))
    source.put("page-1.xml", page(source, "cd", None))
    assert (await audited(source, folder)).code == 0
    (folder / "d").write_bytes(b"other")
    assert (await audited(source, folder)).code == 1


async def test_pages_of_a_change_list_are_all_read(source: WildSource, copy: Copy) -> None:
    await follow_once(source, copy)
    source.file("a", b"changed", 100)
    source.remove("b")
    source.file("c", b"changed, too", 102)
    one = source.changed("a", "updated", 100)
    two = source.changed("b", "deleted", 101)
    three = source.changed("c", "updated", 102)
    source.put(
        "changelist.xml", change_list([one], source.t(5), links=[ln("next", "changes-2.xml")])
    )
    source.put(
        "changes-2.xml", change_list([two], source.t(5), links=[ln("next", "changes-3.xml")])
    )
    source.put("changes-3.xml", change_list([three], source.t(5)))
    await run_right(source, copy)


async def test_pages_of_an_index_are_all_read(source: WildSource, copy: Copy) -> None:
    at = source.t(10)
    for name in "abcd":
        source.put(f"part-{name}.xml", page(source, name, None))
    members = [member(source.uri(f"part-{name}.xml"), at=at) for name in "abcd"]
    further = [ln("next", "index-2.xml")]
    source.put("resourcelist.xml", index("resourcelist", members[:2], at=at, links=further))
    source.put("index-2.xml", index("resourcelist", members[2:], at=at))
    await run_right(source, copy)


async def test_a_member_of_an_index_may_be_paged(source: WildSource, copy: Copy) -> None:
    at = source.t(10)
    source.put("part-1.xml", page(source, "ab", "part-2.xml"))
    source.put("part-2.xml", page(source, "c", None))
    source.put("part-3.xml", page(source, "d", None))
    members = [member(source.uri(f"part-{number}.xml"), at=at) for number in (1, 3)]
    source.put("resourcelist.xml", index("resourcelist", members, at=at))
    await run_right(source, copy)


async def test_offered_resources_may_stand_on_the_second_page_of_a_capability_list(
    source: WildSource, copy: Copy
) -> None:
    md = '<rs:md capability="capabilitylist"/>'
    changes = entry(source.uri("changelist.xml"), capability="changelist")
    resources = entry(source.uri("resourcelist.xml"), capability="resourcelist")
    source.put("capabilitylist.xml", urlset([changes], md, ln("next", "more.xml")))
    source.put("more.xml", urlset([resources], md))
    await run_honest(source, copy)


def to_itself(source: WildSource) -> None:
    source.put("resourcelist.xml", page(source, "ab", source.uri("resourcelist.xml")))


def in_a_circle(source: WildSource) -> None:
    source.put("resourcelist.xml", page(source, "ab", "page-1.xml"))
    source.put("page-1.xml", page(source, "c", "page-2.xml"))
    source.put("page-2.xml", page(source, "d", "page-1.xml"))


def to_nowhere(source: WildSource) -> None:
    source.put("resourcelist.xml", page(source, "ab", "not-there.xml"))


def to_another_kind(source: WildSource) -> None:
    source.put("resourcelist.xml", page(source, "ab", "changelist.xml"))


@pytest.mark.parametrize("leads", [to_itself, in_a_circle, to_nowhere, to_another_kind])
async def test_pages_that_lead_nowhere_are_refused_in_words(
    source: WildSource, copy: Copy, leads: Callable[[WildSource], None]
) -> None:
    await follow_once(source, copy)
    source.file("e", b"e")
    leads(source)
    source.list_changes(from_=400)  # nothing tells of the time before
    await run_honest(source, copy)
    assert set(copy.files()) >= set("abcd"), "what is not on the pages read was deleted"
    assert len(source.log) < 200


async def test_pages_without_end_never_count_as_the_whole_set(
    source: WildSource, copy: Copy
) -> None:
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
