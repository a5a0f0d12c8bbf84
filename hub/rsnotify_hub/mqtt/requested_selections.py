"""The parts of topics that Destinations requested lately, which the hub publishes to the broker.

Anybody who may write to the topic for requests may request a part, and MQTT names no sender. So
the number of parts is bounded, and each has a lease. The cursors of the broker in the store tell
which parts there are; their leases start again with each start of the hub.
"""

from __future__ import annotations

import asyncio
import logging

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.mqtt.messages import MqttMessage
from rsnotify.runtime.mqtt.selection_requests import LEASE, read_selection_request
from rsnotify.runtime.mqtt.topics import channel_topic, request_prefix
from rsnotify_hub.bridging.broker_cursors import BrokerCursors
from rsnotify_hub.filtering.topic_selection import TopicSelection
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.refusals import Code, Refusal

log = logging.getLogger("rsnotify.hub.mqtt")

#: The part of the lease that remains when a selection may be replaced: a Destination that still
#: wants it would have renewed it at half of the lease.
_REPLACEABLE = 0.375
_EXPIRED = float("-inf")


class RequestedSelections:
    """The leases of the parts that are published to a broker, at most `limit` of each topic."""

    def __init__(self, prefix: str, topics: TopicLogs, cursors: BrokerCursors, limit: int) -> None:
        self._prefix = request_prefix(prefix)
        self._topics = topics
        self._cursors = cursors
        self._limit = limit
        self._leases: dict[str, dict[TopicSelection, float]] = {}

    def start(self) -> None:
        """Begin the leases of the parts that the broker has a cursor for."""
        self._leases = {}
        for selection in self._cursors.parts():
            self._renew(selection)

    @property
    def pattern(self) -> str | None:
        """The pattern of MQTT topics for requests; None if parts cannot be requested."""
        return self._prefix + "+" if self._limit else None

    def is_request(self, message: MqttMessage) -> bool:
        return message.topic.startswith(self._prefix)

    def of_topic(self, topic: str) -> list[TopicSelection]:
        return [TopicSelection(topic), *self._leases.get(topic, ())]

    def add(self, message: MqttMessage) -> str:
        """Add or renew the part that a message requests, and return its topic.

        Raises:
            Refusal: The part cannot be published.
        """
        try:
            request = read_selection_request(message.payload)
        except ConfigurationError as error:
            raise Refusal(Code.BAD_REQUEST, str(error)) from None
        if channel_topic(request.topic, self._prefix) != message.topic:
            raise Refusal(Code.FORBIDDEN, "it is about a channel of another name")
        state = self._topics.state(request.topic)
        if state is None:
            raise Refusal(Code.BAD_REQUEST, "nothing was ever published on its topic")
        selection = TopicSelection(request.topic, request.select)
        parts = self._leases.get(request.topic, {})
        if parts.get(selection, _EXPIRED) < _now():
            self._check_limit(parts)
        if selection not in parts:
            self._cursors.move(selection, max(0, state.position - 1))
            log.info(
                "a part of %s is now published over MQTT: %r", request.topic, request.select.text
            )
        self._renew(selection)
        return request.topic

    def _check_limit(self, parts: dict[TopicSelection, float]) -> None:
        """Expire the part that probably nobody wants any more, if a topic has as many as it may."""
        now = _now()
        live = [selection for selection, ends in parts.items() if ends >= now]
        if len(live) < self._limit:
            return
        oldest = min(live, key=parts.__getitem__, default=None)
        # Expired parts may still be there if the broker refuses to delete them.
        is_full = len(parts) >= 2 * self._limit
        if oldest is None or is_full or parts[oldest] > now + LEASE * _REPLACEABLE:
            raise Refusal(Code.TOO_MANY, "its topic has enough parts already")
        parts[oldest] = _EXPIRED

    def _renew(self, selection: TopicSelection) -> None:
        self._leases.setdefault(selection.topic, {})[selection] = _now() + LEASE

    def expired(self) -> list[TopicSelection]:
        now = _now()
        return [
            selection
            for parts in self._leases.values()
            for selection, ends in parts.items()
            if ends < now
        ]

    def remove(self, selection: TopicSelection) -> None:
        parts = self._leases[selection.topic]
        del parts[selection]
        if not parts:
            del self._leases[selection.topic]

    def restore(self, selection: TopicSelection) -> None:
        """Undo `remove`; the part is expired unless it was requested meanwhile."""
        self._leases.setdefault(selection.topic, {}).setdefault(selection, _EXPIRED)


def _now() -> float:
    return asyncio.get_running_loop().time()
