"""What a gateway expects of each type of origin (`rsnotify.origins`)."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Iterable
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, RsnotifyError
from rsnotify.format.model import Resource
from rsnotify.runtime import extensions
from rsnotify.runtime.extensions import offered
from rsnotify_gateway import Gateway, MissingEntry, OriginBatch, OriginSettings, SeenEntry
from rsnotify_gateway.adapter import AnnouncingAdapter, OriginType
from rsnotify_gateway.adapters.event_streams import EventMapping
from rsnotify_hub.config.loading import load_configuration
from tests.gateway.checking import BASE, CONTACT, Reading, origin
from tests.gateway.event_server import MAPPING
from tests.gateway.origin_cases import CASES, A, B, Case, case_of
from tests.waiting import PATIENCE

#: Their changes do not end.
STREAMED = ("events", "postgresql")


@pytest.fixture(params=sorted(offered("origins")))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def case(kind: str, request: pytest.FixtureRequest) -> Case:
    return case_of(kind, request)


class Nothing:
    """The known entries of a set without resources."""

    async def select(self, accepts: object) -> list[tuple[str, frozenset[str]]]:
        return []


async def first_entries(
    folder: Path, settings: OriginSettings, cursor: str | None = None
) -> list[OriginBatch]:
    """Return the batches of a check, or of a stream up to the first entries."""
    batches = []
    async with Reading(folder, settings) as reading:
        changes = cast(
            Any, reading.watch.adapter.changes(cursor, Nothing())
        )  # async generators, so that they can be closed
        async with asyncio.timeout(PATIENCE), aclosing(changes):
            async for batch in changes:
                batches.append(batch)
                if settings.type in STREAMED and batch.entries:
                    break
    return batches


def test_each_installed_type_has_a_case(kind: str) -> None:
    assert kind in CASES
    loaded = offered("origins")[kind].load()
    assert isinstance(loaded, OriginType)


async def test_what_it_yields_can_be_recorded(kind: str, case: Case, tmp_path: Path) -> None:
    async with case() as (settings, _):
        batches = await first_entries(tmp_path, settings)
    entries = [entry for batch in batches for entry in batch.entries]
    assert entries
    for entry in entries:
        if isinstance(entry, SeenEntry):
            assert re.match(r"https?://", entry.resource.uri)
            assert isinstance(entry.state, str)
            assert not re.search(r"\s", entry.place)
        else:
            assert isinstance(entry, MissingEntry)
    cursors = [batch.cursor for batch in batches if batch.cursor is not None]
    assert cursors or kind in STREAMED
    assert all(isinstance(cursor, str) for cursor in cursors)


async def test_a_repeated_check_changes_nothing(kind: str, case: Case, tmp_path: Path) -> None:
    streamed = kind in STREAMED
    async with case() as (settings, _), Reading(tmp_path, settings) as reading:
        first = await (reading.until_there(A) if streamed else reading.check())
        assert first
        assert set(first.values()) == {"created"}
        if not streamed:
            assert await reading.check() == {}


async def test_its_terms_are_sentences(case: Case, tmp_path: Path) -> None:
    async with case() as (settings, _), Reading(tmp_path, settings) as reading:
        terms = reading.watch.adapter.terms()
    assert terms.kind
    for text in (terms.deletions, *terms.limits):
        assert re.fullmatch(r"[A-Z].*[.:]?", text, re.DOTALL), text


async def test_an_origin_that_does_not_answer_fails_the_check(
    kind: str, case: Case, tmp_path: Path
) -> None:
    away = "postgresql://owner@127.0.0.1:9/none" if kind == "postgresql" else "http://127.0.0.1:9/"
    async with case() as (settings, _):
        settings = replace(settings, url=away)
    if kind == "events":  # a stream is connected to again
        with pytest.raises((RsnotifyError, TimeoutError)):
            await asyncio.wait_for(first_entries(tmp_path, settings), 2)
        return
    with pytest.raises(RsnotifyError):
        await first_entries(tmp_path, settings)


def test_announcements_are_a_coroutine_if_there_are_any(kind: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {}
    if kind == "events":
        more["event"] = EventMapping(**MAPPING)
    url = "postgresql://127.0.0.1/x" if kind == "postgresql" else "http://origin.example/"
    gateway = Gateway(tmp_path, BASE, [origin(kind, url, **more)], contact=CONTACT)
    adapter = gateway.watches[0].adapter
    if isinstance(adapter, AnnouncingAdapter):
        assert inspect.iscoroutinefunction(adapter.await_announcements)


def test_a_type_that_is_not_installed_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Gateway(tmp_path, BASE, [origin("ftp", "http://origin.example/")], contact=CONTACT)
    assert str(caught.value).startswith('type = "ftp" is not installed; installed: events')


def test_a_hub_without_the_gateway_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extensions, "offered", lambda _group: {})
    tables = ({"name": "a", "type": "feed", "url": "http://origin.example/"},)
    with pytest.raises(ConfigurationError) as caught:
        load_configuration(None, follow=tables, follow_contact=CONTACT)
    assert str(caught.value).endswith(
        "follow: the gateway is not installed; install it with pip install 'rsnotify[gateway]'"
    )


# The datetimes of changes: never before a change happened, or its lastmod.


async def recorded(folder: Path, settings: OriginSettings, streamed: str) -> list[Resource]:
    """Check the origin, or read its stream until there is one resource; return the changes."""
    async with Reading(folder, settings) as reading:
        if settings.type in ("events", "postgresql"):
            await reading.until_there(streamed)
        else:
            await reading.check()
        with reading.journal() as journal:
            return journal.changes(0)


def datetimes(found: Iterable[Resource]) -> list[datetime]:
    return [one.datetime for one in found if one.datetime is not None]


async def test_no_change_is_dated_before_it_happened(case: Case, tmp_path: Path):
    async with case() as (settings, make_change):
        before = await recorded(tmp_path, settings, A)
        happened = datetime.now(UTC)
        pending = make_change(happened)
        if pending is not None:
            await pending
        found = await recorded(tmp_path, settings, B)
    new = found[len(before) :]
    assert new
    assert min(datetimes(new)) >= happened
    assert all(
        one.lastmod is None or one.lastmod <= at
        for one, at in zip(new, datetimes(new), strict=True)
    )
    assert datetimes(found) == sorted(set(datetimes(found)))
    assert max(datetimes(found)) <= datetime.now(UTC)
