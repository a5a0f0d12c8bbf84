"""The channel on which a Source tells of its own documents (Framework Notification 1.0.1).

What is told is that a Resource List, a dump, a closed Change List or another document is there
anew; what it says stands in the document alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from rsnotify.format.datetimes import from_microseconds
from rsnotify.format.model import Document, Link, Resource
from rsnotify.format.vocabulary import Capability, Rel
from rsnotify.runtime.mqtt.topics import is_broker_url, parse_broker
from rsnotify_publisher.journal import Journal, State
from rsnotify_publisher.push.hubs import Hub


class FrameworkChannel(Struct, frozen=True):
    """The channel, as documents name it.

    Args:
        topic: Its URI.
        hubs: The ways in for Destinations.
    """

    topic: str
    hubs: tuple[str, ...]

    @property
    def links(self) -> tuple[Link, ...]:
        """What names it in a Source Description, where no client takes it for a set."""
        return (Link(Rel.MONITOR_GROUP, self.topic), *self._to_hubs)

    @property
    def entry(self) -> Resource:
        """What names it as the specification has it (Framework Notification §5)."""
        capability = Capability.FRAMEWORK_NOTIFICATION
        return Resource(self.topic, capability=capability, links=self._to_hubs)

    @property
    def _to_hubs(self) -> tuple[Link, ...]:
        return tuple(Link(Rel.HUB, hub) for hub in self.hubs)

    def content(self, notices: Iterable[Resource], from_: int, until: int, up: str) -> Document:
        """Say what a GET of the channel is answered with.

        Args:
            notices: The last of them.
            from_: The datetime (µs) of the notice before them.
            until: That of the last.
            up: The URI of the Source Description.
        """
        return Document(
            Capability.FRAMEWORK_NOTIFICATION,
            tuple(notices),
            from_=from_microseconds(from_),
            until=from_microseconds(until),
            links=(Link(Rel.UP, up), Link(Rel.SELF, self.topic), *self._to_hubs),
        )


def framework_channel(topic: str, ways: Sequence[str]) -> FrameworkChannel | None:
    """Make the channel.

    Args:
        topic: Its URI.
        ways: The ways in to the hubs of the Source.

    Returns:
        None where no hub can have a second channel.
    """
    usable = filter(has_room, ways)
    hubs = tuple(parse_broker(way).url_for(topic) if is_broker_url(way) else way for way in usable)
    return FrameworkChannel(topic, hubs) if hubs else None


def has_room(way: str) -> bool:
    """Whether a hub can have a second channel: not where a broker's URL names the only topic."""
    return not is_broker_url(way) or parse_broker(way).topic_or_prefix.endswith("/")


def listeners(hubs: Iterable[Hub]) -> tuple[Hub, ...]:
    """Return the hubs that are told of documents."""
    return tuple(hub for hub in hubs if has_room(hub.uri))


class Notices:
    """The notices of a journal, as a feed follows them.

    Args:
        journal: Where they are.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def state(self) -> State:
        """Tell where the notices stand."""
        journal = self._journal
        return replace(
            journal.state(),
            last_change=journal.last_notice(),
            pruned=journal.first_notice(),
            sum=None,  # that is told where the changes are
        )

    def last_change_at(self, instant: int) -> int:
        """Return the datetime of the last notice at or before an instant (µs)."""
        return self._journal.last_notice_at(instant)

    def changes(self, after: int, limit: int) -> list[Resource]:
        """Read the notices later than `after` (µs), oldest first, at most `limit`."""
        return self._journal.notices(after, limit)


def promise(journal: Journal) -> State:
    """Promise that no later notice gets a datetime up to now; within a transaction."""
    journal.promise()
    return Notices(journal).state()
