"""The audit where a Source has dumps: by manifests, beside the packages or inside them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rsnotify.errors import NotFound
from rsnotify.format.model import Capability
from rsnotify_subscriber import Audit, audit
from tests.subscriber.destination import Destination
from tests.subscriber.packed_source import PackedSource
from tests.subscriber.source import body, status

DUMPS = (Capability.RESOURCE_DUMP, Capability.CHANGE_DUMP)


@pytest.fixture
async def source() -> AsyncIterator[PackedSource]:
    async with PackedSource() as source:
        source.put_some(6)
        yield source


async def audited(source: PackedSource, destination: Destination) -> Audit:
    return await audit(source.url, destination.folder, pause=0)


def downloads(source: PackedSource) -> list[str]:
    return [path for path in source.gets if path.endswith(".zip")]


@pytest.mark.parametrize("copies", [True, False], ids=["beside", "inside"])
async def test_manifests_tell_what_there_is_and_what_changed(
    source: PackedSource, destination: Destination, copies: bool
) -> None:
    source.offered, source.copies = DUMPS, copies
    source.pack_resources()
    source.put("r0", b"new")
    source.pack_changes()
    await destination.catch_up()
    assert (await audited(source, destination)).in_step is True
    source.delete("r1")
    source.put("r2", b"new")
    source.put("r6", b"6")
    source.pack_changes()
    source.gets.clear()
    found = await audited(source, destination)
    assert found.resources == 6
    assert found.deleted == ("r1",)
    assert found.updated == (source.base + "r2",)
    assert found.created == (source.base + "r6",)
    assert bool(downloads(source)) is not copies


async def test_a_manifest_beside_that_cannot_be_read_is_had_from_the_package(
    source: PackedSource, destination: Destination
) -> None:
    source.offered, source.copies = (Capability.RESOURCE_DUMP,), True
    source.pack_resources()
    await destination.catch_up()
    for name in source.documents:
        if name.endswith(".zip.xml"):
            source.answers["/data/" + name] = body(b"<urlset")
    assert (await audited(source, destination)).in_step is True


async def test_a_set_that_nothing_tells_of_any_more_is_no_set_in_step(
    source: PackedSource, destination: Destination
) -> None:
    source.offered = (Capability.RESOURCE_DUMP,)
    source.pack_resources()
    await destination.catch_up()
    source.answers["/data/resourcedump.xml"] = status(404)
    with pytest.raises(NotFound, match="resourcedump"):
        await audited(source, destination)


async def test_where_only_changes_are_told_what_they_do_not_name_is_unknown(
    source: PackedSource, destination: Destination
) -> None:
    source.offered = (Capability.CHANGE_DUMP,)
    source.pack_changes()
    await destination.catch_up()
    source.packages.clear()
    source.put("r0", b"new")
    source.put("r6", b"6")
    source.pack_changes()
    found = await audited(source, destination)
    assert found.resources == 2
    assert found.updated == (source.base + "r0",)
    assert found.created == (source.base + "r6",)
    assert found.deleted == ()
    assert found.unknown == ("r1", "r2", "r3", "r4", "r5")
    assert found.in_step is None
