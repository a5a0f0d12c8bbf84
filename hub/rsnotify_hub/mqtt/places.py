"""How far a broker has each topic."""

from __future__ import annotations

from rsnotify_hub.log.store import Store
from rsnotify_hub.log.topics import Topics

#: Stands for the broker itself: no topic is called so.
_KNOWN = ""


class Places:
    """The place of a broker in each log; kept in the store.

    A broker that was never seen begins with the newest of each topic. A topic that was not there
    then begins with its first.

    Args:
        store: Keeps them.
        broker: Which broker.
    """

    def __init__(self, store: Store, broker: str) -> None:
        self._store = store
        self._broker = broker
        self._positions: dict[str, int] = {}

    async def load(self, topics: Topics) -> None:
        """Take up what the store kept.

        Raises:
            StorageError: It cannot be read, or a new broker not be kept.
        """
        self._positions = await self._store.bridged(self._broker)
        if _KNOWN not in self._positions:
            self._positions = {state.topic: state.position - 1 for state in topics.states()}
            self._positions[_KNOWN] = 0
            await self._store.bridge(self._broker, self._positions)

    def of(self, topic: str) -> int:
        """Return the position up to which the broker has a topic."""
        return self._positions.get(topic, 0)

    def lacks(self, topics: Topics, topic: str) -> bool:
        """Tell whether a log goes on beyond what the broker has."""
        return self.of(topic) < topics.position(topic)

    def move(self, topic: str, position: int) -> None:
        """Note that the broker has more."""
        self._positions[topic] = position
        self._store.move_bridged(self._broker, topic, position)
