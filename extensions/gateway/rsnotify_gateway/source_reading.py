"""Reads the lists of a Source: the changes from an instant on, and the whole set."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import timedelta

from msgspec.structs import replace

from rsnotify.errors import (
    DocumentError,
    InvalidDocument,
    NotFound,
    Unavailable,
    without_credentials,
)
from rsnotify.format.coverage import EARLIEST, Change, Coverage
from rsnotify.format.datetimes import Instant, format_datetime
from rsnotify.format.frontier import Frontier
from rsnotify.format.model import Resource
from rsnotify.format.offer import Offer
from rsnotify.format.vocabulary import ChangeType
from rsnotify.sync.actions import Fetch
from rsnotify.sync.baseline import Baseline
from rsnotify.sync.pull import Pull, PullStep
from rsnotify_gateway.adapter import MissingEntry, SeenEntry, origin_uri
from rsnotify_gateway.reconciling import usable_uri
from rsnotify_subscriber.fetching.credentials import without_login
from rsnotify_subscriber.fetching.fetcher import Fetcher

#: A list whose `until` is this close to the time of the response may yet get earlier changes.
_SETTLED = timedelta(minutes=1)


class ChangeReading:
    """One pull of the lists of changes, from a frontier on.

    Attributes:
        frontier: The instant up to which all changes were read.
        gap_ends: Where the lists begin, if none of them joins the frontier.
        ends: The last instant that a list said anything about.
    """

    def __init__(self, fetcher: Fetcher, offer: Offer, frontier: Frontier) -> None:
        self._fetcher = fetcher
        self._offer = offer
        self._began_at = frontier.instant
        self.frontier = frontier
        self.gap_ends: Instant | None = None
        self.ends: Instant | None = None

    @property
    def has_gone_back(self) -> bool:
        """Whether all lists end before the frontier, as after the Source was restored."""
        return self.ends is not None and self.ends < self._began_at

    async def read(self) -> AsyncIterator[tuple[str, list[Change]]]:
        """Yield the new changes of each list, with its URI.

        Raises:
            RsnotifyError: A list cannot be read, and no other can be read in its place.
        """
        pull = Pull(self._offer)
        while True:
            uri = pull.current.uri
            step = await self._step(pull)
            if step.coverage is not None:
                is_last = step.fetch is None
                coverage = _without_logins(step.coverage)
                coverage = _without_present(coverage) if is_last else coverage
                self.ends = max(self.ends or EARLIEST, coverage.until or EARLIEST)
                fresh = self.frontier.learn(coverage)
                # Datetimes that contradict each other do not prove which entries are old.
                changes = list(coverage.changes) if coverage.contradictory else fresh
                if changes:
                    yield uri, changes
            if step.failure is not None:
                raise step.failure
            if step.fetch is None:
                self.gap_ends = step.gap_ends
                return

    async def _step(self, pull: Pull) -> PullStep:
        uri = pull.current.uri
        try:
            document, sent = await self._fetcher.sent_document(uri)
            return pull.read(document, self.frontier, sent)
        except NotFound as error:
            return pull.abandon(error, self.frontier)
        except DocumentError as error:
            return pull.abandon(error if error.source else error.at(uri), self.frontier)


def _without_logins(coverage: Coverage) -> Coverage:
    """Return a list without logins in its URIs: those of its last changes are stored."""
    if not any("@" in change.uri for change in coverage.changes):
        return coverage
    changes = [replace(one, uri=without_login(one.uri)) for one in coverage.changes]
    return replace(coverage, changes=type(coverage.changes)(changes))


def _without_present(coverage: Coverage) -> Coverage:
    """Return the last list without its `until` if that is about the present.

    Some Sources set it to the present time with each response, and write changes with a delay.
    """
    until, sent = coverage.until, coverage.sent
    if not coverage.closed or until is None or sent is None or until < sent - _SETTLED:
        return coverage
    latest = max((change.at for change in coverage.changes), default=coverage.from_)
    return replace(coverage, until=latest, closed=False)


class ListReading:
    """One reading of the Resource List, and of the changes since.

    Attributes:
        at: The instant that the list describes.
        is_outdated: Whether the list has nothing that is not known, and no changes lead on from it.
        documents: The URI and a hash of each document that was read.
    """

    def __init__(self, fetcher: Fetcher, offer: Offer) -> None:
        self._fetcher = fetcher
        self._offer = offer
        self.is_outdated = False
        self._begin()

    def _begin(self) -> None:
        self.at: Instant | None = None
        self._listed: set[str] = set()
        self.documents: list[tuple[str, int]] = []
        self._changed: set[str] = set()

    def lacks(self, uri: str, _: object = None) -> bool:
        """Return whether it does not list a resource that did not change later."""
        return uri not in self._listed

    async def entries(self, through: Instant | None) -> AsyncIterator[tuple[SeenEntry, ...]]:
        """Yield the entries that did not change after `at`.

        `through` is the instant up to which all changes are known.

        Raises:
            RsnotifyError: The list cannot be read to its end.
        """
        baseline = Baseline(self._offer, EARLIEST)
        following: Fetch | None = baseline.root
        while following is not None:
            if following is baseline.root:
                self._begin()
            try:
                document, sent = await self._fetcher.sent_document(following.uri)
                found = baseline.read(document, sent)
            except (NotFound, DocumentError) as error:
                baseline.skip(error)
            else:
                self.documents.append((following.uri, hash(document)))
                if self.at is None or baseline.at < self.at:
                    self.at = baseline.at
                    await self._read_changes(baseline.at, through)
                    if self.is_outdated:
                        return
                if found is not None:
                    yield self._seen(following.uri, found.resources)
            following = baseline.next()
        if not baseline.complete:
            reason = "its Resource List is not complete"
            raise baseline.error or Unavailable(baseline.root.uri, reason)
        self.at = baseline.at  # an index may state none

    async def _read_changes(self, at: Instant, through: Instant | None) -> None:
        """Find out what changed after the instant of the list."""
        frontier = Frontier.at(EARLIEST)
        frontier.advance(at, over=False)
        reading = ChangeReading(self._fetcher, self._offer, frontier)
        async for uri, changes in reading.read():
            self._changed.update(_usable(uri, change.uri) for change in changes)
        has_gap = reading.gap_ends is not None
        self.is_outdated = has_gap and through is not None and at <= through
        self._listed |= self._changed

    def _seen(self, uri: str, resources: Iterable[Resource]) -> tuple[SeenEntry, ...]:
        found = {}
        for resource in resources:
            usable = _usable(uri, resource.uri)
            if usable not in self._changed:
                found[usable] = _entry(usable, resource)
        self._listed.update(found)
        return tuple(found.values())


def latest_entries(uri: str, changes: list[Change]) -> tuple[SeenEntry | MissingEntry, ...]:
    """Return the state of each resource after the changes of a list."""
    found: dict[str, SeenEntry | MissingEntry] = {}
    for change in sorted(changes, key=lambda change: change.at):
        usable = _usable(uri, change.uri)
        found.pop(usable, None)
        is_deleted = change.change is ChangeType.DELETED
        found[usable] = MissingEntry(usable) if is_deleted else _entry(usable, change.resource)
    return tuple(found.values())


def _entry(uri: str, resource: Resource) -> SeenEntry:
    lastmod = resource.lastmod or resource.datetime
    stated = Resource(
        uri, lastmod=lastmod, hash=resource.hash, length=resource.length, type=resource.type
    )
    at = "" if lastmod is None else format_datetime(lastmod)
    length = "" if resource.length is None else resource.length
    state = " ".join(sorted((resource.hash or "").split())) or f"{at} {length}".strip()
    return SeenEntry(stated, state)


def _usable(uri: str, reference: str) -> str:
    usable = usable_uri(origin_uri(uri, reference))
    if usable is None:
        raise InvalidDocument(f"{without_credentials(reference)[:200]!r} is no URI", source=uri)
    return usable
