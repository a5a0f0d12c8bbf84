"""`at` is the time at which writing the Resource List ended, while core §5.2.1 wants its beginning.

What changed while it was written may be missing from it, though its datetime lies before `at`. No
Date shows this, so a first copy compares every entry of the Change List with what it holds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wild.documents import entry, resource_list
from tests.wild.running import Copy, Folder, audited, follow_once, run_right
from tests.wild.source import WildSource


@pytest.fixture(autouse=True)
def written_while_things_change(source: WildSource) -> None:
    """List `a` and `b` at 1; then create `d`, delete `b`; finish the list at 60."""
    source.offer()
    source.files("a", "b", "c")
    listed = [entry(source.uri(one), content=source.resources[one]) for one in "abc"]
    source.file("d", b"d", 30)
    source.remove("b")
    source.file("c", b"changed", 32)
    source.put("resourcelist.xml", resource_list(listed, at=source.t(60)))
    source.list_changes(
        source.changed("d", "created", 30),
        source.changed("b", "deleted", 31),
        source.changed("c", "updated", 32),
        from_=0,
    )


async def test_a_first_copy_has_what_changed_meanwhile(source: WildSource, copy: Copy) -> None:
    await run_right(source, copy)


async def test_so_has_a_later_copy_that_is_compared_with_such_a_list(
    source: WildSource, copy: Copy
) -> None:
    await follow_once(source, copy)
    listed = [entry(source.uri(one), content=source.resources[one]) for one in "acd"]
    source.file("e", b"e", 500)
    source.put("resourcelist.xml", resource_list(listed, at=source.t(600)))
    source.list_changes(source.changed("e", "created", 500), from_=400)
    await run_right(source, copy)


async def test_audit_does_not_believe_it_either(source: WildSource, tmp_path: Path) -> None:
    copy = Folder(tmp_path / "copy")
    copy.path.mkdir()
    for name, content in {"a": b"a", "b": b"b", "c": b"c"}.items():
        (copy.path / name).write_bytes(content)
    outcome = await audited(source, copy.path)
    assert outcome.code in (1, 2), outcome
