"""Changes in the same second as the Resource List, from a Source that writes whole seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wild.documents import change_list, entry, md, urlset
from tests.wild.running import Folder, audited, pace, run_right
from tests.wild.source import Source

#: The second of the Resource List.
SECOND = 10.0


def begin(source: Source) -> None:
    source.clock = source.t(SECOND + 0.5)
    source.offer(**{"changelist-archive": "archive.xml"})
    source.files("a", "b", "d")
    source.list_resources(at=SECOND)
    source.list_changes()
    archive(source)


def archive(source: Source, *entries: str) -> None:
    """Put an archive, with a closed list of these entries if there are any."""
    listed = []
    if entries:
        from_, until = source.t(5), source.t(SECOND)
        source.put("closed.xml", change_list(entries, from_, until))
        listed.append(entry(source.uri("closed.xml"), from_=from_, until=until))
        source.list_changes(from_=SECOND)
    source.put("archive.xml", urlset(listed, md(capability="changelist-archive")))


def change(source: Source, *, hashed: bool) -> None:
    """Change all in the second of the Resource List, and close the Change List within it."""
    archive(
        source,
        source.update("a", SECOND, hashed=hashed),
        source.delete("d", SECOND),
        source.create("n", SECOND, b"new", hashed=hashed),
    )


@pytest.fixture(params=[True, False], ids=["hashes", "no hashes"])
def hashed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


async def test_a_list_that_was_closed_within_that_second_is_read(
    source: Source, folder: Path, hashed: bool
) -> None:
    begin(source)
    await run_right(source, Folder(folder))
    change(source, hashed=hashed)
    await run_right(source, Folder(folder))


@pytest.mark.parametrize("later", [False, True], ids=["no later changes", "a later change"])
async def test_a_comparison_with_that_resource_list_reverts_none_of_the_changes(
    source: Source, folder: Path, hashed: bool, later: bool
) -> None:
    begin(source)
    await run_right(source, Folder(folder))
    change(source, hashed=hashed)
    await run_right(source, Folder(folder))
    if later:
        source.clock = source.t(12.5)
        source.list_changes(source.update("b", 12, hashed=hashed), from_=SECOND)
        await run_right(source, Folder(folder))
    await run_right(source, Folder(folder), pace=pace(compare=0.0))


async def test_an_audit_knows_these_changes(source: Source, folder: Path, hashed: bool) -> None:
    begin(source)
    change(source, hashed=hashed)
    await run_right(source, Folder(folder))
    outcome = await audited(source, folder)
    assert outcome.claims, outcome
