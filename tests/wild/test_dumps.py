"""Dumps that contradict the lists, lack content, or stand in another order."""

from __future__ import annotations

from datetime import datetime

import pytest

from tests.wild.documents import (
    change_list,
    change_package,
    entry,
    index,
    md,
    member,
    package,
    resource_list,
    sha256,
    urlset,
)
from tests.wild.running import (
    Copy,
    Folder,
    audited,
    follow_once,
    following,
    polled,
    run_honest,
    run_right,
    until_right,
)
from tests.wild.running import until as until_status
from tests.wild.source import Source

# A Resource Dump and a Resource List that differ, though both describe the same instant.


def dump(source: Source, contents: dict[str, bytes], at: datetime) -> None:
    """Put a Resource Dump with one package."""
    entries = [
        entry(source.uri(name), content=content, path=f"/{name}")
        for name, content in contents.items()
    ]
    manifest = urlset(entries, md(capability="resourcedump-manifest"))
    source.put(
        "resourcedump.xml",
        urlset([entry(source.uri("1.zip"))], md(capability="resourcedump", at=at)),
    )
    source.put("1.zip", package(manifest, contents))


def put_list(source: Source, names: str, at: datetime) -> None:
    entries = [entry(source.uri(name), content=name.encode()) for name in names]
    source.put("resourcelist.xml", resource_list(entries, at=at))


@pytest.fixture(params=["with a Change List", "without one"])
def has_changes(request: pytest.FixtureRequest, source: Source) -> bool:
    has_changes = request.param == "with a Change List"
    changelist = "changelist.xml" if has_changes else None
    source.offer(resourcedump="resourcedump.xml", changelist=changelist)
    source.list_changes()
    for name in "abc":
        source.file(name, name.encode())
    return has_changes


@pytest.mark.parametrize("later", [0, 100])
@pytest.mark.parametrize(("packed", "listed"), [("ab", "abc"), ("abc", "ab"), ("ab", "bc")])
async def test_the_copy_is_what_the_server_has(
    source: Source, copy: Copy, has_changes: bool, packed: str, listed: str, later: int
):
    dump(source, {name: name.encode() for name in packed}, source.t(10))
    put_list(source, listed, source.t(10 + later))
    if later:  # what a later list lacks was deleted since
        for name in set("abc") - set(listed):
            source.remove(name)
    await run_right(source, copy)
    packages = set(packed) & set(listed)
    assert not [name for name in packages if source.requests(name)]
    assert len(source.requests("resourcelist.xml")) <= 2  # the second time after the next poll


async def test_what_only_the_dump_has_stays_while_the_list_stays_the_same(
    source: Source, copy: Copy, has_changes: bool
):
    dump(source, {"a": b"a", "b": b"b"}, source.t(10))
    put_list(source, "bc", source.t(10))
    path = "changelist.xml" if has_changes else "resourcelist.xml"
    async with following(source, copy) as subscriber:
        await until_status(subscriber, lambda _: len(source.requests(path)) > 3)
        await until_right(subscriber, copy, source)


@pytest.mark.parametrize(
    ("packed_at", "gone"), [(10, True), (100, False)], ids=["of the same time", "an older list"]
)
async def test_a_member_of_a_dump_that_the_list_lacks_is_removed_if_the_server_lacks_it(
    source: Source, copy: Copy, has_changes: bool, packed_at: int, gone: bool
):
    dump(source, {name: name.encode() for name in "abc"}, source.t(packed_at))
    put_list(source, "ab", source.t(10))
    if gone:
        source.remove("c")
    await run_right(source, copy)


async def test_a_resource_list_that_cannot_be_read_is_not_requested_at_each_poll(
    source: Source, copy: Copy
):
    source.offer(resourcedump="resourcedump.xml")
    source.list_changes()
    source.file("a", b"a")
    dump(source, {"a": b"a"}, source.t(10))
    source.put("resourcelist.xml", b"<broken")
    async with following(source, copy) as subscriber:
        await until_right(subscriber, copy, source)
        await polled(subscriber, source, 3)
    assert len(source.requests("resourcelist.xml")) <= 3


# A Change Dump lacks the bitstreams of versions that were gone before they could be packed.
#
# Core §13.2 wants one for every creation and update. A Source that packs content after the change,
# as ours does without `content=`, cannot always have it. Its entries have no `path` then.


async def test_they_are_fetched_or_replaced_by_later_entries(source: Source, copy: Copy):
    for name in ("twice", "later", "kept"):
        source.file(name, b"old", -1000)
    source.list_resources()
    source.offer(changelist=None, changedump="changedump.xml")
    source.put("changedump.xml", urlset([], md(capability="changedump", from_=source.t(5))))
    await follow_once(source, copy)
    source.file("twice", b"second", 61)
    source.file("later", b"changed again after the dump", 90)
    source.file("kept", b"new", 63)
    changes = [
        entry(source.uri("twice"), "updated", datetime=source.t(60), hash=sha256(b"first")),
        entry(
            source.uri("twice"), "updated", datetime=source.t(61), hash=sha256(b"second"), path="/1"
        ),
        entry(source.uri("gone"), "created", datetime=source.t(62), hash=sha256(b"gone")),
        entry(source.uri("kept"), "updated", datetime=source.t(63), hash=sha256(b"new"), path="/2"),
        entry(source.uri("later"), "updated", datetime=source.t(64), hash=sha256(b"a version")),
        entry(source.uri("gone"), "deleted", datetime=source.t(65)),
    ]
    covered = {"from_": source.t(5), "until": source.t(70)}
    manifest = urlset(changes, md(capability="changedump-manifest", **covered))
    source.put("1.zip", package(manifest, {"1": b"second", "2": b"new"}))
    one = entry(source.uri("1.zip"), type="application/zip", **covered)
    source.put("changedump.xml", urlset([one], md(capability="changedump", from_=source.t(5))))
    source.forget()
    outcome = await run_honest(source, copy)
    files = copy.files()
    assert files["twice"] == b"second"
    assert files["kept"] == b"new"
    assert "gone" not in files
    # No document says what `later` is now: the dump's entry has another hash.
    assert files["later"] == source.resources["later"] or not outcome.claims
    assert not source.requests("twice")
    assert not source.requests("kept")


# The members of a Change List Index or the packages of a Change Dump stand newest first.
#
# core §12.2 and §13.1 demand chronological order. What covers everything is not refused for its
# order, where `from` and `until` tell which comes when.


def history(source: Source) -> list[tuple[float, float, list[str], dict[str, bytes]]]:
    """Change the Source in three periods: each with its bounds, entries and contents."""
    periods = []
    told = [source.update("a", 100, b"a1", path="/a")]
    periods.append((5, 200, told, {"a": b"a1"}))
    source.file("a", b"a2", 300)
    told = [source.changed("a", "updated", 300, path="/a"), source.changed("b", "deleted", 310)]
    source.remove("b")
    periods.append((200, 400, told, {"a": b"a2"}))
    source.file("b", b"b, again", 500)
    source.remove("a")
    told = [source.changed("b", "created", 500, path="/b"), source.changed("a", "deleted", 510)]
    periods.append((400, 600, told, {"b": b"b, again"}))
    return periods


@pytest.mark.usefixtures("begun")
@pytest.mark.parametrize("told", ["from and until", "until the newest, which is open", "neither"])
async def test_an_index_of_change_lists(source: Source, copy: Copy, told: str):
    await follow_once(source, copy)
    dated = told != "neither"
    members = []
    for number, (from_, until, entries, _) in enumerate(history(source)):
        name, is_open = f"changes-{number}.xml", number == 2 and "open" in told
        bounds = {"from_": source.t(from_), "until": None if is_open else source.t(until)}
        source.put(name, change_list(entries, **bounds))
        members.append(member(source.uri(name), **(bounds if dated else {})))
    source.put("changelist.xml", index("changelist", members[::-1], from_=source.t(5)))
    outcome = await run_honest(source, copy)
    assert outcome.claims is dated, outcome
    advice = f"{source.uri('changelist.xml')} should state the from and until"
    assert dated or any(advice in reason for reason in outcome.reasons), outcome
    if isinstance(copy, Folder):
        audit = await audited(source, copy.path)
        assert audit.code == (0 if dated else 2)
        assert dated or any(advice in reason for reason in audit.reasons), audit


@pytest.mark.usefixtures("begun")
@pytest.mark.parametrize("dated", [True, False], ids=["with from and until", "without"])
async def test_a_change_dump(source: Source, copy: Copy, dated: bool):
    source.offer(changelist=None, changedump="changedump.xml")
    about = md(capability="changedump", from_=source.t(5))
    source.put("changedump.xml", urlset([], about))
    await follow_once(source, copy)
    packages = []
    for number, (from_, until, entries, contents) in enumerate(history(source)):
        name = f"changes-{number}.zip"
        told = {"from_": source.t(from_), "until": source.t(until)}
        packed = change_package(entries, contents, **told)
        source.put(name, packed)
        bounds = told if dated else {}
        packages.append(entry(source.uri(name), content=packed, type="application/zip", **bounds))
    source.put("changedump.xml", urlset(packages[::-1], about))
    outcome = await run_honest(source, copy)
    assert outcome.claims or not dated, outcome
