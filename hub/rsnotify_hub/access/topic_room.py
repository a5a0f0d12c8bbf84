"""Room for topics: each has a log of its own, so whoever may publish may not begin any number."""

from __future__ import annotations

from collections.abc import Sequence

from rsnotify_hub.access.topic_prefixes import granted_ranges
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.refusals import Code, Refusal


class TopicQuota:
    """How many topics there may be of those that one token grants.

    Args:
        topics: The logs.
        most: How many.
    """

    def __init__(self, topics: TopicLogs, most: int) -> None:
        self._topics = topics
        self._most = most

    def check(self, topic: str, prefixes: Sequence[str]) -> None:
        """Check that a topic is there already, or may begin; call it just before it does.

        Args:
            topic: The topic.
            prefixes: What is granted to whoever publishes.

        Raises:
            Refusal: It would be too many.
        """
        if self._topics.knows(topic):
            return
        if self._topics.count(granted_ranges(prefixes)) >= self._most:
            raise Refusal(
                Code.TOO_MANY,
                f"this hub keeps {self._most} topics of those that the token grants, and no more",
            )
