from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rsnotify.errors import DocumentError, Unavailable
from rsnotify.format.datetimes import parse_datetime, to_microseconds
from rsnotify.runtime.backup import copy_state
from rsnotify_gateway.adapters import sitemaps
from tests.gateway.checking import Checking, origin
from tests.gateway.origin_server import Site, index, sitemap, zipped

A, B, C, D = (f"https://site.example/{name}" for name in "abcd")
MONDAY, TUESDAY = "2026-11-02T10:00:00Z", "2026-11-03T10:00:00Z"


@pytest.fixture
async def checking(site: Site, tmp_path: Path) -> AsyncIterator[Checking]:
    async with Checking(tmp_path, origin("sitemap", site.url("/sitemap.xml"))) as checking:
        yield checking


def put_parts(site: Site, *parts: dict[str, str | None]) -> None:
    """Put an index of Sitemaps."""
    paths = [f"/{number}.xml" for number in range(1, len(parts) + 1)]
    site.pages["/sitemap.xml"] = index(map(site.url, paths))
    site.pages.update(zip(paths, map(sitemap, parts), strict=True))


async def test_creations_updates_and_deletions_are_seen(site: Site, checking: Checking):
    site.pages["/sitemap.xml"] = sitemap({A: MONDAY, B: MONDAY})
    assert await checking.check() == {A: "created", B: "created"}
    site.pages["/sitemap.xml"] = sitemap({A: TUESDAY, C: MONDAY})
    assert await checking.check() == {A: "updated", C: "created", B: "deleted"}
    assert set(checking.resources()) == {A, C}
    assert checking.resources()[A].lastmod is not None


async def test_an_unchanged_sitemap_is_not_sent_again(site: Site, checking: Checking):
    site.pages["/sitemap.xml"] = sitemap({A: MONDAY})
    for _ in range(3):
        await checking.check()
    assert site.requests["/sitemap.xml"] == 3
    assert site.sent["/sitemap.xml"] == 1


@pytest.mark.parametrize("fraction", ["", ".25"])
async def test_a_change_within_the_second_of_the_one_before_is_seen(
    site: Site, checking: Checking, monkeypatch: pytest.MonkeyPatch, fraction: str
):
    modified = to_microseconds(parse_datetime(MONDAY))
    site.pages["/sitemap.xml"] = sitemap({A: MONDAY.replace("Z", f"{fraction}Z"), B: TUESDAY})
    expected: list[dict[str, str]] = [{A: "created", B: "created"}, {}, {A: "updated"}, {}]
    if fraction:  # then it is precise
        expected[2] = {}
    for seconds, changes in zip([0.4, 0.9, 60, 120], expected, strict=True):
        at = modified + round(seconds * 1e6)
        monkeypatch.setattr(sitemaps, "system_clock", lambda at=at: at)
        assert await checking.check() == changes
    assert site.sent["/sitemap.xml"] == (1 if fraction else 3)


async def test_a_deletion_is_seen_beside_a_change_of_this_second(
    site: Site, checking: Checking, monkeypatch: pytest.MonkeyPatch
):
    at = to_microseconds(parse_datetime(MONDAY))
    monkeypatch.setattr(sitemaps, "system_clock", lambda: at)
    put_parts(site, {A: MONDAY, B: TUESDAY}, {C: TUESDAY})
    await checking.check()
    put_parts(site, {A: MONDAY}, {C: TUESDAY})
    assert await checking.check() == {B: "deleted"}


async def test_a_restart_invents_and_loses_nothing(site: Site, checking: Checking, tmp_path: Path):
    site.pages["/sitemap.xml"] = sitemap({A: MONDAY, B: MONDAY})
    await checking.check()
    site.pages["/sitemap.xml"] = sitemap({A: MONDAY, C: MONDAY})
    again = Checking(tmp_path, origin("sitemap", site.url("/sitemap.xml")))
    async with again:
        assert await again.check() == {C: "created", B: "deleted"}


async def test_a_restored_backup_sees_again_what_happened_since(
    site: Site, checking: Checking, tmp_path: Path
):
    site.pages["/sitemap.xml"] = sitemap({A: MONDAY, B: MONDAY})
    await checking.check()
    copy_state(tmp_path, tmp_path.with_name("backup"))
    site.pages["/sitemap.xml"] = sitemap({A: TUESDAY, C: MONDAY, D: MONDAY})
    await checking.check()
    site.pages["/sitemap.xml"] = sitemap({A: TUESDAY, C: MONDAY})
    restored = tmp_path.with_name("restored")
    copy_state(tmp_path.with_name("backup"), restored)
    async with Checking(restored, origin("sitemap", site.url("/sitemap.xml"))) as again:
        assert await again.check() == {A: "updated", C: "created", B: "deleted"}
        assert set(again.resources()) == {A, C}


async def test_an_index_of_compressed_files_is_read(site: Site, checking: Checking):
    site.pages["/sitemap.xml"] = index([site.url("/1.xml.gz"), site.url("/2.xml.gz")])
    site.pages["/1.xml.gz"] = zipped(sitemap({A: MONDAY, B: MONDAY}))
    site.pages["/2.xml.gz"] = zipped(sitemap({C: MONDAY}))
    assert await checking.check() == {A: "created", B: "created", C: "created"}
    site.pages["/2.xml.gz"] = zipped(sitemap({C: TUESDAY, D: MONDAY}))
    assert await checking.check() == {C: "updated", D: "created"}
    assert site.sent["/1.xml.gz"] == 1


Parts = tuple[dict[str, str | None], ...]
#: The files of an index at each check, and the changes that it then sees.
CHECKS: dict[str, list[tuple[Parts, dict[str, str] | None]]] = {
    "an entry that moves to another file": [
        (({A: MONDAY}, {B: MONDAY, C: MONDAY}), None),
        (({A: MONDAY, B: MONDAY}, {C: MONDAY}), {}),
        (({A: MONDAY}, {C: MONDAY}), {B: "deleted"}),
    ],
    "an entry in two files": [
        (({A: MONDAY, B: MONDAY}, {B: MONDAY, C: MONDAY}), None),
        (({A: MONDAY}, {B: MONDAY, C: MONDAY}), {}),
        (({A: MONDAY}, {C: MONDAY}), {B: "deleted"}),
    ],
    "different versions of an entry in two files": [
        (({A: MONDAY}, {A: TUESDAY}), None),
        (({A: MONDAY, B: MONDAY}, {A: TUESDAY}), {B: "created"}),
        (({A: MONDAY, B: MONDAY}, {C: MONDAY}), {C: "created"}),
        (({B: MONDAY}, {C: MONDAY}), {A: "deleted"}),
    ],
    "a file that leaves the index": [
        (({A: MONDAY}, {B: MONDAY}), None),
        (({A: MONDAY},), {B: "deleted"}),
    ],
}


@pytest.mark.parametrize("name", CHECKS)
async def test_a_resource_is_deleted_once_it_is_in_no_file(
    site: Site, checking: Checking, name: str
):
    for parts, changes in CHECKS[name]:
        put_parts(site, *parts)
        await checking.watch.check()
        found = checking.changes(once=changes is not None)
        assert changes is None or found == changes


async def test_an_entry_that_moves_while_the_files_are_read_is_not_deleted(
    site: Site, checking: Checking
):
    put_parts(site, {A: MONDAY}, {B: MONDAY, C: MONDAY})
    await checking.check()

    def move(path: str) -> None:
        if path == "/2.xml":
            put_parts(site, {A: MONDAY, B: MONDAY}, {C: MONDAY})

    site.before = move
    assert await checking.check() == {}
    assert set(checking.resources()) == {A, B, C}


async def test_no_deletion_is_seen_in_files_that_never_rest(site: Site, checking: Checking):
    put_parts(site, {A: MONDAY}, {B: MONDAY})
    await checking.check()
    versions = iter(range(1000))

    def change(path: str) -> None:
        site.pages["/2.xml"] = sitemap({f"{D}{next(versions)}": MONDAY})

    site.before = change
    with pytest.raises(Unavailable, match="changing during reading"):
        await checking.check()
    assert {A, B} <= set(checking.resources())


async def test_nothing_counts_as_deleted_while_a_file_cannot_be_read(
    site: Site, checking: Checking
):
    put_parts(site, {A: MONDAY, B: MONDAY}, {C: MONDAY})
    await checking.check()
    checked = checking.watch.last_check
    site.pages["/1.xml"] = sitemap({A: TUESDAY})
    site.statuses["/2.xml"] = (500, {})
    with pytest.raises(Unavailable):
        await checking.check()
    assert checking.changes() == {A: "updated"}
    assert checking.watch.last_check == checked
    del site.statuses["/2.xml"]
    assert await checking.check() == {B: "deleted"}


@pytest.mark.parametrize(
    "broken",
    [sitemap({A: MONDAY, B: MONDAY})[:-20], sitemap({}), b"<html/>", zipped(b"<urlset")[:-4]],
    ids=["truncated", "empty", "HTML", "damaged"],
)
async def test_a_sitemap_that_is_broken_deletes_nothing(
    site: Site, checking: Checking, broken: bytes
):
    site.pages["/sitemap.xml"] = sitemap({A: MONDAY, B: MONDAY})
    await checking.check()
    site.pages["/sitemap.xml"] = broken
    with pytest.raises((DocumentError, Unavailable)):
        await checking.check()
    assert checking.changes() == {}
    assert set(checking.resources()) == {A, B}


async def test_what_entries_without_lastmod_cannot_show_is_stated(site: Site, checking: Checking):
    site.pages["/sitemap.xml"] = sitemap({A: None, B: "2026-11-02", C: MONDAY})
    assert await checking.check() == {A: "created", B: "created", C: "created"}
    assert "Entries without a lastmod: 1 of 3." in checking.limits
    assert "Entries whose lastmod has no time: 1 of 3." in checking.limits
    site.pages["/sitemap.xml"] = sitemap({B: "2026-11-02", C: MONDAY})
    assert await checking.check() == {A: "deleted"}


async def test_the_sitemaps_of_a_site_are_found_by_its_robots_txt(site: Site, tmp_path: Path):
    site.pages["/robots.txt"] = f"Sitemap: {site.url('/s/1.xml')}\nSitemap: /s/2.xml".encode()
    site.pages["/s/1.xml"] = sitemap({A: MONDAY})
    site.pages["/s/2.xml"] = sitemap({B: MONDAY})
    async with Checking(tmp_path, origin("sitemap", site.url("/"))) as checking:
        assert await checking.check() == {A: "created", B: "created"}


async def test_a_sitemap_that_robots_txt_forbids_is_not_read(
    site: Site, checking: Checking, tmp_path: Path
):
    site.pages["/robots.txt"] = b"User-agent: *\nDisallow: /sitemap"
    site.pages["/sitemap.xml"] = sitemap({A: MONDAY})
    with pytest.raises(Unavailable, match=r"robots\.txt"):
        await checking.check()
    assert site.requests["/sitemap.xml"] == 0
    settings = origin("sitemap", site.url("/sitemap.xml"), robots=False)
    async with Checking(tmp_path / "other", settings) as allowed:
        assert await allowed.check() == {A: "created"}


async def test_nothing_is_read_while_robots_txt_cannot_be(site: Site, checking: Checking):
    site.statuses["/robots.txt"] = (503, {"Retry-After": "30"})
    site.pages["/sitemap.xml"] = sitemap({A: MONDAY})
    with pytest.raises(Unavailable) as caught:
        await checking.check()
    assert caught.value.retry_after == 30
    assert site.requests["/sitemap.xml"] == 0
    with pytest.raises(Unavailable, match="does not accept requests now"):
        await checking.check()
    assert site.requests["/robots.txt"] == 1


async def test_requests_say_who_makes_them(site: Site, checking: Checking):
    site.pages["/sitemap.xml"] = sitemap({A: MONDAY})
    await checking.check()
    agent = site.seen["/sitemap.xml"].headers["User-Agent"]
    assert agent.startswith("rsnotify-gateway/")
    assert "mailto:operator@gateway.example" in agent


async def test_uris_that_are_not_escaped_are(site: Site, checking: Checking):
    site.pages["/sitemap.xml"] = sitemap({"https://site.example/ä b?x=1&y": MONDAY})
    assert await checking.check() == {"https://site.example/%C3%A4%20b?x=1&y": "created"}
