"""A Resource Dump and a Resource List that differ, though both describe the same instant."""

from __future__ import annotations

import io
import zipfile
from datetime import datetime

import pytest

from tests.wild.documents import entry, md, resource_list, urlset
from tests.wild.running import Copy, following, polled, run_right, until_right
from tests.wild.source import WildSource


def dump(source: WildSource, contents: dict[str, bytes], at: datetime) -> None:
    """Put a Resource Dump with one package."""
    entries = [
        entry(source.uri(name), content=content, path=f"/{name}")
        for name, content in contents.items()
    ]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as package:
        package.writestr("manifest.xml", urlset(entries, md(capability="resourcedump-manifest")))
        for name, content in contents.items():
            package.writestr(name, content)
    source.put("resourcedump.xml", urlset([entry(source.uri("1.zip"))], _dump_at(at)))
    source.put("1.zip", file.getvalue())


def _dump_at(at: datetime) -> str:
    return md(capability="resourcedump", at=at)


def put_list(source: WildSource, names: str, at: datetime) -> None:
    entries = [entry(source.uri(name), content=name.encode()) for name in names]
    source.put("resourcelist.xml", resource_list(entries, at=at))


@pytest.fixture(params=["with a Change List", "without one"])
def changes(request: pytest.FixtureRequest, source: WildSource) -> bool:
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
    source: WildSource, copy: Copy, changes: bool, packed: str, listed: str, later: int
) -> None:
    dump(source, {name: name.encode() for name in packed}, source.t(10))
    put_list(source, listed, source.t(10 + later))
    if later:  # what a later list lacks was deleted since
        for name in set("abc") - set(listed):
            source.remove(name)
    await run_right(source, copy)
    packages = set(packed) & set(listed)
    assert not [name for name in packages if source.requests(name)]
    assert len(source.requests("resourcelist.xml")) == 1


async def test_an_old_member_of_a_dump_that_the_server_lacks_is_removed(
    source: WildSource, copy: Copy, changes: bool
) -> None:
    dump(source, {name: name.encode() for name in "abc"}, source.t(10))
    put_list(source, "ab", source.t(10))
    source.remove("c")
    await run_right(source, copy)


async def test_a_resource_list_that_is_older_than_the_dump_removes_nothing(
    source: WildSource, copy: Copy, changes: bool
) -> None:
    dump(source, {name: name.encode() for name in "abc"}, source.t(100))
    put_list(source, "ab", source.t(10))
    await run_right(source, copy)


async def test_a_resource_list_that_cannot_be_read_is_not_requested_at_each_poll(
    source: WildSource, copy: Copy
) -> None:
    source.offer(resourcedump="resourcedump.xml")
    source.list_changes()
    source.file("a", b"a")
    dump(source, {"a": b"a"}, source.t(10))
    source.put("resourcelist.xml", b"<broken")
    async with following(source, copy) as subscriber:
        await until_right(subscriber, copy, source)
        await polled(subscriber, source, 3)
    assert len(source.requests("resourcelist.xml")) <= 3
