"""How far a broker has each topic, and each part of one that was asked for."""

from __future__ import annotations

from rsnotify_hub.filtering.topic_selection import TopicSelection, selection_of_key
from rsnotify_hub.log.store import Store
from rsnotify_hub.log.topic_logs import TopicLogs

#: Stands for the broker itself: no topic is called so.
_KNOWN = ""


class BrokerCursors:
    """The place of a broker in each log, by the key of the stream; kept in the store.

    A broker that was never seen begins with the newest of each topic. A topic that was not there
    then begins with its first, and a part of a topic with the newest.

    Args:
        store: Keeps them.
        broker: Which broker.
    """

    def __init__(self, store: Store, broker: str) -> None:
        self._store = store
        self._broker = broker
        self._positions: dict[str, int] = {}

    async def load(self, topics: TopicLogs) -> None:
        """Take up what the store kept.

        Raises:
            StorageError: It cannot be read, or a new broker not be kept.
        """
        self._positions = await self._store.bridged(self._broker)
        if _KNOWN not in self._positions:
            self._positions = {state.topic: state.position - 1 for state in topics.states()}
            self._positions[_KNOWN] = 0
            await self._store.bridge(self._broker, self._positions)

    def parts(self) -> list[TopicSelection]:
        """Return the parts of topics that the broker has a place in."""
        streams = (selection_of_key(key) for key in self._positions if key)
        return [stream for stream in streams if stream.select]

    def of(self, stream: TopicSelection) -> int:
        """Return the position up to which the broker has a stream."""
        return self._positions.get(stream.key, 0)

    def lacks(self, topics: TopicLogs, stream: TopicSelection) -> bool:
        """Tell whether a log goes on beyond what the broker has."""
        return self.of(stream) < topics.position(stream.topic)

    def move(self, stream: TopicSelection, position: int) -> None:
        """Note that the broker has more."""
        key = stream.key
        self._positions[key] = position
        self._store.move_bridged(self._broker, key, position)

    async def end(self, stream: TopicSelection) -> None:
        """Forget the place of a stream.

        Raises:
            StorageError: It could not be forgotten for good.
        """
        key = stream.key
        self._positions.pop(key, None)
        await self._store.unbridge(self._broker, key)
