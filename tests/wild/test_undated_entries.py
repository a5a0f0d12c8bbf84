"""Lists that show too little of what has changed, or contradict the content."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from rsnotify.format.hashes import SetSum
from rsnotify_subscriber import audit
from rsnotify_validation.inspection import inspect
from tests.wild.documents import entry, md, resource_list, seconds, sha256, urlset
from tests.wild.hub import Hub, offer_hub
from tests.wild.running import (
    Copy,
    Folder,
    assert_honest,
    audited,
    command_follow_once,
    command_honest,
    follow_once,
    following,
    outcome_of,
    pace,
    pushed,
    run_honest,
    run_right,
    until,
    until_right,
)
from tests.wild.source import Answer, Source, nginx_etag

# Resource Lists whose entries do not show that content has changed, as the Sitemaps of WordPress.
#
# They have no date and no hash, or a date that stays the same. Such resources are requested when
# everything is compared, and each report says what stays unseen meanwhile.


NAMES = ("a", "b", "c")
SENTENCE = "3 of 3 entries have no date and no hash"


@pytest.fixture(params=["validators", "no validators"])
def has_validators(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "validators")


def serve(source: Source, version: bytes, at: float = 0, *, has_validators: bool) -> None:
    for name in NAMES:
        content = source.file(name, version + name.encode(), at)
        if not has_validators:
            source.put(name, Answer(content))


@pytest.mark.parametrize("form", ["plain Sitemap", "Resource List", "with a Change List"])
async def test_changed_content_is_fetched_or_every_report_says_that_it_is_not_seen(
    source: Source, copy: Copy, form: str, has_validators: bool
):
    source.offer(changelist="changelist.xml" if form == "with a Change List" else None)
    source.list_changes()
    serve(source, b"1", has_validators=has_validators)
    entries = source.listed(NAMES, hashed=False)
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
    await run_right(url, copy, source, pace=pace(compare=0.0))


async def test_they_are_requested_once_by_condition_and_not_at_each_poll(
    source: Source, copy: Copy
):
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


async def test_what_has_a_date_or_a_hash_is_not_requested(source: Source, copy: Copy):
    source.offer(changelist=None)
    serve(source, b"1", has_validators=True)
    dated = source.listed("a", hashed=False, dated=True)
    source.list_entries(*dated, *source.listed("b"), *source.listed("c", hashed=False))
    await follow_once(source, copy)
    source.forget()
    outcome = await follow_once(source, copy, pace=pace(compare=0.0))
    assert outcome.status.limits[0].startswith("1 of 3 entries")
    assert not source.requests("a") + source.requests("b")


async def test_the_command_says_so_beside_in_step_and_an_audit_and_an_inspection_do(
    source: Source, folder: Path
):
    source.offer(changelist=None)
    serve(source, b"1", has_validators=False)
    source.list_resources(hashed=False)
    outcome = await command_follow_once(source, folder)
    assert outcome.code == 0
    assert SENTENCE in outcome.output
    found = await audit(source.url, folder, pause=0)
    assert found.in_step
    assert found.limits[0].startswith(SENTENCE)
    inspected = await inspect(source.url)
    warnings = [warning for part in inspected.parts for warning in part.warnings]
    assert f"{SENTENCE}; changes of their content are not detected" in warnings


async def test_dates_count_no_more_once_content_has_changed_without_them(
    source: Source, folder: Path
):
    source.offer(changelist=None)
    serve(source, b"1", has_validators=True)
    source.list_resources(hashed=False, dated=True)
    outcome = await follow_once(source, folder)
    assert not outcome.status.limits
    # A lost file is fetched again, and the Source lists no reason for its new content.
    serve(source, b"2", 100, has_validators=True)
    (folder / "a").unlink()
    outcome = await follow_once(source, folder)
    (limit,) = outcome.status.limits
    assert "no date that is kept" in limit
    await run_right(source, folder)


# Deletions show in the Resource List only: the Change List never tells of them.
#
# samvera/hyrax writes a Change List of all that there is, the newest first, and what was deleted is
# merely no longer listed. core §12.1 wants a deletion listed; without that, only a comparison with
# the whole set (core §5.3, audit) shows it, and how old the last one is has to be told.


@pytest.fixture
def newest_first(source: Source) -> None:
    source.offer()
    for place, name in enumerate(("a", "b", "c")):
        source.file(name, name.encode(), place)
    write(source, at=10)


def write(source: Source, at: float) -> None:
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


@pytest.mark.usefixtures("newest_first")
async def test_it_is_found_at_an_interval_while_following(source: Source, copy: Copy):
    async with following(source, copy, pace=pace(compare=0.3)) as subscriber:
        await until_right(subscriber, copy, source)
        source.remove("b")
        write(source, at=100)
        await until_right(subscriber, copy, source)


@pytest.mark.usefixtures("newest_first")
async def test_it_is_found_by_a_run_that_comes_after_the_interval(source: Source, copy: Copy):
    await follow_once(source, copy, pace=pace(compare=0.0))
    source.remove("b")
    write(source, at=100)
    await run_right(source, copy, pace=pace(compare=0.0))


@pytest.mark.usefixtures("newest_first")
async def test_the_status_says_when_the_copy_was_compared_last(source: Source, copy: Copy):
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
    # Either it was compared again, or it still says when it was.
    assert source.requests("resourcelist.xml") or outcome.status.compared == first


@pytest.mark.usefixtures("newest_first")
async def test_an_unchanged_resource_list_costs_one_request_a_comparison(
    source: Source, copy: Copy
):
    async with following(source, copy, pace=pace(compare=0.05)) as subscriber:
        await until_right(subscriber, copy, source)
        await until(subscriber, lambda _: len(source.requests("resourcelist.xml")) > 3)
    later = source.requests("resourcelist.xml")[2:]
    assert {one.status for one in later} <= {304}
    assert sum(len(source.requests(name)) for name in "abc") <= 6


@pytest.mark.usefixtures("newest_first")
async def test_the_command_compares_when_told_to_and_says_when_it_did(source: Source, folder: Path):
    outcome = await command_follow_once(source, folder)
    assert outcome.claims
    assert '"compared":"' in outcome.output
    source.remove("b")
    write(source, at=100)
    outcome = await command_honest(source, folder, "--compare", "0")
    assert outcome.claims, outcome


# A file that is restored keeps its `lastmod` (core §7), so that a short list in chronological order
# may seem to begin with the newest entry.


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("hashed", [True, False])
async def test_a_restored_file_is_not_taken_for_an_older_version(
    source: Source, folder: Path, hashed: bool, at_once: bool
):
    source.begin("a")
    source.list_resources(hashed=hashed)
    await run_right(source, folder)
    source.file("a", b"2", 60)
    first = source.changed("a", "updated", lastmod=source.t(60), hashed=hashed)
    if not at_once:
        source.list_changes(first)
        await run_right(source, folder)
    source.file("a", b"3", 40)
    then = source.changed("a", "updated", lastmod=source.t(40), hashed=hashed)
    source.list_changes(first, then)
    await run_honest(source, folder)
    assert Folder(folder).files() == source.resources
    (folder / "a").write_bytes(b"2")
    assert (await audited(source, folder)).code == 1


# A hash that the Source's own content contradicts stays a doubt, in whichever lists it is.


@pytest.mark.parametrize("listed", [True, False], ids=["list", "no list"])
@pytest.mark.parametrize("changed", [None, -100, 60], ids=["no change", "before", "after"])
@pytest.mark.parametrize("moves", [True, False], ids=["new lists", "the same lists"])
async def test_no_run_accepts_other_content_than_announced(
    source: Source, copy: Copy, listed: bool, changed: int | None, moves: bool
):
    source.offer()
    source.file("a", b"a", -500)
    source.file("b", b"b", -500)
    wrong = sha256(b"something else")
    there = [
        entry(source.uri("a"), lastmod=source.t(-500), hash=wrong if listed else sha256(b"a")),
        entry(source.uri("b"), lastmod=source.t(-500), hash=sha256(b"b")),
    ]
    changes = []
    if changed is not None:
        changes = [entry(source.uri("a"), "updated", datetime=source.t(changed), hash=wrong)]
    for number in range(5):
        at = source.t(number if moves else 0)
        source.put("resourcelist.xml", resource_list(there, at=at))
        source.list_changes(*changes, from_=-600)
        outcome = await follow_once(source, copy, pace=pace(compare=0.0))
        if listed or changed == 60:
            assert not outcome.claims
        assert_honest(copy, source, outcome)


# A hub says what the digest of the whole set is, and the Source's lists have no hashes.
#
# docs/audit.md. That the digest differs is known then, but not where: entries without hashes say
# nothing of what is held. Either everything is fetched again, or the copy is reported as different.


AUDIT = 'xmlns:audit="urn:uuid:1c73af33-b853-4b18-86f7-ed83600e2ed7"'


@pytest.fixture
def unhashed(source: Source, hub: Hub) -> None:
    source.files("a", "b", "c")
    source.list_resources(hashed=False)
    source.list_changes()
    offer_hub(source, hub)


def heartbeat(source: Source, from_: float, until_: float) -> bytes:
    """Say what the set is as of now, with nothing else."""
    held = SetSum()
    held.add((source.uri(name), sha256(content)) for name, content in source.resources.items())
    digest = held.digest()
    said = f'audit:count="{digest.count}" audit:hash="{digest.hash}" audit:digest="{digest.digest}"'
    told = md(
        capability="change-notification", from_=source.t(from_), until=source.t(until_)
    ).replace("<rs:md ", f"<rs:md {AUDIT} {said} ")
    return urlset((), told)


@pytest.mark.usefixtures("unhashed")
async def test_a_right_copy_is_in_step(source: Source, hub: Hub, copy: Copy):
    async with pushed(hub, source, copy) as subscriber:
        await hub.deliver(heartbeat(source, 10, 20))
        await until(subscriber, lambda status: status.in_step is True)


@pytest.mark.usefixtures("unhashed")
@pytest.mark.parametrize("dated", [True, False], ids=["with lastmod", "without"])
async def test_a_change_that_no_list_tells_is_repaired_or_named(
    source: Source, hub: Hub, copy: Copy, dated: bool
):
    hurried = pace(repair=0.2, lag_tries=2)
    async with pushed(hub, source, copy, pace=hurried) as subscriber:
        source.file("b", b"B", 15)
        if dated:
            dated = {"hashed": False, "lastmod": seconds(source.t(15))}
            source.list_entries(*source.listed(source.resources, **dated), at=18)
        for number in range(6):
            await hub.deliver(heartbeat(source, 10 + number, 20 + number))
        await until(
            subscriber, lambda status: copy.files() == source.resources or status.in_step is False
        )
        if copy.files() != source.resources:
            outcome = outcome_of(subscriber.status)
            assert not outcome.claims
            assert outcome.reasons
