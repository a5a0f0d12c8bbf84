"""The position up to which a broker has each topic, and each requested part of a topic."""

from __future__ import annotations

from rsnotify_hub.filtering.topic_selection import TopicSelection, selection_of_key
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.store.interface import NotOwner, SubscriptionStore

#: The key of the broker itself, which is no topic's.
_KNOWN = ""


class BrokerCursors:
    """The cursor of a broker in each log, by the key of the selection; kept in the store.

    `load` and `delete` raise `StorageError` if the store fails.

    A new broker begins with the newest fragment of each topic. Topics that begin later begin with
    their first fragment, and a part of a topic with its newest.
    """

    def __init__(self, store: SubscriptionStore, topics: TopicLogs, broker: str) -> None:
        self._store = store
        self._topics = topics
        self._broker = broker
        self._positions: dict[str, int] = {}

    async def load(self) -> None:
        """Load the cursors, or store those of a new broker."""
        self._positions = await self._store.bridged(self._broker)
        if _KNOWN not in self._positions:
            self._positions = {state.topic: state.position - 1 for state in self._topics.states()}
            self._positions[_KNOWN] = 0
            await self._store.bridge(self._broker, self._positions)

    def check_owner(self) -> None:
        """Raise `NotOwner` if another node may publish to the broker."""
        if not self._store.owns_bridge():
            raise NotOwner("this node does not run the bridge to the broker")

    def parts(self) -> list[TopicSelection]:
        selections = (selection_of_key(key) for key in self._positions if key)
        return [selection for selection in selections if selection.select]

    def position(self, selection: TopicSelection) -> int:
        return self._positions.get(selection.key, 0)

    def is_behind(self, selection: TopicSelection) -> bool:
        return self.position(selection) < self._topics.position(selection.topic)

    def move(self, selection: TopicSelection, position: int) -> None:
        key = selection.key
        self._positions[key] = position
        self._store.move_bridged(self._broker, key, position)

    async def delete(self, selection: TopicSelection) -> None:
        key = selection.key
        self._positions.pop(key, None)
        await self._store.unbridge(self._broker, key)
