"""A history, generated or real, and the same set as an origin of each kind."""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from random import Random

import psycopg
import pytest
from msgspec import Struct

from tests.gateway.event_server import EventServer, change
from tests.gateway.generators import Activities, EventStream, PullOnlySource, at
from tests.gateway.origin_server import SITE, Site, index, sitemap
from tests.gateway.repositories import Items

#: The variable that names a file with the history of SWEET, one change a line.
HISTORY = "RSNOTIFY_HISTORY"
PARTS = 3
_PAGE = 10


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
    if HISTORY not in os.environ:
        pytest.skip(f"{HISTORY} names no file")
    with lzma.open(os.environ[HISTORY], "rt", encoding="utf-8") as lines:
        for version, line in enumerate(islice(lines, count), 1):
            change = json.loads(line)
            name = "".join(one if one.isalnum() else "-" for one in change["path"])
            yield Step(name, None if change["change"] == "deleted" else version)


class Published:
    """Applies steps to the pages of a server and the items of a repository.

    Attributes:
        dated: The origins that list each change with its datetime.
    """

    def __init__(self, site: Site, items: Items) -> None:
        self.site = site
        self._items = items
        self.dated = (
            PullOnlySource(site, per_list=10, lists_every=35),
            Activities(site),
            EventStream(site),
        )
        self.versions: dict[str, int] = {}
        self._latest = 0
        #: Every version that was ever there, oldest first.
        self.history: list[tuple[str, int]] = []
        site.pages["/sitemap.xml"] = index(site.url(f"/{part}.xml") for part in range(PARTS))
        self._write()

    def apply(self, *steps: Step) -> None:
        for step in steps:
            if step.version is not None or step.name in self.versions:
                self._apply(step)
        self._write()

    def _apply(self, step: Step) -> None:
        if step.version is None:
            del self.versions[step.name]
            self._items.delete(step.name)
            for origin in self.dated:
                origin.delete(step.name, at(self._latest + 0.5))
        else:
            self._latest = step.version
            self.versions[step.name] = step.version
            self.history.append((step.name, step.version))
            self._items.put(step.name, f"version {step.version}")
            for origin in self.dated:
                origin.put(step.name, at(step.version))

    def lastmod(self, name: str) -> datetime:
        return at(self.versions[name])

    def _write(self) -> None:
        parts: list[dict[str, str | None]] = [{} for _ in range(PARTS)]
        # A resource moves to another file with some of its versions.
        for name, version in sorted(self.versions.items()):
            parts[version % PARTS][SITE + name] = self.lastmod(name).isoformat()
        for number, part in enumerate(parts):
            self.site.pages[f"/{number}.xml"] = sitemap(part)
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
            self.site.pages[f"/feed/{number}"] = feed.encode()


class Pushed:
    """Applies steps to a stream of events and to a table with an outbox."""

    def __init__(self, events: EventServer, database: str) -> None:
        self._events = events
        self._connection = psycopg.connect(database, autocommit=True)
        self.versions: dict[str, int] = {}

    def connect(self, database: str) -> None:
        self._connection.close()
        self._connection = psycopg.connect(database, autocommit=True)

    def close(self) -> None:
        self._connection.close()

    async def apply(self, step: Step, number: int) -> None:
        if step.version is None:
            del self.versions[step.name]
            query = "DELETE FROM items WHERE id = %s AND %s::integer IS NULL"
        else:
            self.versions[step.name] = number
            query = "INSERT INTO items AS old VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET "
            query += "version = EXCLUDED.version"
        self._connection.execute(query, (step.name, step.version))
        kind = "delete" if step.version is None else "edit"
        await self._events.send(change(SITE + step.name, at(number), kind))

    def lastmod(self, name: str) -> datetime:
        return at(self.versions[name])
