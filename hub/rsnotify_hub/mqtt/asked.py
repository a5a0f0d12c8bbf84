"""Which parts of topics are made for the broker: those that were asked for lately.

Whoever may write below the name for asking may ask, and nobody says who it was. So what can be
asked for is bounded, and an end comes to it by itself. Which parts there are is kept with the
places of the broker; how long they stay begins anew with each start of the hub.
"""

from __future__ import annotations

import asyncio
import logging

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.mqtt.messages import MqttMessage
from rsnotify.runtime.mqtt.selection_requests import LEASE, read_selection_request
from rsnotify.runtime.mqtt.topics import channel_topic, request_prefix
from rsnotify_hub.log.topics import Topics
from rsnotify_hub.mqtt.places import Places
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.selecting.streams import Stream

log = logging.getLogger("rsnotify.hub.mqtt")

#: How much of its lease a part has left that gives way to another: who still wants it would have
#: asked again after half of it.
_SPARE = 0.375
_LAPSED = float("-inf")


class Asked:
    """The parts that are made for a broker.

    Args:
        prefix: What the names of channels begin with at the broker.
        topics: The logs.
        places: How far the broker has each part.
        most: How many parts a topic may have.
    """

    def __init__(self, prefix: str, topics: Topics, places: Places, most: int) -> None:
        self._prefix = request_prefix(prefix)
        self._topics = topics
        self._places = places
        self._most = most
        self._leases: dict[str, dict[Stream, float]] = {}
        for stream in places.parts():
            self._renew(stream)

    @property
    def pattern(self) -> str | None:
        """Return what to subscribe to; None where nothing can be asked for."""
        return self._prefix + "+" if self._most else None

    def concerns(self, message: MqttMessage) -> bool:
        """Tell whether a message is one that asks."""
        return message.topic.startswith(self._prefix)

    def of(self, topic: str) -> list[Stream]:
        """Return all that is made of a topic: the whole of it, and its parts."""
        return [Stream(topic), *self._leases.get(topic, ())]

    def take(self, message: MqttMessage) -> str:
        """Take a message that asks.

        Returns:
            The topic of which there may be more to send now.

        Raises:
            Refusal: It asks for what cannot be had.
        """
        try:
            ask = read_selection_request(message.payload)
        except ConfigurationError as error:
            raise Refusal(Code.BAD_REQUEST, str(error)) from None
        if channel_topic(ask.topic, self._prefix) != message.topic:
            raise Refusal(Code.FORBIDDEN, "it is about a channel of another name")
        state = self._topics.state(ask.topic)
        if state is None:
            raise Refusal(Code.BAD_REQUEST, "nothing was ever published on its topic")
        stream = Stream(ask.topic, ask.select)
        parts = self._leases.get(ask.topic, {})
        if parts.get(stream, _LAPSED) < _now():
            self._make_room(parts)
        if stream not in parts:
            self._places.move(stream, max(0, state.position - 1))
            log.info("a part of %s is made for the MQTT broker: %r", ask.topic, ask.select.text)
        self._renew(stream)
        return ask.topic

    def _make_room(self, parts: dict[Stream, float]) -> None:
        """Let the part give way that nobody seems to want any more, if none is free."""
        now = _now()
        live = [stream for stream, ends in parts.items() if ends >= now]
        if len(live) < self._most:
            return
        oldest = min(live, key=parts.__getitem__, default=None)
        # Those that have given way may still be there, if the broker does not forget them.
        is_full = len(parts) >= 2 * self._most
        if oldest is None or is_full or parts[oldest] > now + LEASE * _SPARE:
            raise Refusal(Code.TOO_MANY, "its topic has enough parts already")
        parts[oldest] = _LAPSED

    def _renew(self, stream: Stream) -> None:
        self._leases.setdefault(stream.topic, {})[stream] = _now() + LEASE

    def lapsed(self) -> list[Stream]:
        """Return the parts that nobody has asked for for too long."""
        now = _now()
        return [
            stream
            for parts in self._leases.values()
            for stream, ends in parts.items()
            if ends < now
        ]

    def drop(self, stream: Stream) -> None:
        """Make a part no longer."""
        parts = self._leases[stream.topic]
        del parts[stream]
        if not parts:
            del self._leases[stream.topic]

    def put_back(self, stream: Stream) -> None:
        """Take up a part that was dropped too early; if nobody has asked for it, it has lapsed."""
        self._leases.setdefault(stream.topic, {}).setdefault(stream, _LAPSED)


def _now() -> float:
    return asyncio.get_running_loop().time()
