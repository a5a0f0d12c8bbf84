"""An operator names another Source than the one that the folder is a copy of."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wild.documents import capability_list, change_list, entry, resource_list
from tests.wild.running import assert_honest, command_audit, command_follow_once, run_right
from tests.wild.source import WildSource


@pytest.fixture
async def copied(source: WildSource, folder: Path) -> Path:
    """Copy one of two sets, whose documents are in one folder."""
    source.offer()
    source.put("a", b"1")
    source.put("b", b"2")
    for name, content in ((".xml", b"1"), ("-other.xml", b"2")):
        uri = source.uri("a" if content == b"1" else "b")
        listed = [entry(uri, lastmod=source.t(0), content=content)]
        source.put(f"resourcelist{name}", resource_list(listed, at=source.t(10)))
        source.put(f"changelist{name}", change_list(from_=source.t(5)))
        offered = {
            "resourcelist": source.uri(f"resourcelist{name}"),
            "changelist": source.uri(f"changelist{name}"),
        }
        source.put(f"capabilitylist{name}", capability_list(offered))
    source.resources["a"] = b"1"
    await run_right(source, folder)
    return folder


@pytest.mark.parametrize("name", ["capabilitylist-other.xml", "changelist-other.xml"])
async def test_another_set_is_neither_audited_nor_followed(
    name: str, source: WildSource, copied: Path
) -> None:
    other = source.uri(name)
    outcome = await command_audit(other, copied)
    assert outcome.code == 2
    assert source.url in outcome.reasons[0]
    assert other in outcome.reasons[0]
    outcome = await command_follow_once(other, copied)
    assert outcome.code == 2
    assert source.url in outcome.reasons[0]
    assert_honest(copied, source, outcome)


@pytest.mark.parametrize("name", ["/", "resourcelist.xml", "changelist.xml"])
async def test_another_way_to_the_same_set_may_be_named(
    name: str, source: WildSource, copied: Path
) -> None:
    for command in (command_audit, command_follow_once):
        outcome = await command(source.uri(name), copied)
        assert_honest(copied, source, outcome)
        assert outcome.claims, outcome


async def test_a_source_that_is_away_is_not_audited_by_heart(
    source: WildSource, copied: Path
) -> None:
    await source.server.stop()
    assert (await command_audit(source, copied)).code == 2
    assert (await command_audit(source.uri("changelist.xml"), copied)).code == 2
