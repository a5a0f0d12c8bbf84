"""The scripted server itself: what it answers, and what it records."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from tests.wild.running import (
    Outcome,
    assert_honest,
    command_audit,
    command_honest,
    pace,
    run_right,
)
from tests.wild.source import Source


async def test_files_are_answered_like_a_static_server_does(source: Source):
    source.file("a", b"1", 0)
    async with aiohttp.ClientSession() as session:
        first = await session.get(source.uri("a"))
        tag, modified = first.headers["ETag"], first.headers["Last-Modified"]
        assert tag == f'"{int(source.t(0).timestamp()):x}-1"'
        again = await session.get(source.uri("a"), headers={"If-None-Match": tag})
        since = await session.get(source.uri("a"), headers={"If-Modified-Since": modified})
        source.file("a", b"22", 0.5)
        other = await session.get(source.uri("a"), headers={"If-None-Match": tag})
    assert (again.status, since.status, other.status) == (304, 304, 200)
    asked = source.requests("a")
    assert [one.status for one in asked] == [200, 304, 304, 200]
    assert [one.conditional for one in asked] == [False, True, True, True]


def test_the_checker_finds_a_wrong_copy_and_a_silent_one(source: Source, tmp_path):
    source.resources["a"] = b"1"
    (tmp_path / "a").write_bytes(b"2")
    with pytest.raises(AssertionError, match="it is not"):
        assert_honest(tmp_path, source, Outcome(claims=True, reasons=()))
    with pytest.raises(AssertionError, match="does not say why"):
        assert_honest(tmp_path, source, Outcome(claims=False, reasons=()))
    assert_honest(tmp_path, source, Outcome(claims=False, reasons=("because",)))


# A Source that does all as it should: no doubts, and no repeated requests.


async def test_it_is_followed_and_audited_without_a_doubt(source: Source, folder: Path):
    source.offer()
    source.files("a", "b", "c")
    source.list_resources(dated=True)
    source.list_changes()
    outcome = await command_honest(source, folder)
    assert outcome.claims
    source.list_changes(source.update("a", 60), source.delete("b", 61))
    source.forget()
    outcome = await run_right(source, folder, pace=pace(poll=60.0))
    assert not outcome.reasons
    assert source.requests("resourcelist.xml") == []
    assert len(source.requests("changelist.xml")) == 1
    assert len(source.requests("a")) == 1
    source.list_resources(dated=True)
    outcome = await command_audit(source, folder)
    assert outcome.code == 0, outcome
