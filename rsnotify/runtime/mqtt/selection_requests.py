"""Requests for a filtered topic, which a Destination sends to a hub through their broker.

A broker cannot filter by content. So the hub publishes each requested selection of a channel to
an MQTT topic of its own, whose name follows from the channel and the selection
(`Broker.filtered_topic`), as long as Destinations repeat the request now and then.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from rsnotify.errors import ConfigurationError
from rsnotify.selection.push_selection import PushSelection

#: For how long a hub keeps a filtered topic after the last request for it, in seconds.
LEASE = 7_200
CONTENT_TYPE = "application/json"

#: Enough for a URI and a selection of the greatest length, in bytes.
_MOST_REQUEST_BYTES = 16_384


class SelectionRequest(Struct, frozen=True):
    """A request for a filtered topic: the URI of the channel, and the canonical selection."""

    topic: str
    select: PushSelection

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


def read_selection_request(payload: bytes) -> SelectionRequest:
    """Read a payload; ConfigurationError if it is malformed, or selects the whole channel."""
    if len(payload) > _MOST_REQUEST_BYTES:
        raise ConfigurationError(f"it is larger than {_MOST_REQUEST_BYTES} bytes")
    try:
        request = msgspec.json.decode(payload, type=SelectionRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error)[:200]  # which may quote what was sent
        raise ConfigurationError(f"it is not a request for a part of a topic: {reason}") from None
    select = request.select.canonical()
    if not select:
        raise ConfigurationError("it asks for all of its topic, which has a name of its own")
    return SelectionRequest(request.topic, select)
