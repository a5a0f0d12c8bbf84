"""Resource Lists whose entries do not show that content has changed, as the Sitemaps of WordPress.

They have no date and no hash, or a date that stays the same. Such resources are requested when
everything is compared, and each report says what stays unseen meanwhile.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rsnotify_subscriber import audit
from rsnotify_validation.inspection import inspect
from tests.wild.documents import entry, resource_list, urlset
from tests.wild.running import (
    Copy,
    assert_honest,
    command_follow_once,
    follow_once,
    following,
    pace,
    run_right,
    until,
    until_right,
)
from tests.wild.source import Answer, WildSource

NAMES = ("a", "b", "c")
SENTENCE = "3 of 3 entries have no date and no hash"


@pytest.fixture(params=["validators", "no validators"])
def has_validators(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "validators")


def serve(source: WildSource, version: bytes, at: float = 0, *, has_validators: bool) -> None:
    for name in NAMES:
        content = source.file(name, version + name.encode(), at)
        if not has_validators:
            source.put(name, Answer(content))


@pytest.mark.parametrize("form", ["plain Sitemap", "Resource List", "with a Change List"])
async def test_changed_content_is_fetched_or_every_report_says_that_it_is_not_seen(
    source: WildSource, copy: Copy, form: str, has_validators: bool
) -> None:
    source.offer(changelist="changelist.xml" if form == "with a Change List" else None)
    source.list_changes()
    serve(source, b"1", has_validators=has_validators)
    entries = [entry(source.uri(name)) for name in NAMES]
    is_plain = form == "plain Sitemap"
    source.put("resourcelist.xml", urlset(entries) if is_plain else resource_list(entries))
    url = source.uri("resourcelist.xml") if is_plain else source.url
    outcome = await follow_once(url, copy)
    assert outcome.claims, outcome
    serve(source, b"2", 100, has_validators=has_validators)
    outcome = await follow_once(url, copy)
    (limit,) = outcome.status.limits
    assert limit.startswith(SENTENCE)
    if form != "with a Change List":
        assert_honest(copy, source, outcome)
    outcome = await follow_once(url, copy, pace=pace(compare=0.0))
    assert_honest(copy, source, outcome)
    assert outcome.claims, outcome


async def test_they_are_requested_once_by_condition_and_not_at_each_poll(
    source: WildSource, copy: Copy
) -> None:
    source.offer(changelist=None)
    serve(source, b"1", has_validators=True)
    source.list_resources(hashed=False)
    await follow_once(source, copy)
    source.forget()
    async with following(source, copy) as subscriber:
        await until_right(subscriber, copy, source)
        await until(subscriber, lambda _: len(source.requests("resourcelist.xml")) >= 4)
    requests = [one for name in NAMES for one in source.requests(name)]
    assert [(one.conditional, one.status) for one in requests] == [(True, 304)] * 3


async def test_what_has_a_date_or_a_hash_is_not_requested(source: WildSource, copy: Copy) -> None:
    source.offer(changelist=None)
    serve(source, b"1", has_validators=True)
    source.put(
        "resourcelist.xml",
        resource_list(
            [
                entry(source.uri("a"), lastmod=source.t(0)),
                entry(source.uri("b"), content=source.resources["b"]),
                entry(source.uri("c")),
            ],
            at=source.t(10),
        ),
    )
    await follow_once(source, copy)
    source.forget()
    outcome = await follow_once(source, copy, pace=pace(compare=0.0))
    assert outcome.status.limits[0].startswith("1 of 3 entries")
    assert not source.requests("a") + source.requests("b")


async def test_the_command_says_so_beside_in_step_and_an_audit_and_an_inspection_do(
    source: WildSource, folder: Path
) -> None:
    source.offer(changelist=None)
    serve(source, b"1", has_validators=False)
    source.list_resources(hashed=False)
    outcome = await command_follow_once(source, folder)
    assert outcome.code == 0
    assert SENTENCE in outcome.output
    found = await audit(source.url, folder, pause=0.01)
    assert found.in_step
    assert found.limits[0].startswith(SENTENCE)
    inspected = await inspect(source.url)
    warnings = [warning for part in inspected.parts for warning in part.warnings]
    assert f"{SENTENCE}; changed content is not seen" in warnings


async def test_dates_count_no_more_once_content_has_changed_without_them(
    source: WildSource, folder: Path
) -> None:
    source.offer(changelist=None)
    serve(source, b"1", has_validators=True)
    entries = [entry(source.uri(name), lastmod=source.t(0)) for name in NAMES]
    source.put("resourcelist.xml", resource_list(entries, at=source.t(10)))
    outcome = await follow_once(source, folder)
    assert not outcome.status.limits
    # A lost file is fetched again, and the Source lists no reason for its new content.
    serve(source, b"2", 100, has_validators=True)
    (folder / "a").unlink()
    outcome = await follow_once(source, folder)
    (limit,) = outcome.status.limits
    assert "no date that is kept" in limit
    await run_right(source, folder)
