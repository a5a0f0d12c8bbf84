"""A URI that is spelled in several ways: `~` and `%7E` are the same (RFC 3986 §6.2.2)."""

from __future__ import annotations

from pathlib import Path

import pytest

from rsnotify.selection.selection import Selection
from tests.wild.documents import change_list, entry, resource_list
from tests.wild.running import Recorder, assert_honest, follow_once
from tests.wild.source import WildSource

SPELLINGS = [
    ("~user/a", "%7Euser/a"),
    ("~user/a", "%7euser/a"),
    ("%7Euser/a", "~user/a"),
    ("caf%C3%A9", "caf%c3%a9"),
    ("caf%c3%a9", "caf%C3%A9"),
    ("abc", "%61bc"),
    ("~caf%C3%A9", "%7ecaf%c3%a9"),
]


def begin(source: WildSource, name: str) -> None:
    source.offer()
    source.file(name, b"1")
    listed = [entry(source.uri(name), content=b"1")]
    source.put("resourcelist.xml", resource_list(listed, at=source.t(0)))
    source.put("changelist.xml", change_list(from_=source.t(0)))


@pytest.mark.parametrize(("name", "other"), SPELLINGS)
async def test_a_deletion_applies_to_what_is_held(
    source: WildSource, folder: Path, name: str, other: str
) -> None:
    begin(source, name)
    assert (await follow_once(source, folder)).claims
    source.remove(name)
    deleted = entry(source.uri(other), "deleted", datetime=source.t(60))
    source.put("changelist.xml", change_list([deleted], from_=source.t(0)))
    outcome = await follow_once(source, folder)
    assert_honest(folder, source, outcome)
    assert outcome.claims


@pytest.mark.parametrize(("name", "other"), SPELLINGS)
async def test_an_update_makes_no_second_resource(
    source: WildSource, folder: Path, name: str, other: str
) -> None:
    begin(source, name)
    copy = Recorder(source.base, folder)
    assert (await follow_once(source, copy)).claims
    content = source.file(name, b"22")
    source.put(other, content)
    updated = entry(source.uri(other), "updated", datetime=source.t(60), content=content)
    source.put("changelist.xml", change_list([updated], from_=source.t(0)))
    outcome = await follow_once(source, copy)
    assert_honest(copy, source, outcome)
    assert outcome.claims
    # The Resource List may have either spelling.
    listed = [entry(source.uri(other), content=content)]
    source.put("resourcelist.xml", resource_list(listed, at=source.t(90)))
    source.put("changelist.xml", change_list(from_=source.t(90)))
    anew = Selection(excluded=("nothing",))
    outcome = await follow_once(source, copy, selection=anew)
    assert_honest(copy, source, outcome)
    assert outcome.claims
    assert copy.calls == [("updated", name), ("updated", name)]


async def test_a_creation_and_a_deletion_that_come_together_end_as_the_later(
    source: WildSource, folder: Path
) -> None:
    begin(source, "b")
    assert (await follow_once(source, folder)).claims
    source.put("~a", b"1")
    changes = [
        entry(source.uri("~a"), "created", datetime=source.t(60), content=b"1"),
        entry(source.uri("%7Ea"), "deleted", datetime=source.t(61)),
    ]
    source.put("changelist.xml", change_list(changes, from_=source.t(0)))
    outcome = await follow_once(source, folder)
    assert_honest(folder, source, outcome)
    assert outcome.claims
