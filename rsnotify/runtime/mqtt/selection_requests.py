"""What a Destination sends to a hub, through their broker, to be sent a part of a channel.

A broker cannot look into messages. So the hub makes a stream of its own for each part that is
asked for, under a name that follows from the channel and the part (`Broker.part`), for as long
as somebody asks again now and then.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from rsnotify.errors import ConfigurationError
from rsnotify.selection.push_selection import PushSelection

#: For how long a hub keeps a stream that nobody asks for any more, in seconds.
LEASE = 7_200
CONTENT_TYPE = "application/json"

#: A URI and a selection at their longest, and some more.
_LONGEST = 16_384


class SelectionRequest(Struct, frozen=True):
    """Asks for a part of a channel.

    Args:
        topic: The URI of the channel.
        select: Which part, in its canonical form.
    """

    topic: str
    select: PushSelection

    def encode(self) -> bytes:
        """Write it as the payload of a message."""
        return msgspec.json.encode(self)


def read_selection_request(payload: bytes) -> SelectionRequest:
    """Read the payload of a message.

    Raises:
        ConfigurationError: It asks for nothing that can be had.
    """
    if len(payload) > _LONGEST:
        raise ConfigurationError(f"it is larger than {_LONGEST} bytes")
    try:
        ask = msgspec.json.decode(payload, type=SelectionRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error)[:200]  # which may quote what was sent
        raise ConfigurationError(f"it asks for no part of a topic: {reason}") from None
    select = ask.select.canonical()
    if not select:
        raise ConfigurationError("it asks for all of its topic, which has a name of its own")
    return SelectionRequest(ask.topic, select)
