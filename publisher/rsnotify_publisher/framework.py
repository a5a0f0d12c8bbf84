"""The channel for notices of the Source's own documents (Framework Notification 1.0.1).

A notice says that a Resource List, a dump, a closed Change List or another document was written;
the content is in the document alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.datetimes import from_microseconds
from rsnotify.format.model import Document, Link, Resource
from rsnotify.format.vocabulary import Capability, Rel
from rsnotify.runtime.mqtt.topics import is_broker_url, parse_broker
from rsnotify_publisher.hubs import Hub
from rsnotify_publisher.journal import Journal, JournalState


class FrameworkChannel(Struct, frozen=True):
    """The channel, as documents name it.

    Args:
        topic: Its URI.
        hubs: The URLs of the hubs for Destinations.
    """

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
        """Return the document that a GET of the channel returns.

        Args:
            notices: The last notices.
            from_: The datetime (µs) of the notice before them.
            until: The datetime of the last notice.
            up: The URI of the Source Description.
        """
        return Document(
            Capability.FRAMEWORK_NOTIFICATION,
            tuple(notices),
            from_=from_microseconds(from_),
            until=from_microseconds(until),
            links=(Link(Rel.UP, up), Link(Rel.SELF, self.topic), *self._to_hubs),
        )


def framework_channel(topic: str, urls: Sequence[str]) -> FrameworkChannel | None:
    """Return the channel; None if no hub can have a second channel.

    Args:
        topic: Its URI.
        urls: Every URL of the hubs of the Source.
    """
    usable = filter(allows_second_channel, urls)
    hubs = tuple(parse_broker(url).url_for(topic) if is_broker_url(url) else url for url in usable)
    return FrameworkChannel(topic, hubs) if hubs else None


def allows_second_channel(url: str) -> bool:
    """Return whether a hub can have a second channel: not if a broker's URL names the topic."""
    return not is_broker_url(url) or parse_broker(url).topic_or_prefix.endswith("/")


def framework_hubs(hubs: Iterable[Hub]) -> tuple[Hub, ...]:
    """Return the hubs that are sent notices."""
    return tuple(hub for hub in hubs if allows_second_channel(hub.uri))


class FrameworkNotices:
    """The notices of a journal, as a feed follows them."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def state(self) -> JournalState:
        """Return where the notices end."""
        journal = self._journal
        return replace(
            journal.state(),
            last_change=journal.last_notice(),
            pruned=journal.first_notice(),
            sum=None,  # the digest is sent on the channel for changes
        )

    def last_change_at(self, instant: int) -> int:
        """Return the datetime of the last notice at or before an instant (µs)."""
        return self._journal.last_notice_at(instant)

    def changes(self, after: int, limit: int) -> list[Resource]:
        """Return the notices later than `after` (µs), oldest first, at most `limit`."""
        return self._journal.notices(after, limit)


def promise_notices(journal: Journal) -> JournalState:
    """Promise that no later notice gets a datetime up to now; within a transaction."""
    journal.promise()
    return FrameworkNotices(journal).state()
