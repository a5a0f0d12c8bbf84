"""Those who asked for a part of a topic only, in groups that asked for the same.

A group costs the hub for as long as somebody is in it, so that a topic has not too many. No client
can take them all: one gets another only while more are free than it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rsnotify_hub.access.clients import client_network, is_loopback
from rsnotify_hub.filtering.filter_cache import FilterCache
from rsnotify_hub.filtering.topic_selection import TopicSelection
from rsnotify_hub.log.store import LogEntry
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.websocket.connection import Connection
from rsnotify_hub.websocket.group import Group
from rsnotify_hub.websocket.subscribers import Subscriber, WebSocketChannel


class Selections:
    """The groups of every topic (a `Channel`).

    Args:
        live: Sends.
        sieve: Cuts.
        most: How many groups a topic may have.
    """

    def __init__(self, live: WebSocketChannel, sieve: FilterCache, most: int) -> None:
        self._live = live
        self._sieve = sieve
        self._most = most
        self._groups: dict[str, dict[TopicSelection, Group]] = {}

    def deliver(self, topic: str, entries: Sequence[LogEntry]) -> None:
        """Begin to send what was appended (`Channel.deliver`)."""
        for group in self._groups.get(topic, {}).values():
            group.wake()

    def subscribers(self, topic: str) -> int:
        """Return none: the channel that sends counts them (`Channel.subscribers`)."""
        return 0

    def enter(self, stream: TopicSelection, topics: TopicLogs, address: str) -> Group | None:
        """Join a group.

        Args:
            stream: Which part of which topic.
            topics: The logs.
            address: Where one is.

        Returns:
            None where the topic, or the client there, has too many; then one gets all of it.
        """
        groups = self._groups.get(stream.topic, {})
        group = groups.get(stream)
        if group is None:
            if not self._has_room(groups.values(), address):
                return None
            group = Group(stream, topics, self._sieve, self._live)
            self._groups.setdefault(stream.topic, {})[stream] = group
        group.enter(client_network(address))
        return group

    def _has_room(self, groups: Iterable[Group], address: str) -> bool:
        holders = [group.holder for group in groups]
        # This machine's own may be a proxy, which brings many.
        held = 0 if is_loopback(address) else holders.count(client_network(address))
        return held < self._most - len(holders)

    def leave(self, group: Group, address: str) -> None:
        """Leave a group."""
        group.leave(client_network(address))
        if group.holder is not None:
            return
        group.close()
        groups = self._groups[group.stream.topic]
        del groups[group.stream]
        if not groups:
            del self._groups[group.stream.topic]

    def close(self) -> None:
        """Send nothing more."""
        for groups in self._groups.values():
            for group in groups.values():
                group.close()


class Selective(Subscriber):
    """One of a group (a `Listener`).

    Args:
        connection: The connection.
        group: The group, which it has entered.
        address: Where it is.
        selections: All groups.
        channel: All subscribers.
        refuse: Called when it sends more than its first frame.
    """

    __slots__ = ("_address", "_group", "_selections")

    def __init__(
        self,
        connection: Connection,
        group: Group,
        address: str,
        selections: Selections,
        channel: WebSocketChannel,
        refuse: Callable[[Connection], None],
    ) -> None:
        super().__init__(connection, group.stream.topic, channel, refuse, group.stream.key)
        self._group = group
        self._address = address
        self._selections = selections

    def lost(self) -> None:
        """Leave."""
        super().lost()
        self._selections.leave(self._group, self._address)
