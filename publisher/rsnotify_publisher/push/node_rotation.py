"""Which node of a hub is fed next, and after which wait; without I/O."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from rsnotify.sync.alternatives import Alternatives
from rsnotify.sync.retry import LONGEST_RETRY_AFTER, Retry


class NodeRotation:
    """Moves on to the next node when one fails; waits once all have failed.

    Attributes:
        current: The node to feed now.
        rounds: How many times in a row all nodes have failed.
    """

    def __init__(self, nodes: Sequence[str], retry: Retry, random: Random) -> None:
        self.current = nodes[0]
        self.rounds = 0
        self._nodes = nodes
        self._retry = retry
        self._random = random
        self._order: Alternatives[str] = Alternatives()
        self._tried: set[str] = set()
        #: When each node may be tried again, as it requested.
        self._not_before = dict.fromkeys(nodes, float("-inf"))

    def failed(
        self,
        now: float,
        *,
        progressed: bool,
        retry_after: float = 0.0,
        everywhere: bool = False,
    ) -> float:
        """Note that the current node failed, and choose the next one.

        Args:
            now: The time, in seconds.
            progressed: Whether it had accepted something since it was chosen.
            retry_after: Seconds that it requested to wait.
            everywhere: Whether each node would answer the same.

        Returns:
            The seconds to wait before `current` is tried.
        """
        if progressed:
            self.rounds = 0
            self._tried.clear()
        self._tried.add(self.current)
        self._order.failed(self.current)
        for node in self._nodes if everywhere else [self.current]:
            self._not_before[node] = now + min(retry_after, LONGEST_RETRY_AFTER)
        order = self._order.order(self._nodes)
        if not everywhere:
            for node in order:
                if node not in self._tried and self._not_before[node] <= now:
                    self.current = node
                    return 0.0
        self._tried.clear()
        self.rounds += 1
        due = now + self._retry.delay(self.rounds, self._random)
        self.current = min(order, key=lambda node: max(due, self._not_before[node]))
        return max(due, self._not_before[self.current]) - now
