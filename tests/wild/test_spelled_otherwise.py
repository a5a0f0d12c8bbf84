"""A URI that is spelled in several ways: `~` and `%7E` are the same (RFC 3986 §6.2).

`tests/core/test_uris.py` has all that is equal, and what is not.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from rsnotify.selection import Selection
from rsnotify_subscriber import default_state
from rsnotify_subscriber.mirror import MirrorTree
from rsnotify_subscriber.storage.destination_state import DestinationState
from tests.examples_count import part
from tests.wild.documents import change_list, entry, inline, resource_list
from tests.wild.hub import Hub, offer_hub
from tests.wild.running import (
    Recorder,
    audited,
    follow_once,
    following,
    pace,
    run_right,
    until,
    until_right,
)
from tests.wild.source import Source

SPELLINGS = [("~user/a", "%7euser/a"), ("caf%c3%a9", "caf%C3%A9"), ("abc", "%61bc")]


def begin(source: Source, name: str) -> None:
    source.offer()
    source.file(name, b"1")
    source.list_entries(entry(source.uri(name), content=b"1"), at=0)
    source.list_changes(from_=0)


@pytest.mark.parametrize(("name", "other"), SPELLINGS)
async def test_a_deletion_applies_to_what_is_held(
    source: Source, folder: Path, name: str, other: str
):
    begin(source, name)
    assert (await follow_once(source, folder)).claims
    source.remove(name)
    source.list_changes(entry(source.uri(other), "deleted", datetime=source.t(60)), from_=0)
    await run_right(source, folder)


@pytest.mark.parametrize(("name", "other"), SPELLINGS)
async def test_an_update_makes_no_second_resource(
    source: Source, folder: Path, name: str, other: str
):
    begin(source, name)
    copy = Recorder(source.base, folder)
    assert (await follow_once(source, copy)).claims
    content = source.file(name, b"22")
    source.put(other, content)
    updated = entry(source.uri(other), "updated", datetime=source.t(60), content=content)
    source.list_changes(updated, from_=0)
    await run_right(source, copy)
    # The Resource List may have either spelling.
    source.list_entries(entry(source.uri(other), content=content), at=90)
    source.list_changes(from_=90)
    another = Selection(excluded=("nothing",))
    await run_right(source, copy, selection=another)
    assert copy.calls == [("updated", name), ("updated", name)]


async def test_a_creation_and_a_deletion_that_come_together_end_as_the_later(
    source: Source, folder: Path
):
    begin(source, "b")
    assert (await follow_once(source, folder)).claims
    created = entry(source.uri("~a"), "created", datetime=source.t(60), content=b"1")
    source.list_changes(created, source.changed("%7Ea", "deleted", 61), from_=0)
    await run_right(source, folder)


#: What the Source lists, and how it spells that later; the content comes with each entry.
ELSEWHERE = [
    ("http://source.example/%C3%BC", "http://source.example/\u00fc"),
    ("http://source.example/\u00fc", "http://source.example/%C3%BC"),
    ("http://source.example/a%20b", "http://source.example/a b"),
    ("http://source.example/a b", "http://source.example/a%20b"),
    ("http://source.example/a", "http://source.example/x/../a"),
    ("http://source.example/x/./a", "http://source.example/x/a"),
    ("http://source.example/a", "http://source.example:80/a"),
    ("https://source.example:443/a", "https://source.example/a"),
    ("http://source.example/a", "HTTP://Source.EXAMPLE/a"),
    ("http://source.example/%2fa", "http://source.example/%2Fa"),
    ("http://source.example/~a", "http://source.example/%7Ea"),
    ("http://source.example/%7ea", "http://source.example/%7Ea"),
    ("http://source.example", "http://source.example/"),
    ("http://b\u00fccher.example/a", "http://xn--bcher-kva.example/a"),
]
OTHER = "http://source.example/other"
RARE = pace(poll=600.0, poll_with_push=600.0)


def listed(source: Source, uri: str, content: bytes) -> str:
    return entry(uri, content=content, lastmod=source.t(-100), links=[inline(content)])


#: Each pair meets one change by one way; `make slow` tries them all.
WAYS = [("deleted", "list"), ("updated", "push"), ("updated", "list"), ("deleted", "push")]


@pytest.mark.parametrize(
    ("uri", "other", "change", "by"),
    [
        (*pair, *way)
        for number, pair in enumerate(ELSEWHERE)
        for way in part(WAYS, number, len(WAYS))
    ],
)
async def test_a_change_in_another_spelling_is_of_the_same_resource(
    source: Source, hub: Hub, folder: Path, uri: str, other: str, change: str, by: str
):
    source.offer()
    source.list_entries(*(listed(source, one, b"1") for one in (uri, OTHER)), at=0)
    source.list_changes(from_=0)
    content = None if change == "deleted" else b"22"
    links = () if content is None else [inline(content)]
    changed = entry(other, change, datetime=source.t(60), content=content, links=links)
    changes = change_list([changed], from_=source.t(0))
    if by == "push":
        offer_hub(source, hub)
        async with following(source, folder, pace=RARE) as subscriber:
            await hub.subscribed()
            await until(subscriber, lambda status: status.resources == 2 and status.level)
            source.put("changelist.xml", changes)
            await hub.push([changed], source.t(0), source.t(60))
            await until(subscriber, lambda status: status.through == source.t(60))
    else:
        assert (await follow_once(source, folder)).claims
        source.put("changelist.xml", changes)
        outcome = await follow_once(source, folder)
        assert outcome.claims, outcome
    held = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert sorted(held) == ([b"1"] if content is None else [b"1", content])
    assert (await audited(source, folder)).claims
    # The comparison with the whole set finds nothing to do, whichever spelling it has.
    kept = [] if content is None else [listed(source, other, content)]
    source.list_entries(*kept, listed(source, OTHER, b"1"), at=90)
    source.list_changes(from_=90)
    outcome = await follow_once(source, folder, pace=pace(compare=0.0))
    assert outcome.claims, outcome
    assert outcome.status.applied == 0
    assert (await audited(source, folder)).claims


async def test_a_resource_is_requested_as_the_source_spelled_it_last(source: Source, folder: Path):
    begin(source, "~a")
    assert (await follow_once(source, folder)).claims
    content = source.file("~a", b"22")
    updated = entry(source.uri("%7Ea"), "updated", datetime=source.t(60), content=content)
    source.list_changes(updated, from_=0)
    source.put("%7Ea", content)
    assert (await follow_once(source, folder)).claims
    (folder / "~a").write_bytes(b"edited")
    before = len(source.log)
    assert (await follow_once(source, folder)).claims
    requested = [one.path for one in source.log[before:] if one.path.endswith("a")]
    assert requested == ["/set/%7Ea"]
    assert (folder / "~a").read_bytes() == content


@pytest.mark.parametrize("order", [1, -1])
async def test_a_resource_that_is_listed_in_two_spellings_is_held_once_and_reported(
    source: Source, folder: Path, order: int
):
    source.offer()
    uris = ["http://source.example/\u00fc", "http://source.example/%C3%BC"][::order]
    entries = [
        listed(source, uri, content) for uri, content in zip(uris, (b"1", b"2"), strict=True)
    ]
    source.list_entries(*entries, at=0)
    source.list_changes(from_=0)
    for _ in range(2):  # the next run only reads the Change List
        outcome = await follow_once(source, folder)
        assert not outcome.claims
        assert any(uris[0] in why and uris[1] in why for why in outcome.reasons), outcome
        assert [one.read_bytes() for one in folder.rglob("*") if one.is_file()] == [b"1"]
        outcome = await audited(source, folder)
        assert outcome.code == 2
        assert any(uris[0] in why and uris[1] in why for why in outcome.reasons), outcome
    source.put("resourcelist.xml", resource_list(entries[1:], at=source.t(50)))
    outcome = await follow_once(source, folder, pace=pace(compare=0.0))
    assert outcome.claims, outcome
    assert (await audited(source, folder)).claims


@pytest.mark.parametrize("by", ["list", "push"])
@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("order", [1, -1])
async def test_a_source_that_changes_its_spelling_deletes_nothing(
    source: Source, hub: Hub, folder: Path, order: int, exists: bool, by: str
):
    """It lists the creation of one resource and the deletion of another: the server decides."""
    begin(source, "~a")
    source.file("b", b"1")
    source.list_entries(*(entry(source.uri(name), content=b"1") for name in ("~a", "b")), at=0)
    if exists:
        source.put("%7Ea", b"1")
    kinds = [("%7Ea", "created", b"1"), ("~a", "deleted", None)][::order]
    changes = [
        entry(source.uri(name), kind, datetime=source.t(60 + number), content=content)
        for number, (name, kind, content) in enumerate(kinds)
    ]
    if by == "push":
        offer_hub(source, hub)
        async with following(source, folder) as subscriber:
            await hub.subscribed()
            await until(subscriber, lambda status: status.resources == 2 and status.level)
            if not exists:
                source.remove("~a")
            for number, one in enumerate(changes):
                await hub.push([one], source.t(59 + number), source.t(60 + number))
            source.list_changes(*changes, from_=0)
            await until_right(subscriber, folder, source)
    else:
        assert (await follow_once(source, folder)).claims
        if not exists:
            source.remove("~a")
        source.list_changes(*changes, from_=0)
        await run_right(source, folder)
    assert (await audited(source, folder)).claims


async def test_a_copy_in_which_an_earlier_version_held_three_spellings_is_mended(
    source: Source, folder: Path
):
    source.offer()
    uri = "http://source.example/%C3%BC"
    source.list_entries(*(listed(source, one, b"1") for one in (uri, OTHER)), at=0)
    source.list_changes(from_=0)
    assert (await follow_once(source, folder)).claims
    state = DestinationState(default_state(folder))
    held = state.find(uri)
    assert held is not None
    others = ["http://source.example/\u00fc", "http://source.example/x/../%C3%BC"]
    state.commit([replace(held, uri=other) for other in others], None)
    with state.transactions.writing():
        state.database.execute("UPDATE {resources} SET identity = NULL")
    state.close()
    tree = MirrorTree(folder, source.base)
    for path in map(Path, map(tree.find, others)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"1")
    outcome = await follow_once(source, folder)
    assert outcome.claims, outcome
    assert (await audited(source, folder)).claims
    assert len([one for one in folder.rglob("*") if one.is_file()]) == 2
