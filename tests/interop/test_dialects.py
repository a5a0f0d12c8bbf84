"""Our Destination follows documents as implementations in Ruby, Java, Go and C# have them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from rsnotify_subscriber import FolderMirror, Subscriber, audit, default_state
from tests.interop.clients import contents
from tests.interop.dialects import Core, Dialect, DotNet, DSpace, Hyrax
from tests.interop.site import served

DIALECTS: list[type[Dialect]] = [Hyrax, DSpace, Core, DotNet]


@pytest.fixture(params=DIALECTS, ids=[dialect.__name__ for dialect in DIALECTS])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Dialect]:
    folder = tmp_path / "site"
    folder.mkdir()
    with served(folder) as url:
        yield request.param(folder, url)


class Mirror:
    """A copy, brought in step now and then.

    Args:
        source: What it follows.
        folder: The copy.
    """

    def __init__(self, source: Dialect, folder: Path) -> None:
        self._source = source
        self.folder = folder

    async def catch_up(self) -> None:
        state = default_state(self.folder)
        async with asyncio.timeout(60):
            mirror = FolderMirror(self.folder)
            await Subscriber(self._source.start, mirror, state=state).catch_up()

    async def is_in_step(self) -> bool | None:
        return (await audit(self._source.start, self.folder, pause=0)).in_step

    def is_equal(self) -> bool:
        here = {name.removeprefix("data/"): data for name, data in contents(self.folder).items()}
        return here == contents(self._source.folder / "data")


@pytest.fixture
def mirror(source: Dialect, tmp_path: Path) -> Mirror:
    for number in range(4):
        source.put(f"{number}.ttl", f"{number}")
    source.write()
    return Mirror(source, tmp_path / "copy")


async def test_what_there_is_is_copied_and_changes_are_followed(source: Dialect, mirror: Mirror):
    await mirror.catch_up()
    assert mirror.is_equal()
    assert await mirror.is_in_step()
    source.put("new.ttl", "new")
    source.put("1.ttl", "changed")
    if source.tells_deletions:
        source.delete("2.ttl")
    source.write()
    await mirror.catch_up()
    assert mirror.is_equal()
    assert await mirror.is_in_step()


async def test_who_misses_a_whole_list_is_in_step_again_all_the_same(
    source: Dialect, mirror: Mirror
):
    await mirror.catch_up()
    source.put("1.ttl", "changed")
    source.write()
    source.put("1.ttl", "changed again")
    source.put("new.ttl", "new")
    source.write()
    if source.tells_deletions:
        source.delete("2.ttl")
    source.write()
    await mirror.catch_up()
    assert mirror.is_equal()
