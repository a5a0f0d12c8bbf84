"""Passes pushed fragments and notifications to the follower, and monitors whether push works.

`PushChannels` subscribes to the changes and document notifications that the Source offers. A
`PushMonitor` passes the fragments to the follower, and decides whether push works:

    up ──connection lost, and none within `RETURN`; or heartbeats stop──> lost: lists are polled
    lost ──a fragment newer than the changes known at the loss──> up

A `PullMonitor` compares the lists with the pushed changes, so that a subscription that receives
nothing can be replaced. `RunContext` has the components of one run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random

from msgspec import Struct

from rsnotify.errors import DocumentError
from rsnotify.format.coverage import Change
from rsnotify.format.datetimes import Instant
from rsnotify.format.hashes import COUNT
from rsnotify.format.model import Document
from rsnotify.format.offer import Offer
from rsnotify.format.reader import read_document
from rsnotify.runtime.tasks import Tasks
from rsnotify.sync.actions import Action, DocumentKind, Fetch
from rsnotify.sync.follower import Follower
from rsnotify_subscriber.discovery.discovery import OfferDiscovery
from rsnotify_subscriber.events import Announcer, Event, GapSeen, Pulling
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.handlers import Handler, TransactionalHandler
from rsnotify_subscriber.options import FollowOptions
from rsnotify_subscriber.push.endpoints import EndpointFactory
from rsnotify_subscriber.push.push_subscription import PushEvents, PushSubscription
from rsnotify_subscriber.status import PushState
from rsnotify_subscriber.storage.destination_state import DestinationState
from rsnotify_subscriber.storage.identity import Identity

logger = logging.getLogger("rsnotify.subscriber")

#: Seconds for which a Source with heartbeats may be silent. Our publisher sends one every 10 s.
QUIET = 15.0
#: Maximum number of seconds of silence, even if heartbeats are rare.
LONGEST_QUIET = 60.0
#: Seconds within which a new connection makes up for a lost one.
RETURN = 1.0


@dataclass
class PushMonitor(PushEvents):
    """Passes pushed fragments to a follower.

    After a loss of push, the lists are polled as if there were no push, until something new
    arrives. The connection alone proves nothing: a broker may be connected without the hub behind
    it, and a hub before the Source has reached it again. If heartbeats stop, that is also a loss:
    the Source may no longer reach the hub, or may use another one. Where there are heartbeats, a
    connection that is replaced within `RETURN` is therefore not a loss. The hub sends the fragments
    that arrived in between, and if the Source cannot reach the hub, the heartbeats stop.
    """

    follower: Follower
    #: Performs the follower's actions.
    perform: Callable[[Iterable[Action]], None]
    announce: Announcer
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop, init=False)
    _is_lost: bool = False
    _known: Instant | None = None  # the follower's `known` when push was lost
    _received_at: float = 0.0
    _longest: float = 0.0  # the longest silence so far
    _silence: asyncio.TimerHandle | None = None  # set while there are heartbeats
    _return: asyncio.TimerHandle | None = None  # set while waiting for a new connection

    def up(self, hub: str | None = None) -> None:
        if self._return is not None:
            self._return.cancel()
            self._return = None
        elif not self._is_lost:
            self.perform(self.follower.push_up(self._loop.time()))

    def down(self) -> None:
        if self._silence is not None and self._return is None:
            self._return = self._loop.call_later(RETURN, self._lose)
        elif self._return is None:
            self._lose()

    def ended(self) -> None:
        for timer in filter(None, (self._silence, self._return)):
            timer.cancel()
        self._silence = self._return = None

    def _lose(self) -> None:
        self.ended()
        self._is_lost, self._known = True, self.follower.known
        self.perform(self.follower.push_down(self._loop.time()))

    def audience(self, listeners: int) -> None:
        self.follower.audience(listeners)

    def gap(self) -> None:
        self.announce(GapSeen())
        self.perform(self.follower.push_gap(self._loop.time()))

    def fragment(self, document: bytes) -> None:
        now = self._loop.time()
        self.covered_until = None
        self.announce.counters.fragments += 1
        self.announce.counters.fragment_bytes += len(document)
        try:
            read = read_document(document, source="a fragment")
        except DocumentError as error:
            self.perform(self.follower.fragment_unreadable(error, now))
            return
        self.perform(self.follower.fragment(read, now, datetime.now(UTC)))
        self.covered_until = read.until or read.changed_at
        self._end_loss(self.covered_until)
        self._watch_silence(now, beats=not read.resources or COUNT in dict(read.attributes))

    def _watch_silence(self, now: float, *, beats: bool) -> None:
        """Measure the silence before a fragment, and start the timer at the first heartbeat.

        `beats` means that the fragment shows that there are heartbeats (docs/audit.md).
        """
        if self._silence is not None:
            self._longest = max(self._longest, now - self._received_at)
        self._received_at = now
        if beats and self._silence is None and not self._is_lost:
            self._silence = self._loop.call_at(self._due, self._check_silence)

    @property
    def _due(self) -> float:
        """The time at which the silence will have lasted too long."""
        return self._received_at + min(LONGEST_QUIET, max(QUIET, 2 * self._longest))

    def _check_silence(self) -> None:
        """Stop relying on push after a long silence. One timer serves any number of fragments."""
        if self._loop.time() < self._due:
            self._silence = self._loop.call_at(self._due, self._check_silence)
        else:
            self._lose()

    def _end_loss(self, until: Instant | None) -> None:
        """Rely on push again if a fragment is newer than the changes known when push was lost."""
        known = self.follower.known
        if self._known is not None and known is not None and known < self._known:
            self._known = None  # the clock of the Source was set back
        is_new = until is not None and (self._known is None or until > self._known)
        if self._is_lost and is_new:
            self._is_lost = False
            self.up()


@dataclass
class NoticeReceiver(PushEvents):
    """Receives notifications about a Source's documents, and ignores all other events.

    Nothing depends on a notification: polling finds documents that are not announced.
    """

    received: Callable[[Document], None]

    def fragment(self, document: bytes) -> None:
        self.covered_until = None
        try:
            read = read_document(document, source="a notification about documents")
        except DocumentError as error:
            logger.info("%s", error)
            return
        self.received(read)
        self.covered_until = read.until


class RunContext(Struct, frozen=True, kw_only=True):
    """The components of one run, and the functions that it calls.

    Args:
        once: Whether the run only catches up, and then ends.
        identity: The Source and its last known offer.
        offer_checked: Whether that offer was read in this run.
        worker: Runs calls that block on the disk, one after another.
        moved: Called whenever the status may have changed.
        on_committed: Called with changes after they are durable.
    """

    once: bool
    identity: Identity
    offer_checked: bool
    state: DestinationState
    worker: Executor
    fetcher: Fetcher
    offers: OfferDiscovery
    ways: EndpointFactory
    handler: Handler | TransactionalHandler
    options: FollowOptions
    announce: Announcer
    moved: Callable[[], None]
    on_committed: Callable[[Sequence[Change]], None] | None


@dataclass
class PullMonitor:
    """Announces pulls, and reports to a `PushSubscription` whether they found later changes."""

    follower: Follower
    push: PushSubscription
    announce: Announcer
    _pending: int = field(default=0, init=False)
    _kind: DocumentKind | None = field(default=None, init=False)
    _began: float = field(default=0.0, init=False)
    _has_news: bool = field(default=False, init=False)

    def requested(self, fetch: Fetch) -> None:
        if not self._pending or fetch.kind is not self._kind:
            self.announce(Pulling(fetch.kind, fetch.uri))
        if not self._pending:
            self._began, self._has_news = asyncio.get_running_loop().time(), False
        self._pending += 1
        self._kind = fetch.kind

    def fetched(self, fetch: Fetch, document: Document) -> None:
        """Check a document for new changes, before the follower receives it."""
        last, known = document.changed_at, self.follower.known
        if fetch.kind is DocumentKind.CHANGE_LIST and not document.index and last and known:
            self._has_news = self._has_news or last > known

    def finished(self) -> None:
        """Record that the follower has received a result and made its next requests."""
        self._pending -= 1
        if not self._pending:
            self.push.pulled(self._began, news=self._has_news)


class PushChannels:
    """Subscribes to the changes and document notifications that the Source offers.

    A run that only catches up needs no push.
    """

    def __init__(
        self, context: RunContext, follower: Follower, perform: Callable[[Iterable[Action]], None]
    ) -> None:
        self._context = context
        self._follower = follower
        self._perform = perform
        random = Random()
        self.changes = PushSubscription(
            (),
            PushMonitor(follower, perform, context.announce),
            lambda: follower.known,
            random,
            most=context.options.hubs,
            announce=self._changed,
        )
        self._notices = PushSubscription(
            (),
            NoticeReceiver(self._notified),
            lambda: follower.notified_through,
            random,
            needed=False,
        )
        self.offered(context.identity.offer)
        self.pulls = PullMonitor(follower, self.changes, context.announce)

    @property
    def state(self) -> PushState:
        if not self.changes.endpoints:
            return PushState.OFF
        return PushState.UP if self.changes.up else PushState.DOWN

    def start(self, tasks: Tasks) -> None:
        if not self._context.once:
            tasks.spawn(self.changes.run())
            tasks.spawn(self._notices.run())

    def offered(self, offer: Offer) -> None:
        """Use the transports of a new offer. Connections that it still offers are kept."""
        if not self._context.once:
            self.changes.set_endpoints(self._context.ways.change_endpoints(offer))
            self._notices.set_endpoints(self._context.ways.notice_endpoints(offer))

    def _changed(self, event: Event) -> None:
        self._context.announce(event)
        self._context.moved()

    def _notified(self, document: Document) -> None:
        now = asyncio.get_running_loop().time()
        self._perform(self._follower.notified(document, now))
