from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rsnotify.errors import DocumentError, InvalidDocument, TooLarge, Unavailable
from rsnotify_gateway.adapters import iiif
from tests.gateway.checking import Checking, origin
from tests.gateway.generators import Activities, at, numbered
from tests.gateway.origin_server import SITE, Site

A, B, C, D = (SITE + name for name in "abcd")


@pytest.fixture
def stream(site: Site) -> Activities:
    return Activities(site)


@pytest.fixture
async def checking(stream: Activities, tmp_path: Path) -> AsyncIterator[Checking]:
    async with Checking(tmp_path, origin("iiif", stream.url())) as checking:
        yield checking


async def test_the_newest_activity_of_each_object_decides(stream: Activities, checking: Checking):
    stream.play("a", "b", "a", "-b", "c")
    assert await checking.check() == {A: "created", C: "created"}
    assert checking.resources()[A].lastmod == at(2)
    stream.play("-a", "b", "c", start=5)
    assert await checking.check() == {A: "deleted", B: "created", C: "updated"}
    assert await checking.check() == {}
    assert "All deletions are detected." in checking.limits


async def test_a_move_deletes_the_one_and_creates_the_other(stream: Activities, checking: Checking):
    stream.put("a", at(0))
    await checking.check()
    stream.add("Move", "a", at(1), target={"id": B, "type": "Manifest"})
    assert await checking.check() == {A: "deleted", B: "created"}
    stream.add("Move", "b", at(2), target={"id": C, "type": "Manifest"})
    stream.put("b", at(3))
    assert await checking.check() == {B: "updated", C: "created"}


async def test_only_additions_to_this_collection_count(stream: Activities, checking: Checking):
    here, elsewhere = {"id": stream.url()}, {"id": "https://other.example/all"}
    stream.add("Add", "a", at(0), target=here)
    stream.add("Add", "b", at(1), target=elsewhere)
    assert await checking.check() == {A: "created"}
    stream.add("Remove", "a", at(2), origin=elsewhere)
    assert await checking.check() == {}
    stream.add("Remove", "a", at(3), origin=here)
    assert await checking.check() == {A: "deleted"}


async def test_only_deletions_count_before_a_refresh(stream: Activities, checking: Checking):
    stream.play("a", "b")
    await checking.check()
    stream.play("c", "-b", start=2)
    stream.add("Refresh", None, None, startTime="2020-11-01T00:00:04Z")
    stream.put("a", at(5))
    assert await checking.check() == {A: "updated", B: "deleted"}


async def test_a_first_check_stops_at_a_refresh(site: Site, stream: Activities, checking: Checking):
    for number in range(12):
        stream.put(f"old{number}", at(number))
    stream.add("Refresh", None, None)
    stream.put("a", at(20))
    assert await checking.check() == {A: "created"}
    assert site.requests[stream.page(0)] == 0


async def test_only_the_last_pages_are_read_again(
    site: Site, stream: Activities, checking: Checking
):
    for number in range(40):
        stream.put(f"r{number}", at(1_000 * number))
    assert len(await checking.check()) == 40
    sent = site.sent.copy()
    await checking.check()
    assert site.sent == sent
    stream.put("a", at(50_000))
    assert await checking.check() == {A: "created"}
    assert site.requests[stream.page(6)] == 1


async def test_equal_datetimes_at_the_border_of_pages_lose_nothing(
    stream: Activities, checking: Checking
):
    for name in numbered(4):
        stream.put(name, at(9))
    await checking.check()
    for number in range(4, 13):
        stream.put(f"r{number}", at(9))
    assert set(await checking.check()) == {f"{SITE}r{number}" for number in range(4, 13)}
    stream.put("late", at(8))
    assert await checking.check() == {SITE + "late": "created"}


async def test_changes_of_one_second_are_told_apart_by_their_identifiers(
    stream: Activities, checking: Checking
):
    stream.add("Update", "a", at(1), id="https://site.example/activity/1")
    assert await checking.check() == {A: "created"}
    stream.add("Update", "a", at(1), id="https://site.example/activity/2")
    assert await checking.check() == {A: "updated"}


async def test_at_level_0_absence_from_the_whole_is_a_deletion(
    stream: Activities, checking: Checking
):
    for name in "abcdefg":
        stream.add("Update", name, None)
    assert len(await checking.check()) == 7
    assert "updates are not detected." in checking.limits
    del stream.items[2]
    stream.add("Update", "new", None)
    assert await checking.check() == {C: "deleted", SITE + "new": "created"}


async def test_at_level_1_absence_is_seen_at_a_comparison(stream: Activities, checking: Checking):
    for number, name in enumerate("abcdefg"):
        stream.add("Update", name, at(1_000 * number))
    await checking.check()
    del stream.items[1]
    stream.add("Update", "a", at(10_000))
    assert await checking.check() == {A: "updated"}
    checking.compare_next()
    assert await checking.check() == {B: "deleted"}


async def test_pages_that_shift_while_they_are_read_are_read_again(
    site: Site, stream: Activities, checking: Checking
):
    stream.play(*numbered(12))
    shifts = iter([1])

    def shift(path: str) -> None:
        if path == stream.page(1) and next(shifts, None):
            # Without the first activity, all others move to the page before.
            stream.items.pop(0)
            stream.write()

    site.before = shift
    assert set(await checking.check()) == {f"{SITE}r{number}" for number in range(1, 12)}


async def test_a_collection_that_changes_meanwhile_deletes_nothing(
    site: Site, stream: Activities, checking: Checking
):
    for number in range(12):
        stream.add("Update", f"r{number}", None)
    await checking.check()
    moving = stream.items[0]

    def move(path: str) -> None:
        """Move an activity to the end after that was read, and back to the beginning later."""
        if path == stream.page(1):
            stream.items.remove(moving)
            stream.items.append(moving)
            stream.write()
        elif path.endswith("all"):
            stream.items.remove(moving)
            stream.items.insert(0, moving)
            stream.write()

    site.before = move
    with pytest.raises(Unavailable, match="during reading"):
        await checking.check()
    assert len(checking.resources()) == 12


async def test_a_stream_that_lost_its_past_states_the_gap(stream: Activities, checking: Checking):
    stream.play("a", "-a", "b")
    await checking.check()
    stream.items.clear()
    stream.put("c", at(1_000))
    assert await checking.check() == {C: "created"}
    assert "may have been missed before 2020-11-01T00:16:40" in checking.limits


async def test_a_stream_that_was_restored_is_read_completely(
    stream: Activities, checking: Checking
):
    stream.put("a", at(0))
    stream.put("a", at(5_000))
    stream.put("b", at(6_000))
    await checking.check()
    del stream.items[1:]
    stream.write()
    assert await checking.check() == {A: "updated"}
    assert checking.resources()[A].lastmod == at(0)
    assert "may have been missed" in checking.limits


async def test_a_collection_that_lists_nothing_deletes_nothing(
    stream: Activities, checking: Checking
):
    stream.add("Update", "a", None)
    await checking.check()
    stream.items.clear()
    stream.write()
    with pytest.raises(Unavailable, match="it is empty"):
        await checking.check()
    assert set(checking.resources()) == {A}


async def test_pages_that_lead_in_a_circle_end_the_check(
    site: Site, stream: Activities, checking: Checking
):
    stream.play(*numbered(12))
    first = json.loads(site.pages[stream.page(0)])
    first["prev"] = {"id": stream.url("page-2"), "type": "OrderedCollectionPage"}
    site.pages[stream.page(0)] = json.dumps(first).encode()
    with pytest.raises(InvalidDocument, match="cycle"):
        await checking.check()


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (b"[]", "it is not a valid OrderedCollectionPage"),
        (b'{"type": "OrderedCollectionPage", "orderedItems": [', "not well-formed JSON"),
        (
            b'{"type": "OrderedCollection"}',
            "its type is OrderedCollection, not OrderedCollectionPage",
        ),
        (b'{"type": "OrderedCollectionPage"}', "no orderedItems"),
        (
            b'{"type": "OrderedCollectionPage", "orderedItems": [{"type": "Update", '
            b'"endTime": "soon"}]}',
            "entry 1: endTime",
        ),
    ],
)
async def test_a_wrong_page_is_explained(
    site: Site, stream: Activities, checking: Checking, page: bytes, message: str
):
    stream.put("a", at(0))
    whole, site.pages[stream.page(0)] = site.pages[stream.page(0)], page
    with pytest.raises(DocumentError, match=message):
        await checking.check()
    site.pages[stream.page(0)] = whole
    assert await checking.check() == {A: "created"}


@pytest.mark.slow
async def test_ten_thousand_pages_are_read_once(site: Site, checking: Checking, stream: Activities):
    for number in range(10_000):
        page = {
            "type": "OrderedCollectionPage",
            "orderedItems": [
                {"type": "Create", "object": f"{SITE}r{number}", "endTime": at(number).isoformat()}
            ],
        }
        if number:
            page["prev"] = stream.url(f"page-{number - 1}")
        site.pages[stream.page(number)] = json.dumps(page).encode()
    collection = {"type": "OrderedCollection", "last": stream.url("page-9999")}
    site.pages["/iiif/all"] = json.dumps(collection).encode()
    assert len(await checking.check()) == 10_000
    sent = sum(site.requests.values())
    await checking.check()
    assert sum(site.requests.values()) - sent < 100


@pytest.mark.parametrize("when", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
async def test_an_activity_of_another_era_hides_no_other(
    stream: Activities, checking: Checking, when: str
):
    stream.put("a", at(0))
    stream.add("Update", "b", None, endTime=when)
    assert await checking.check() == {A: "created", B: "created"}
    stream.put("c", at(2))
    assert await checking.check() == {C: "created"}
    stream.put("d", at(3))
    assert await checking.check() == {D: "created"}


async def test_only_activities_of_another_era_are_no_traceback(
    stream: Activities, checking: Checking
):
    stream.add("Update", "a", None, endTime="0001-01-01T00:00:01Z")
    await checking.check()
    stream.add("Update", "b", None, endTime="0001-01-01T00:00:02Z")
    assert await checking.check() == {B: "created"}


async def test_a_collection_without_end_is_a_problem(
    site: Site, stream: Activities, checking: Checking, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(iiif, "_MAX_PAGES", 20)

    def write(path: str) -> None:
        number = int(path.rpartition("-")[2]) if "-" in path else 0
        page = json.loads(site.pages[stream.page(0)])
        page["prev"] = {"id": stream.url(f"page-{number + 1}"), "type": "OrderedCollectionPage"}
        site.pages[stream.page(number)] = json.dumps(page).encode()

    stream.put("a", at(0))
    site.before = lambda path: write(path) if path.startswith("/iiif/page") else None
    with pytest.raises(TooLarge, match="more than 20 pages"):
        await checking.check()
    assert site.requests.total() < 30
