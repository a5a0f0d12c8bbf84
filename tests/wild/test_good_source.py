"""A Source that does all as it should: nothing is doubted, and nothing is asked for twice."""

from __future__ import annotations

from pathlib import Path

from tests.wild.documents import change_list, entry, resource_list
from tests.wild.running import assert_honest, command_audit, command_follow_once, pace, run_right
from tests.wild.source import WildSource


def describe(source: WildSource) -> None:
    listed = [
        entry(source.uri(name), lastmod=source.t(0), content=content)
        for name, content in source.resources.items()
    ]
    source.put("resourcelist.xml", resource_list(listed, at=source.t(10)))


async def test_it_is_followed_and_audited_without_a_doubt(source: WildSource, folder: Path) -> None:
    source.offer()
    source.files("a", "b", "c")
    describe(source)
    source.put("changelist.xml", change_list(from_=source.t(5)))
    outcome = await command_follow_once(source, folder)
    assert_honest(folder, source, outcome)
    assert outcome.claims
    content = source.file("a", b"changed", 60)
    source.remove("b")
    changed = [
        entry(source.uri("a"), "updated", datetime=source.t(60), content=content),
        entry(source.uri("b"), "deleted", datetime=source.t(61)),
    ]
    source.put("changelist.xml", change_list(changed, from_=source.t(5)))
    source.forget()
    outcome = await run_right(source, folder, pace=pace(poll=60.0))
    assert not outcome.reasons
    assert source.requests("resourcelist.xml") == []
    assert len(source.requests("changelist.xml")) == 1
    assert len(source.requests("a")) == 1
    describe(source)
    outcome = await command_audit(source, folder)
    assert outcome.code == 0, outcome
