"""Closed lists that gain entries, which only their index, archive or dump announces.

A transaction that commits late, or the last entries before a list is closed, are dated before what
a Destination has read by then.
"""

from __future__ import annotations

import pytest

from tests.wild.documents import change_list, change_package, entry, index, md, member, urlset
from tests.wild.running import (
    Copy,
    following,
    pace,
    polled,
    run_honest,
    run_right,
    until,
    until_right,
)
from tests.wild.source import Request, Source


@pytest.fixture(params=["archive", "index", "dump", "archive of a dump"])
def form(request: pytest.FixtureRequest, source: Source) -> str:
    form = str(request.param)
    documents: dict[str, str | None] = {}
    if "dump" in form:
        documents = {"changelist": None, "changedump": "changedump.xml"}
    if "archive" in form:
        kind = "changedump-archive" if "dump" in form else "changelist-archive"
        documents[kind] = "archive.xml"
    source.offer(**documents)
    put_resources(source)
    return form


def put_resources(source: Source) -> None:
    for name in ("a", "b", "c", "d"):
        source.file(name, b"1")
    source.list_resources()


class History:
    """Two closed periods and an open one, in one of the forms."""

    def __init__(self, source: Source, form: str) -> None:
        self.source, self.form = source, form
        self.periods: list[tuple[float, float | None, list[str]]] = [
            (5, 100, [self.update("a", 50)]),
            (100, 200, [self.update("b", 150), self.delete("d", 160)]),
            (200, None, [self.update("c", 250)]),
        ]
        self.put()

    def update(self, name: str, at: float) -> str:
        self.source.file(name, str(at).encode(), at)
        return self.source.changed(name, "updated", at, path=f"/{name}")

    def delete(self, name: str, at: float) -> str:
        self.source.remove(name)
        return self.source.changed(name, "deleted", at)

    def put(self, announced: float = 300) -> None:
        source = self.source
        entries = []
        for number, (from_, ends, changes) in enumerate(self.periods):
            is_open = ends is None
            if "dump" in self.form:
                name = f"{number}.zip"
                ends = 10_000 if ends is None else ends
                body = change_package(changes, {}, from_=source.t(from_), until=source.t(ends))
                source.put(name, body)
                written = source.t(400 if is_open else announced)
                told = {"from_": source.t(from_), "until": source.t(ends), "length": len(body)}
                entries.append(entry(source.uri(name), lastmod=written, **told))
                continue
            name = f"{number}.xml"
            moment = None if ends is None else source.t(ends)
            source.put(name, change_list(changes, source.t(from_), moment))
            length = len(changes)
            about = {"from_": source.t(from_), "until": moment, "length": length}
            is_in_index = self.form == "index"
            if is_in_index or not is_open:
                entries.append(member(source.uri(name), **about))  # type: ignore[arg-type]
            else:
                source.list_changes(*changes, from_=from_)
        if self.form == "index":
            source.put("changelist.xml", index("changelist", entries, from_=source.t(5)))
        elif self.form == "archive":
            archive = [one.replace("sitemap>", "url>") for one in entries]
            about = md(capability="changelist-archive", from_=source.t(5))
            source.put("archive.xml", urlset(archive, about))
        elif self.form == "dump":
            about = md(capability="changedump", from_=source.t(5))
            source.put("changedump.xml", urlset(entries, about))
        else:
            about = md(capability="changedump", from_=source.t(200))
            source.put("changedump.xml", urlset(entries[2:], about))
            about = md(capability="changedump-archive", from_=source.t(5))
            inner = md(capability="changedump", from_=source.t(5), until=source.t(200))
            source.put("dump-0.xml", urlset(entries[:2], inner))
            length = sum(len(changes) for _, _, changes in self.periods[:2])
            told = {"from_": source.t(5), "until": source.t(200), "length": length}
            old = entry(source.uri("dump-0.xml"), **told)
            source.put("archive.xml", urlset([old], about))


def begin(source: Source) -> History:
    source.offer(**{"changelist-archive": "archive.xml"})
    put_resources(source)
    return History(source, "archive")


@pytest.mark.parametrize("period", [0, 1])
async def test_an_entry_that_a_closed_list_gains_is_applied(
    source: Source, copy: Copy, form: str, period: int
):
    history = History(source, form)
    await run_right(source, copy)
    await run_right(source, copy)
    at = 60 + 100 * period
    history.periods[period][2].append(history.update("e", at))
    if period == 0:
        # Changed once more in a later list: the first change must not undo that.
        history.periods[0][2].append(source.changed("d", "updated", 70, hashed=False))
    history.put(500)
    source.forget()
    outcome = await run_right(source, copy)
    assert copy.files()["e"] == str(at).encode()
    assert not source.requests("d")
    assert outcome.status is not None
    source.forget()
    await run_right(source, copy)
    lists = [one for one in source.log if one.path.endswith(("0.xml", "1.xml", ".zip"))]
    assert not lists if form != "dump" else True


async def test_a_closed_list_that_stays_the_same_is_not_read_again(
    source: Source, copy: Copy, form: str
):
    History(source, form)
    await run_right(source, copy)
    source.forget()
    async with following(source, copy) as subscriber:
        await until_right(subscriber, copy, source)
        before = len(source.log)
        await until(subscriber, lambda _: len(source.log) > before + 5)
    assert not source.requests("0.xml") + source.requests("1.xml")
    assert len(source.requests("archive.xml")) <= 1


async def test_a_list_that_was_just_closed_is_read_once_more(source: Source, copy: Copy):
    history = begin(source)
    await run_right(source, copy)
    async with following(source, copy) as subscriber:
        await until_right(subscriber, copy, source)
        # The open list gains an entry before its last one, and is closed with that.
        history.periods[2][2].insert(0, history.update("e", 220))
        closed = history.periods[2][2]
        history.periods[2:] = [(200, 250, closed), (250, None, [])]
        history.put()
        await until_right(subscriber, copy, source)
        await polled(subscriber, source, 3)
    assert len(source.requests("2.xml")) == 1
    await run_right(source, copy)


@pytest.mark.parametrize("status", [404, 500])
async def test_an_archive_that_cannot_be_read_is_no_reason_for_a_doubt(
    source: Source, copy: Copy, status: int
):
    begin(source)
    await run_right(source, copy)
    source.put("archive.xml", b"", status=status)
    await run_right(source, copy)


async def test_a_changed_list_that_cannot_be_read_is_a_doubt(source: Source, copy: Copy):
    history = begin(source)
    await run_right(source, copy)
    history.periods[1][2].append(history.update("e", 170))
    history.put()
    right = source.answers["/set/1.xml"]
    source.put("1.xml", b"", status=500)
    outcome = await run_honest(source, copy, pace=pace(patience=0.2))
    assert not outcome.claims
    source.answers["/set/1.xml"] = right
    await run_right(source, copy)


@pytest.mark.parametrize("is_served", [False, True], ids=["gone", "still served"])
async def test_a_list_that_is_closed_while_another_is_read_again_is_read_too(
    source: Source, copy: Copy, form: str, is_served: bool
):
    history = History(source, form)
    late = history.update("e", 170)
    period = history.periods[2][2]
    period += [history.delete("e", 260), history.update("c", 290)]
    history.put()
    await run_right(source, copy)
    history.periods[1][2].append(late)
    history.put(500)
    name = "1.zip" if "dump" in form else "1.xml"
    answer = source.answers[f"/set/{name}"]

    def close(_: Request) -> object:
        """Close the period in which the resource was deleted, and return a list before that."""
        if len(history.periods) == 3:
            history.periods[2:] = [(200, 280, period[:-1]), (280, None, period[-1:])]
            history.put(500)
        return answer

    source.put(name, close)  # type: ignore[arg-type]
    if is_served:
        source.put("e", b"170")
    await run_right(source, copy)
    assert "e" not in copy.files()
    assert len(history.periods) == 4
    await run_right(source, copy)
