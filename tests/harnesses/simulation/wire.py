"""The fragments on their way from a hub's connection to the code of a Destination.

Between the transport and the code, fragments are lost, repeated, delayed and reordered as the seed
decides, as by a hub or a broker that keeps no order. What arrives before that must be in order.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rsnotify.format.datetimes import Instant, parse_datetime
from rsnotify_hub.topic_log import TopicLog
from rsnotify_publisher.push.hub_feed import HubFeed
from rsnotify_subscriber.push.push_subscription import EndpointConnection
from rsnotify_subscriber.push.websub_transport import HubMembership
from tests.harnesses.simulation.history import Wrong
from tests.harnesses.simulation.invariants import check_leads
from tests.harnesses.simulation.loop import SimulatedLoop, current_machine

Note = Callable[[str], None]
INTERVAL = re.compile(rb'<rs:md [^>]*?from="([^"]+)" until="([^"]+)"')
_DELAYS = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 3600.0)


class Wire:
    """What happens to the fragments of a run.

    Attributes:
        is_faulty: Whether faults happen now.
    """

    def __init__(self, loop: SimulatedLoop, lost: float, odd: float, note: Note) -> None:
        #: The names of the hubs, by the URLs of their WebSockets.
        self.hubs: dict[str, str] = {}
        #: The machines whose log is in a store that others share, which notes what is stored.
        self.sharing = set[str]()
        self._loop = loop
        self._lost, self._odd = lost, odd
        self.note = note
        self.is_faulty = True
        #: How often a machine has subscribed to callbacks.
        self._joins: Counter[str] = Counter()
        #: The ends of the fragments in the log of each hub, as they were stored, by its machine
        #: and the topic.
        self._logs: dict[tuple[str, str], list[Instant]] = {}

    # At a hub

    def appended(self, topic: str, entries: Sequence[Any]) -> None:
        machine = current_machine()
        assert machine is not None
        ends = [each.fragment.until for each in entries]
        self.note(f"{machine.name} stores {', '.join(map(str, ends))}")
        if machine.name not in self.sharing:
            self.stored(machine.name, topic, ends)

    def stored(self, hub: str, topic: str, ends: Sequence[Instant]) -> None:
        """Note the ends of the next fragments in a log."""
        self._logs.setdefault((hub, topic), []).extend(ends)

    def ends(self, hub: str, topic: str) -> list[Instant]:
        return self._logs.get((hub, topic), [])

    def forgotten(self, hub: str, topic: str | None = None) -> None:
        for key in list(self._logs):
            if key[0] == hub and topic in (None, key[1]):
                del self._logs[key]

    # At a Destination

    def joined(self) -> None:
        """Note a subscription by WebSub, which has only what is published after it begins."""
        machine = current_machine()
        assert machine is not None
        self._joins[machine.name] += 1

    def received(self, connection: Any, document: bytes) -> None:
        """Check a fragment as it was received, and pass it on: late, twice or not at all."""
        found = INTERVAL.search(document)
        assert found is not None
        begin, until = (parse_datetime(each.decode()) for each in found.groups())
        self._check_chain(connection, begin, until)
        machine = current_machine()
        assert machine is not None
        random = self._loop.random
        what = f"{short(begin)} to {short(until)} at {machine.name}"
        if self.is_faulty and random.random() < self._lost:
            self.note(f"lost: {what}")
            return
        self.note(f"fragment {what}")
        if not self.is_faulty or random.random() >= self._odd:
            _fragment(connection, document)
        elif random.random() < 0.5:
            self._loop.call_later(random.choice(_DELAYS), _fragment, connection, document)
        else:
            _fragment(connection, document)
            self._repeat(connection, document)

    def _check_chain(self, connection: Any, begin: Instant, until: Instant) -> None:
        """I5: each fragment begins where the one before ended, or the hub says that some are gone.

        A hub that was not sent something, as the Source no longer had it, passes on that gap.
        """
        machine = current_machine()
        assert machine is not None
        joins = self._joins[machine.name]
        is_new = connection.__dict__.get("joins", 0) != joins
        connection.joins = joins
        chained = None if is_new else connection.__dict__.get("chained", connection._through)
        hub = next((name for url, name in self.hubs.items() if connection.hub == url), "")
        ends = self.ends(hub, connection.endpoint.topic)
        if is_new and until not in ends:
            # The hub of an earlier subscription has sent it, late.
            connection.chained = None
            return
        if chained is not None and begin > chained:
            # A Source that was killed may send an old fragment late, after later ones.
            later = after_last(ends, chained)
            if any(chained < end <= begin for end in later):
                raise Wrong(f"I5: {connection.hub} sent {begin} to {until} after {chained}")
        connection.chained = max(until, chained or until)

    def _repeat(self, connection: Any, document: bytes) -> None:
        """I6: a repeated fragment changes nothing."""
        follower = getattr(connection._events, "follower", None)
        if follower is None:  # of notifications about documents
            return
        before = follower.progress, follower.pending, follower.level, follower.known
        _fragment(connection, document)
        after = follower.progress, follower.pending, follower.level, follower.known
        if before != after:
            raise Wrong(f"I6: a fragment that was repeated changed {before} to {after}")


def after_last(ends: list[Instant], end: Instant) -> list[Instant]:
    """Return what was stored after a fragment with an end, for the last time; all without one.

    A Source that divides old changes in another way repeats ends.
    """
    return ends[len(ends) - ends[::-1].index(end) :] if end in ends else ends


def short(instant: Instant) -> str:
    return f"{instant:%d %H:%M:%S.%f}"


_fragment = EndpointConnection.fragment
_gap = EndpointConnection.gap
_join = HubMembership.join
_record_append = TopicLog.record_append
_reset = TopicLog.reset
_sending = HubFeed._sending


def _wire() -> Wire:
    loop: Any = asyncio.get_event_loop()
    wire: Wire = loop.wire
    return wire


def patch() -> None:
    """Report what is sent, stored and received to the `Wire` of the loop."""

    def fragment(self: Any, document: bytes) -> None:
        _wire().received(self, document)

    async def join(self: Any) -> Any:
        member = await _join(self)
        _wire().joined()
        return member

    def gap(self: Any) -> None:
        self.chained = None
        _wire().note("the hub states a gap")
        _gap(self)

    def record_append(self: Any, entries: Any, state: Any, replaced: Any) -> None:
        _wire().appended(self.topic, entries)
        _record_append(self, entries, state, replaced)

    def reset(self: Any) -> None:
        machine = current_machine()
        assert machine is not None
        if machine.name not in _wire().sharing:
            _wire().forgotten(machine.name, self.topic)
        _reset(self)

    def sending(self: Any, sent: Any) -> Any:
        check_leads(f"feeds a hub through {short(sent.until)}")
        _wire().note(f"send {short(sent.from_)} to {short(sent.until)}")
        return _sending(self, sent)

    for target, name, replacement in (
        (EndpointConnection, "fragment", fragment),
        (EndpointConnection, "gap", gap),
        (HubMembership, "join", join),
        (TopicLog, "record_append", record_append),
        (TopicLog, "reset", reset),
        (HubFeed, "_sending", sending),
    ):
        setattr(target, name, replacement)
