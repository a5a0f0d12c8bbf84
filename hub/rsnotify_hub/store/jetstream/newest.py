"""The topics in the order in which something was last received for them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort


class NewestTopics:
    """Topics, of which a page costs the same however many there are.

    They are in a list, the newest at its end, where nearly all changes are.
    """

    def __init__(self) -> None:
        self._topics: list[tuple[int, str]] = []

    def add(self, topic: str, received: int) -> None:
        """Add a topic, which received something at an instant."""
        insort(self._topics, (received, topic))

    def remove(self, topic: str, received: int) -> None:
        """Remove a topic that was added with an instant."""
        del self._topics[bisect_left(self._topics, (received, topic))]

    def page(self, after: tuple[int, str] | None, limit: int) -> list[str]:
        """Return at most `limit` topics, the newest first, and of one instant in their order.

        Args:
            after: The instant and the topic after which the page begins.
            limit: The most topics.
        """
        topics = self._topics
        end = len(topics)
        found: list[tuple[int, str]] = []
        if after is not None:
            first = bisect_right(topics, after)
            found = topics[first : min(first + limit, self._begin(after[0] + 1))]
            end = self._begin(after[0])
        while end and len(found) < limit:
            begin = self._begin(topics[end - 1][0])
            found += topics[begin : min(begin + limit - len(found), end)]
            end = begin
        return [topic for _, topic in found]

    def _begin(self, received: int) -> int:
        """Return where the topics of an instant begin."""
        return bisect_left(self._topics, (received, ""))
