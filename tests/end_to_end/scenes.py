"""What a replay is played on, and what is killed meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

#: What is killed while a part of the history is replayed: one part after the other.
Plan = Sequence[tuple[str, ...]]
#: Each alone, and the Destination.
HUB: Plan = ((), ("hub",), (), ("follow",), ("hub",), ())
BROKER: Plan = ((), ("mqtt",), (), ("follow",), ("mqtt",), ())
BRIDGE: Plan = ((), ("hub",), ("mqtt",), ("follow",), ("mqtt",), ("hub",), ())
XMPP_BRIDGE: Plan = ((), ("hub",), ("xmpp",), ("follow",), ("xmpp",), ("hub",), ())
CALM: Plan = ((),)
POLLED: Plan = ((), ("follow",), ())
#: Every way in turn, from the best to none and back, and the lesser ones while they are not used.
WAYS: Plan = (
    (),
    ("websocket",),
    ("websocket", "mqtt"),
    ("websocket", "mqtt", "websub"),
    ("websocket", "mqtt"),
    ("websocket", "follow"),
    ("websocket",),
    (),
    ("mqtt",),
    ("websub", "follow"),
    (),
)
#: The same, but for what takes long: to notice that a hub by WebSub is silent.
MOST_WAYS: Plan = ((), ("websocket",), ("websocket", "mqtt"), ("mqtt",), ("websub", "follow"), ())
#: The best first.
BEST = ("websocket", "mqtt", "websub")


class Scene(Struct, frozen=True):
    """What is played on, what is killed, and by which ways changes are heard of."""

    ways: tuple[str, ...]
    plan: Plan
    best: tuple[str, ...] = ()


def scene(via: str, *, hub: bool, kill_ways: bool) -> Scene:
    if kill_ways:
        return Scene(BEST, WAYS, BEST)
    if via == "poll":
        return Scene((), POLLED)
    if via == "mqtt":
        return Scene(("hub", "mqtt"), BRIDGE, (via,)) if hub else Scene((via,), BROKER, (via,))
    if via == "xmpp":
        return Scene(("hub", "xmpp"), XMPP_BRIDGE, (via,))
    return Scene(("hub",), HUB, ("websub" if via == "websub" else "websocket",))
