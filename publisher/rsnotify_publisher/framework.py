"""The channel for notices of the Source's own documents (Framework Notification 1.0.1).

A notice says that a Resource List, a dump, a closed Change List or another document was written;
the content is in the document alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.datetimes import from_microseconds
from rsnotify.format.model import Document, Link, Resource
from rsnotify.format.vocabulary import Capability, Rel
from rsnotify_publisher.hubs import broker_of, url_for_topic
from rsnotify_publisher.journal import Journal, JournalState, RecordedChanges, consecutive


class FrameworkChannel(Struct, frozen=True):
    """The channel, as documents name it: its URI, and the URLs of the hubs for Destinations."""

    topic: str
    hubs: tuple[str, ...]

    @property
    def links(self) -> tuple[Link, ...]:
        """Links that name the channel in a Source Description; no client takes them for a set."""
        return (Link(Rel.MONITOR_GROUP, self.topic), *self._to_hubs)

    @property
    def entry(self) -> Resource:
        """The entry that names the channel as in Framework Notification §5."""
        capability = Capability.FRAMEWORK_NOTIFICATION
        return Resource(self.topic, capability=capability, links=self._to_hubs)

    @property
    def _to_hubs(self) -> tuple[Link, ...]:
        return tuple(Link(Rel.HUB, hub) for hub in self.hubs)

    def content(self, notices: Iterable[Resource], from_: int, until: int, up: str) -> Document:
        """Return what a GET of the channel returns: the notices of an interval (µs)."""
        return Document(
            Capability.FRAMEWORK_NOTIFICATION,
            tuple(notices),
            from_=from_microseconds(from_),
            until=from_microseconds(until),
            links=(Link(Rel.UP, up), Link(Rel.SELF, self.topic), *self._to_hubs),
        )


def framework_channel(topic: str, urls: Sequence[str]) -> FrameworkChannel | None:
    """Return the channel; None if none of the URLs of hubs allows a second channel."""
    hubs = tuple(url_for_topic(url, topic) for url in urls if allows_second_channel(url))
    return FrameworkChannel(topic, hubs) if hubs else None


def allows_second_channel(url: str) -> bool:
    """Return whether a hub can have a second channel: not if a broker's URL names the topic."""
    broker = broker_of(url)
    return broker is None or broker.has_prefix


class FrameworkNotices(Struct, frozen=True):
    """The notices of a journal, as a feed follows them: by the names that changes have."""

    journal: Journal

    def state(self) -> JournalState:
        return replace(
            self.journal.state(),
            last_change=self.journal.last_notice(),
            pruned=self.journal.first_notice(),
            sum=None,  # the digest is sent on the channel for changes
        )

    def read(self, after: int, limit: int) -> RecordedChanges | None:
        return consecutive(self.journal.last_notice_at(after), self.journal.notices(after, limit))

    async def contents(self, _: RecordedChanges) -> Mapping[str, bytes | None]:
        return {}


def promise_notices(journal: Journal) -> JournalState:
    """Promise that no later notice gets a datetime up to now; within a transaction."""
    journal.promise()
    return FrameworkNotices(journal).state()
