"""The scripted server itself: what it answers, and what it records."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from tests.wild.documents import entry
from tests.wild.running import (
    Outcome,
    assert_honest,
    command_audit,
    command_honest,
    pace,
    run_right,
)
from tests.wild.source import Answer, Source, moved


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


async def test_answers_come_one_after_another_and_with_any_header(source: Source):
    source.put("a", b"1", b"2", Answer(status=410))
    source.put("b", Answer(b"x", headers={"Date": None}, age=17))
    source.put("c", moved("/set/b"))
    source.put("d", lambda request: f"{request.method} {request.path}")
    async with aiohttp.ClientSession() as session:
        statuses = [(await session.get(source.uri("a"))).status for _ in range(4)]
        bare = await session.get(source.uri("c"))
        computed = await session.get(source.uri("d?x=1"))
        source.answers["/set/d?x=1"] = source.answers["/set/d"]
        computed = await session.get(source.uri("d?x=1"))
        text = await computed.text()
    assert statuses == [200, 200, 410, 410]
    assert "Date" not in bare.headers
    assert bare.headers["Age"] == "17"
    assert text == "GET /set/d?x=1"


async def test_an_endless_body_ends_when_the_client_closes(source: Source):
    def endless():
        while True:
            yield b"x" * 1000

    source.put("a", Answer(endless))
    async with aiohttp.ClientSession() as session, session.get(source.uri("a")) as response:
        assert len(await response.content.readexactly(10_000)) == 10_000


def test_the_checker_finds_a_wrong_copy_and_a_silent_one(source: Source, tmp_path):
    source.resources["a"] = b"1"
    (tmp_path / "a").write_bytes(b"2")
    with pytest.raises(AssertionError, match="it is not"):
        assert_honest(tmp_path, source, Outcome(claims=True, reasons=()))
    with pytest.raises(AssertionError, match="does not say why"):
        assert_honest(tmp_path, source, Outcome(claims=False, reasons=()))
    assert_honest(tmp_path, source, Outcome(claims=False, reasons=("because",)))


# A Source that does all as it should: no doubts, and no repeated requests.


def describe(source: Source) -> None:
    listed = [
        entry(source.uri(name), lastmod=source.t(0), content=content)
        for name, content in source.resources.items()
    ]
    source.list_entries(*listed)


async def test_it_is_followed_and_audited_without_a_doubt(source: Source, folder: Path):
    source.offer()
    source.files("a", "b", "c")
    describe(source)
    source.list_changes()
    outcome = await command_honest(source, folder)
    assert outcome.claims
    content = source.file("a", b"changed", 60)
    source.remove("b")
    changed = [
        entry(source.uri("a"), "updated", datetime=source.t(60), content=content),
        entry(source.uri("b"), "deleted", datetime=source.t(61)),
    ]
    source.list_changes(*changed)
    source.forget()
    outcome = await run_right(source, folder, pace=pace(poll=60.0))
    assert not outcome.reasons
    assert source.requests("resourcelist.xml") == []
    assert len(source.requests("changelist.xml")) == 1
    assert len(source.requests("a")) == 1
    describe(source)
    outcome = await command_audit(source, folder)
    assert outcome.code == 0, outcome
