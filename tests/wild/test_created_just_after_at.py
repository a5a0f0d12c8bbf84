"""A resource that is created milliseconds after the `at` of the Resource List that has it.

`at` is taken when a list is begun (core §10.1), so that the list may have what came later, and the
Change List tells it once more.
"""

from __future__ import annotations

from pathlib import Path

from tests.wild.documents import change_list, entry, resource_list
from tests.wild.running import Recorder, run_right
from tests.wild.source import WildSource


async def test_a_handler_receives_it_once(source: WildSource, tmp_path: Path) -> None:
    source.offer()
    content = source.file("a", b"1", 0.005)
    listed = entry(source.uri("a"), content=content)
    created = entry(source.uri("a"), "created", datetime=source.t(0.005), content=content)
    source.put("resourcelist.xml", resource_list([listed], at=source.t(0)))
    source.put("changelist.xml", change_list([created], from_=source.t(-1)))
    copy = Recorder(source.base, tmp_path / "state")
    await run_right(source, copy)
    assert copy.calls == [("updated", "a")]
    assert len(source.requests("a")) == 1
