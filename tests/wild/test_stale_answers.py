"""A cache, or a replica that lags, answers with an earlier version of a resource.

Where the entry has a hash, that shows. Without one there are its length and dates, and those of
the answer. RFC 9111 §4.2.4 lets caches serve stale content, §5.2.1.4 lets clients ask past them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.wild.documents import change_list, days, entry, resource_list, sha256
from tests.wild.running import assert_honest, command_follow_once, follow_once, run_right
from tests.wild.source import Answer, Request, WildSource

ETAG = '"that of version 1"'


def listed(source: WildSource, *changes: str) -> None:
    source.put("changelist.xml", change_list(changes, from_=source.t(0)))


@pytest.fixture
async def followed(source: WildSource, folder: Path) -> WildSource:
    source.offer()
    source.file("a", b"version 1", -500, etag=ETAG)
    source.put("resourcelist.xml", resource_list([entry(source.uri("a"))], at=source.t(0)))
    listed(source)
    await run_right(source, folder)
    return source


def cached(source: WildSource, stale: Answer) -> None:
    """Let a cache answer with an old version whoever does not ask past it."""
    current = source.answers["/set/a"]

    def answer(request: Request) -> Any:
        return current if request.past_caches else stale

    source.put("a", answer)


@pytest.mark.parametrize(
    ("stale", "dates"),
    [
        (Answer(b"version 1"), {"hash": "h"}),
        (Answer(b"version 1"), {"length": 10}),
        (Answer(b"version 1", modified=-500), {"lastmod": 600}),
        (Answer(b"version 1", modified=-500), {}),
        (Answer(b"version x", modified=-500), {"lastmod": 600}),
        (Answer(b"version x", modified=-500), {}),
        (Answer(b"version x", date=100, age=3000), {}),
        (Answer(b"version x", date=100, age=3000), {"lastmod": 600}),
    ],
)
async def test_a_stale_copy_of_a_cache_is_not_taken(
    followed: WildSource, folder: Path, stale: Answer, dates: dict[str, Any]
) -> None:
    source = followed
    source.file("a", b"version 10", 600)
    for name in ("modified", "date"):
        if (offset := getattr(stale, name)) is not None:
            setattr(stale, name, source.t(offset))
    cached(source, stale)
    told: dict[str, Any] = {key: value for key, value in dates.items() if key == "length"}
    if "hash" in dates:
        told["hash"] = sha256(source.resources["a"])
    if "lastmod" in dates:
        told["lastmod"] = source.t(600)
    listed(source, entry(source.uri("a"), "updated", datetime=source.t(600), **told))
    await run_right(source, folder)
    assert len(source.requests("a")) == 3


@pytest.mark.parametrize("told", [{"length": 10}, {}])
async def test_an_answer_that_nothing_has_changed_is_not_believed_where_something_has(
    followed: WildSource, folder: Path, told: dict[str, Any]
) -> None:
    source = followed
    source.file("a", b"version 10", 600)
    cached(source, Answer(b"version 1", etag=ETAG, modified=source.t(-500)))
    listed(source, entry(source.uri("a"), "updated", datetime=source.t(600), **told))
    await run_right(source, folder)


async def test_a_replica_that_lags_is_asked_again(followed: WildSource, folder: Path) -> None:
    source = followed
    old = Answer(b"version 1", modified=source.t(-500))
    source.file("a", b"version 10", 600)
    source.put("a", old, old, old, Answer(b"version 10", modified=source.t(600)))
    changed = entry(source.uri("a"), "updated", lastmod=source.t(600), datetime=source.t(600))
    listed(source, changed)
    await run_right(source, folder)


async def test_what_stays_old_is_taken_in_the_end_and_looked_at_again(
    followed: WildSource, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = followed
    source.put("a", Answer(b"version x", modified=source.t(-500)))
    times = {"lastmod": source.t(600)}
    listed(source, entry(source.uri("a"), "updated", datetime=source.t(600), **times))
    for _ in range(2):  # it is still said when nothing is new
        outcome = await follow_once(source, folder)
        assert not outcome.claims
        assert any("and one of" in reason and "/a" in reason for reason in outcome.reasons)
    assert "may be out of date" in caplog.text
    assert (folder / "a").read_bytes() == b"version x"
    outcome = await command_follow_once(source, folder)
    assert outcome.code == 1
    source.file("a", b"version 10", 600)
    again = [entry(source.uri("a"), lastmod=source.t(600))]
    source.put("resourcelist.xml", resource_list(again, at=source.t(900)))
    listed(source)
    source.put("changelist.xml", change_list(from_=source.t(800)))
    outcome = await follow_once(source, folder)  # a gap: all is compared
    assert_honest(folder, source, outcome)
    assert outcome.claims


@pytest.mark.parametrize(
    ("answer", "times"),
    [
        (Answer(modified=599.9), {"lastmod": 600.4}),  # rounded differently
        (Answer(modified=600), {"lastmod": 600.9, "datetime": 601}),
        (Answer(), {"lastmod": 600}),
        (Answer(modified=-3600 * 10), {"lastmod": "a day"}),  # of another time zone
        (Answer(modified="now"), {"lastmod": 600}),
    ],
)
async def test_a_server_whose_dates_fit_is_asked_once(
    followed: WildSource, folder: Path, answer: Answer, times: dict[str, Any]
) -> None:
    source = followed
    answer.body = b"version 10"
    source.resources["a"] = answer.body
    if answer.modified == "now":
        answer.modified = source.now
    elif answer.modified is not None:
        answer.modified = source.t(answer.modified)
    source.put("a", answer)
    told: dict[str, Any] = {"datetime": source.t(times.get("datetime", 600))}
    lastmod = times["lastmod"]
    told["lastmod"] = days(source.t(600)) if lastmod == "a day" else source.t(lastmod)
    source.forget()
    listed(source, entry(source.uri("a"), "updated", **told))
    await run_right(source, folder)
    assert len(source.requests("a")) == 1


async def test_a_source_that_notices_changes_late_is_soon_asked_once(
    followed: WildSource, folder: Path
) -> None:
    """Its datetimes are those of a nightly scan, and say nothing against older files."""
    source = followed
    changed = []
    for number in range(12):
        source.file(str(number), b"%d" % number, -10_000)
        uri = source.uri(str(number))
        changed.append(entry(uri, "created", datetime=source.t(600 + number)))
        listed(source, *changed)
        outcome = await follow_once(source, folder)
        assert outcome.claims
    assert_honest(folder, source, outcome)
    assert len(source.requests("11")) == 2  # each run learns by itself
