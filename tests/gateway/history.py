"""A history, generated or real, and the same set as an origin of each kind."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from random import Random

import psycopg
import pytest
from msgspec import Struct

from tests.gateway.event_server import EventServer, change
from tests.gateway.origin_server import OriginServer, index, sitemap
from tests.gateway.repositories import Items

SWEET = Path("/work/shared/data/sweet-history.jsonl.xz")
SITE = "https://site.example/"
PARTS = 3
_PAGE = 10
_BEGIN = datetime(2026, 11, 1, tzinfo=UTC)


class Step(Struct, frozen=True):
    """A change of a resource; without a version it is deleted."""

    name: str
    version: int | None


def made_up(count: int, seed: int, first: int = 1) -> Iterator[Step]:
    random = Random(seed)
    present: set[str] = set()
    for version in range(first, first + count):
        name = f"r{random.randrange(40)}"
        if name in present and random.random() < 0.3:
            present.remove(name)
            yield Step(name, None)
        else:
            present.add(name)
            yield Step(name, version)


def sweet(count: int) -> Iterator[Step]:
    """Yield the first changes of the SWEET history; their names are made of their paths."""
    if not SWEET.exists():
        pytest.skip(f"{SWEET} is not there")
    with lzma.open(SWEET, "rt", encoding="utf-8") as lines:
        for version, line in enumerate(islice(lines, count), 1):
            change = json.loads(line)
            name = "".join(one if one.isalnum() else "-" for one in change["path"])
            yield Step(name, None if change["change"] == "deleted" else version)


class Published:
    """Applies steps to the pages of a server and the items of a repository."""

    def __init__(self, site: OriginServer, items: Items) -> None:
        self._site = site
        self._items = items
        self.versions: dict[str, int] = {}
        #: Every version that was ever there, oldest first.
        self.history: list[tuple[str, int]] = []
        site.pages["/sitemap.xml"] = index(site.url(f"/{part}.xml") for part in range(PARTS))
        self._write()

    def apply(self, step: Step) -> None:
        if step.version is None:
            del self.versions[step.name]
            self._items.delete(step.name)
        else:
            self.versions[step.name] = step.version
            self.history.append((step.name, step.version))
            self._items.put(step.name, f"version {step.version}")
        self._write()

    def lastmod(self, name: str) -> datetime:
        """Return a time that differs for each version."""
        return _BEGIN + timedelta(seconds=self.versions[name])

    def _write(self) -> None:
        parts: list[dict[str, str | None]] = [{} for _ in range(PARTS)]
        # A resource moves to another file with some of its versions.
        for name, version in sorted(self.versions.items()):
            parts[version % PARTS][SITE + name] = self.lastmod(name).isoformat()
        for number, part in enumerate(parts):
            self._site.pages[f"/{number}.xml"] = sitemap(part)
        self._write_feed()

    def _write_feed(self) -> None:
        newest = sorted(self.versions, key=lambda name: -self.versions[name])
        pages = [newest[start:][:_PAGE] for start in range(0, len(newest), _PAGE)] or [[]]
        for number, names in enumerate(pages):
            link = (
                f'<link rel="next" href="/feed/{number + 1}"/>' if number + 1 < len(pages) else ""
            )
            entries = "".join(
                f"<entry><title>{self.versions[name]}</title><link href='{SITE}{name}'/>"
                f"<updated>{self.lastmod(name).isoformat()}</updated></entry>"
                for name in names
            )
            feed = f'<feed xmlns="http://www.w3.org/2005/Atom">{link}{entries}</feed>'
            self._site.pages[f"/feed/{number}"] = feed.encode()


class Pushed:
    """Applies steps to a stream of events and to a table with an outbox."""

    def __init__(self, events: EventServer, database: str) -> None:
        self._events = events
        self._connection = psycopg.connect(database, autocommit=True)
        self.versions: dict[str, int] = {}

    def connect(self, database: str) -> None:
        """Connect again after the database was down."""
        self._connection.close()
        self._connection = psycopg.connect(database, autocommit=True)

    def close(self) -> None:
        self._connection.close()

    async def apply(self, step: Step, number: int) -> None:
        """Apply a step, which is the n-th."""
        at = _BEGIN + timedelta(seconds=number)
        if step.version is None:
            del self.versions[step.name]
            query = "DELETE FROM items WHERE id = %s AND %s::integer IS NULL"
        else:
            self.versions[step.name] = number
            query = "INSERT INTO items AS old VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET "
            query += "version = EXCLUDED.version"
        self._connection.execute(query, (step.name, step.version))
        kind = "delete" if step.version is None else "edit"
        await self._events.send(change(SITE + step.name, at, kind))

    def lastmod(self, name: str) -> datetime:
        return _BEGIN + timedelta(seconds=self.versions[name])
