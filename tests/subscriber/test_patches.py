"""Patches (core §14.4): where one is enough, and where the resource is fetched instead."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
from msgspec.structs import replace

from rsnotify.format.coverage import Change
from rsnotify.format.model import ChangeType, Link, Rel, Resource
from rsnotify_subscriber import Received, Subscriber
from rsnotify_subscriber.content.resolver import ContentResolver
from rsnotify_subscriber.fetching.fetcher import Content, Fetcher
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_subscriber.storage.resource_state import ResourceState
from tests.subscriber.destination import Destination
from tests.subscriber.source import SmallSource, body, path_of, sha256

MERGE_PATCH = "application/merge-patch+json"


def inline(patch: bytes, media_type: str = MERGE_PATCH, **fields: Any) -> Link:
    data = b64encode(patch).decode()
    href = f"data:{media_type};base64,{data}"
    return Link(Rel.PATCH, href, type=media_type, length=len(patch), **fields)


@pytest.fixture
async def held(source: SmallSource, destination: Destination) -> None:
    """Copy a resource, and clear the requests that the Source has recorded."""
    await hold(source, destination, BEFORE)


async def hold(source: SmallSource, destination: Destination, content: bytes) -> None:
    source.put("a", content)
    await destination.catch_up()
    source.gets.clear()


async def check_gets(
    source: SmallSource, destination: Destination, *, patch: int = 0, whole: int = 0, **options: Any
) -> None:
    """Catch up; check that the copy is right, and how often what was requested."""
    await destination.become_equal(**options)
    assert (source.gets["/data/patch"], source.gets[path_of("a")]) == (patch, whole)


BEFORE = json.dumps({"title": "one", "text": "x" * 200}).encode()
AFTER = json.dumps({"title": "two", "text": "x" * 200}).encode()
PATCH = b'{"title": "two"}'


@pytest.mark.parametrize(
    ("media_type", "before", "patch", "after"),
    [
        (MERGE_PATCH, BEFORE, PATCH, AFTER),
        (
            "application/json-patch+json",
            BEFORE,
            b'[{"op": "replace", "path": "/title", "value": "two"}]',
            AFTER,
        ),
        (
            "application/xml-patch+xml; charset=utf-8",
            b"<?xml version='1.0'?>\n<doc><a>one</a>" + b"<b/>" * 50 + b"</doc>\n",
            b'<p:patch xmlns:p="urn:ietf:rfc:7351">'
            b'<p:replace sel="doc/a/text()">two</p:replace></p:patch>',
            b"<?xml version='1.0'?>\n<doc><a>two</a>" + b"<b/>" * 50 + b"</doc>\n",
        ),
    ],
)
async def test_a_patch_is_fetched_instead_of_the_resource(
    source: SmallSource,
    destination: Destination,
    media_type: str,
    before: bytes,
    patch: bytes,
    after: bytes,
) -> None:
    await hold(source, destination, before)
    source.answers["/data/patch"] = body(patch)
    link = Link(Rel.PATCH, source.base + "patch", type=media_type, hash=sha256(patch))
    source.put("a", after, links=(link,))
    await check_gets(source, destination, patch=1)


async def test_patches_may_travel_inside_the_document_and_follow_one_another(
    source: SmallSource, destination: Destination, held: None
) -> None:
    for number in range(3):
        after = json.dumps({"title": number, "text": "x" * 200}).encode()
        source.put("a", after, links=(inline(b'{"title": %d}' % number),))
        await check_gets(source, destination)


async def test_a_patch_of_another_version_is_of_no_use(
    source: SmallSource, destination: Destination, held: None
) -> None:
    source.put("a", b'{"title": "two", "text": "y"}')
    source.put("a", b'{"title": "three", "text": "y"}', links=(inline(b'{"title": "three"}'),))
    await check_gets(source, destination, whole=1)


def at_source(**fields: Any) -> Link:
    """Return a link that `source.base` completes."""
    return Link(Rel.PATCH, "patch", type=MERGE_PATCH, **fields)


@pytest.mark.parametrize(
    ("link", "fields"),
    [
        (inline(b'{"title": "wrong"}'), {}),
        (inline(b"no JSON"), {}),
        (inline(PATCH, "application/x-unheard-of"), {}),
        (inline(PATCH, hash=sha256(b"another patch")), {}),
        (Link(Rel.PATCH, "http://127.0.0.1:9/patch", type=MERGE_PATCH), {}),
        (at_source(length=10_000), {}),
        (at_source(), {"hash": None}),
    ],
    ids=["wrong", "damaged", "unknown", "unverified", "away", "too large", "without a hash"],
)
async def test_where_a_patch_is_of_no_use_the_resource_is_fetched(
    source: SmallSource, destination: Destination, held: None, link: Link, fields: dict[str, Any]
) -> None:
    source.put("a", AFTER, links=(replace(link, href=urljoin(source.base, link.href)),))
    source.changes[-1] = replace(source.changes[-1], **fields)
    await check_gets(source, destination, whole=1)


async def test_what_was_changed_behind_our_back_is_not_patched(
    source: SmallSource, destination: Destination, held: None
) -> None:
    called = []

    def function(before: bytes, patch: bytes) -> bytes:
        called.append(before)
        return AFTER

    file = destination.folder / "a"
    modified = file.stat().st_mtime_ns
    file.write_bytes(BEFORE.replace(b"x", b"y"))
    os.utime(file, ns=(modified, modified))  # so that the comparison of files does not find it
    source.put("a", AFTER, links=(inline(PATCH, "application/x-new"),))
    await check_gets(source, destination, whole=1, patches={"application/x-new": function})
    assert called == []


async def test_nothing_is_patched_before_something_is_held(
    source: SmallSource, destination: Destination
) -> None:
    await destination.catch_up()
    source.put("a", AFTER, links=(inline(PATCH),))
    await destination.become_equal()


async def test_a_user_may_add_a_media_type(source: SmallSource, destination: Destination) -> None:
    await hold(source, destination, b"one")
    source.put("a", b"one two", links=(inline(b" two", "application/x-appended"),))
    patches = {"application/x-appended": lambda before, patch: before + patch}
    await check_gets(source, destination, patches=patches)


async def test_a_handler_that_holds_nothing_gets_the_whole_resource(
    source: SmallSource, tmp_path: Path
) -> None:
    contents: list[bytes] = []

    async def handle(change: Received) -> None:
        assert change.content is not None
        contents.append(change.content.read_bytes())

    source.put("a", BEFORE)
    await Subscriber(source.url, handle, state=tmp_path / "state").catch_up()
    source.put("a", AFTER, links=(inline(PATCH),))
    await Subscriber(source.url, handle, state=tmp_path / "state").catch_up()
    assert contents == [BEFORE, AFTER]


class Packed:
    """Packages with one member, and what is held."""

    def __init__(self, fetcher: Fetcher, path: str, member: bytes, held: Path) -> None:
        self._fetcher = fetcher
        self._member = (path, member)
        self._held = held

    async def member(self, package: str, entry: Resource) -> Content:
        path, member = self._member
        assert entry.path == path
        return self._fetcher.store(member, entry.hash)

    def held_content(self, uri: str) -> Path | None:
        return self._held


async def test_a_patch_may_be_in_the_package_of_a_change_dump(
    source: SmallSource, tmp_path: Path
) -> None:
    (tmp_path / "held").write_bytes(BEFORE)
    link = Link(Rel.PATCH, source.base + "patch", type=MERGE_PATCH, path="/changes/patch")
    entry = Resource(source.base + "a", hash=sha256(AFTER), links=(link,))
    change = Change(entry.uri, ChangeType.UPDATED, datetime.now(UTC), entry, "http://p/dump.zip")
    held = ResourceState(entry.uri, 0, "created", sha256(BEFORE), len(BEFORE))
    async with Sessions(source.url) as sessions:
        fetcher = Fetcher(sessions, tmp_path)
        packed = Packed(fetcher, "/changes/patch", PATCH, tmp_path / "held")
        bringer = ContentResolver(fetcher, packages=packed, holding=packed)
        content = await bringer.resolve(bringer.wanted(change), held)
    assert content is not None
    assert content.data == AFTER
    assert not source.gets
