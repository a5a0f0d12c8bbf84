"""Deletions show in the Resource List only: the Change List never tells of them.

samvera/hyrax writes a Change List of all that there is, the newest first, and what was deleted is
merely no longer listed. core §12.1 wants a deletion listed; without that, only a comparison with
the whole set (core §5.3, audit) shows it, and how old the last one is has to be told.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.wild.documents import entry, resource_list, seconds
from tests.wild.running import (
    Copy,
    assert_honest,
    command_follow_once,
    follow_once,
    following,
    pace,
    run_honest,
    run_right,
    until,
    until_right,
)
from tests.wild.source import WildSource, nginx_etag


@pytest.fixture(autouse=True)
def begun(source: WildSource) -> None:
    source.offer()
    for place, name in enumerate(("a", "b", "c")):
        source.file(name, name.encode(), place)
    write(source, at=10)


def write(source: WildSource, at: float) -> None:
    """Write both lists as hyrax does: whole seconds, no hashes, the newest first."""
    dated = {
        name: seconds(source.t(place))
        for place, name in enumerate("abc")
        if name in source.resources
    }
    text = resource_list(
        [entry(source.uri(name), lastmod=lastmod) for name, lastmod in dated.items()],
        seconds(source.t(at)),
    )
    source.put("resourcelist.xml", text, etag=nginx_etag(text, source.t(at)))
    told = [
        source.changed(name, "created", hashed=False, lastmod=lastmod)
        for name, lastmod in dated.items()
    ]
    source.list_changes(*reversed(told), from_=seconds(source.t(0)))


async def test_it_is_found_at_an_interval_while_following(source: WildSource, copy: Copy) -> None:
    async with following(source, copy, pace=pace(compare=0.3)) as subscriber:
        await until_right(subscriber, copy, source)
        source.remove("b")
        write(source, at=100)
        await until_right(subscriber, copy, source)


async def test_it_is_found_by_a_run_that_comes_after_the_interval(
    source: WildSource, copy: Copy
) -> None:
    await follow_once(source, copy, pace=pace(compare=0.0))
    source.remove("b")
    write(source, at=100)
    await run_right(source, copy, pace=pace(compare=0.0))


async def test_the_status_says_when_the_copy_was_compared_last(
    source: WildSource, copy: Copy
) -> None:
    before = datetime.now(UTC)
    outcome = await follow_once(source, copy)
    first = outcome.status.compared
    assert before <= first <= datetime.now(UTC)
    source.file("a", b"changed", 200)
    source.list_changes(
        source.changed("a", "updated", lastmod=seconds(source.t(200)), hashed=False),
        from_=seconds(source.t(0)),
    )
    source.forget()
    outcome = await run_honest(source, copy)
    assert outcome.status is not None
    # Either it was compared anew, or it still says when it was.
    assert source.requests("resourcelist.xml") or outcome.status.compared == first


async def test_an_unchanged_resource_list_costs_one_request_a_comparison(
    source: WildSource, copy: Copy
) -> None:
    async with following(source, copy, pace=pace(compare=0.05)) as subscriber:
        await until_right(subscriber, copy, source)
        await until(subscriber, lambda _: len(source.requests("resourcelist.xml")) > 3)
    later = source.requests("resourcelist.xml")[2:]
    assert {one.status for one in later} <= {304}
    assert sum(len(source.requests(name)) for name in "abc") <= 6


async def test_the_command_compares_when_told_to_and_says_when_it_did(
    source: WildSource, folder: Path
) -> None:
    outcome = await command_follow_once(source, folder)
    assert outcome.claims
    assert '"compared":"' in outcome.output
    source.remove("b")
    write(source, at=100)
    outcome = await command_follow_once(source, folder, "--compare", "0")
    assert_honest(folder, source, outcome)
    assert outcome.claims, outcome
