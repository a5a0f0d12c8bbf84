"""The members of an index were written at different times, or come from caches of different age.

core §11.2 lets each member of a Resource List Index have its own `at`. A resource that moved from
one member to another between two generations is in neither: that it is not listed says nothing.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.subscriber.destination import PATIENCE
from tests.wild.documents import change_list, entry, index, member, resource_list
from tests.wild.running import Copy, follow_once, following, pace, run_honest, run_right, until
from tests.wild.source import Answer, Request, WildSource


@pytest.fixture(autouse=True)
def begun(source: WildSource) -> None:
    source.offer()
    source.files("a", "b", "c", "d")
    source.list_changes(from_=0)


def part(source: WildSource, number: int, names: str, at: float | None) -> None:
    entries = [
        entry(source.uri(name), content=source.resources.get(name, name.encode())) for name in names
    ]
    written = None if at is None else source.t(at)
    source.put(f"part-{number}.xml", resource_list(entries, written))


def list_parts(source: WildSource, at: float, *ats: float | None) -> None:
    members = [
        member(source.uri(f"part-{number}.xml"), at=one and source.t(one))
        for number, one in enumerate(ats)
    ]
    source.put("resourcelist.xml", index("resourcelist", members, at=source.t(at)))


def asked_again(source: WildSource, name: str) -> asyncio.Event:
    """Return an event that is set once a resource that is not there was asked for twice.

    The second time, it has been removed from the copy, if a resource is not waited for.
    """
    event = asyncio.Event()

    def answer(_: Request) -> Answer:
        if len(source.requests(name)) == 2:
            event.set()
        return Answer(status=404)

    source.put(name, answer)
    return event


@pytest.mark.parametrize("told", [True, False], ids=["each says its at", "the index alone does"])
@pytest.mark.parametrize("is_gone_first", [False, True], ids=["is read first", "is read late"])
async def test_a_change_that_only_the_younger_part_has_is_applied(
    source: WildSource, copy: Copy, told: bool, is_gone_first: bool
) -> None:
    part(source, 0, "ab", 20 if told else None)  # an old copy of it
    source.file("a", b"changed", 50)
    source.remove("b")
    source.file("c", b"changed", 52)
    part(source, 1, "cd", 100 if told else None)
    list_parts(source, 100, 20 if told else None, 100 if told else None)
    source.list_changes(
        source.changed("a", "updated", 50),
        source.changed("b", "deleted", 51),
        source.changed("c", "updated", 52),
        from_=0,
        gate=asked_again(source, "b") if is_gone_first else None,
    )
    gone_after = 0.0 if is_gone_first else PATIENCE
    await run_right(source, copy, pace=pace(gone_after=gone_after))


async def test_what_moved_between_two_parts_is_not_deleted(source: WildSource, copy: Copy) -> None:
    part(source, 0, "ab", 20)
    part(source, 1, "cd", 20)
    list_parts(source, 20, 20, 20)
    await run_honest(source, copy)
    part(source, 1, "d", 600)  # `c` is in the first part now, of which an old copy is served
    list_parts(source, 600, 20, 600)
    source.list_changes(from_=500)
    await run_honest(source, copy)


async def test_what_was_deleted_since_is_deleted(source: WildSource, copy: Copy) -> None:
    part(source, 0, "ab", 20)
    part(source, 1, "cd", 20)
    list_parts(source, 20, 20, 20)
    await follow_once(source, copy)
    source.remove("c")
    part(source, 1, "d", 600)
    list_parts(source, 600, 20, 600)
    source.list_changes(from_=500)
    async with following(source, copy) as subscriber:
        # Of the other part, nothing tells what changed meanwhile.
        await until(subscriber, lambda _: copy.files() == source.resources)


async def test_an_old_copy_of_a_part_of_the_change_list_hides_nothing(
    source: WildSource, copy: Copy
) -> None:
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
