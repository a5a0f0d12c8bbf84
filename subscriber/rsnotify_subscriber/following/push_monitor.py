"""Passes pushed fragments and notifications to the follower, and monitors whether push works.

`PushChannels` subscribes to the changes and document notifications that the Source offers. A
`PushMonitor` passes the fragments to the follower, and decides whether push works:

    up ──no new connection within `RECONNECT_GRACE`, or no heartbeats──> lost: lists are polled
    lost ──a fragment newer than the changes known at the loss──> up

A `PullMonitor` checks whether lists have changes that push did not deliver, so that a silent
subscription can be replaced. `RunContext` has the components of one run.
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

#: Seconds without a heartbeat before push counts as lost. Our publisher sends one every 10 s.
HEARTBEAT_TIMEOUT = 15.0
#: Maximum timeout in seconds, even if heartbeats are rare.
MAX_HEARTBEAT_TIMEOUT = 60.0
#: Seconds to wait for a new connection before push counts as lost.
RECONNECT_GRACE = 1.0


@dataclass
class PushMonitor(PushEvents):
    """Passes pushed fragments to a follower, and decides whether push works.

    After a loss of push, the lists are polled until a new fragment arrives. A connection alone
    proves nothing: the broker may have lost its hub, or the hub its Source. Missing heartbeats are
    also a loss, because the Source may no longer reach the hub, or may use another one.

    With heartbeats, a connection that is replaced within `RECONNECT_GRACE` is not a loss: the hub
    replays the fragments in between, and if the Source cannot reach the hub, the heartbeats stop.
    """

    follower: Follower
    #: Performs the follower's actions.
    perform: Callable[[Iterable[Action]], None]
    announce: Announcer
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop, init=False)
    _is_lost: bool = False
    #: The follower's `known` when push was lost.
    _known_at_loss: Instant | None = None
    _received_at: float = 0.0
    _longest_silence: float = 0.0
    #: Set while heartbeats arrive.
    _silence_timer: asyncio.TimerHandle | None = None
    #: Set while waiting for a new connection.
    _reconnect_timer: asyncio.TimerHandle | None = None

    def up(self, hub: str | None = None) -> None:
        if self._reconnect_timer is not None:
            self._reconnect_timer.cancel()
            self._reconnect_timer = None
        elif not self._is_lost:
            self.perform(self.follower.push_up(self._loop.time()))

    def down(self) -> None:
        if self._silence_timer is not None and self._reconnect_timer is None:
            self._reconnect_timer = self._loop.call_later(RECONNECT_GRACE, self._report_loss)
        elif self._reconnect_timer is None:
            self._report_loss()

    def ended(self) -> None:
        for timer in filter(None, (self._silence_timer, self._reconnect_timer)):
            timer.cancel()
        self._silence_timer = self._reconnect_timer = None

    def _report_loss(self) -> None:
        self.ended()
        self._is_lost, self._known_at_loss = True, self.follower.known
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
        has_digest = COUNT in dict(read.attributes)
        self._measure_silence(now, sends_heartbeats=has_digest or not read.resources)

    def _measure_silence(self, now: float, *, sends_heartbeats: bool) -> None:
        """Measure the silence before a fragment, and start the timer at the first heartbeat.

        A digest in a fragment also shows that the Source sends heartbeats (docs/audit.md).
        """
        if self._silence_timer is not None:
            self._longest_silence = max(self._longest_silence, now - self._received_at)
        self._received_at = now
        if sends_heartbeats and self._silence_timer is None and not self._is_lost:
            self._silence_timer = self._loop.call_at(self._silence_deadline, self._check_silence)

    @property
    def _silence_deadline(self) -> float:
        """The time at which push counts as lost if no fragment arrives until then."""
        return self._received_at + min(
            MAX_HEARTBEAT_TIMEOUT, max(HEARTBEAT_TIMEOUT, 2 * self._longest_silence)
        )

    def _check_silence(self) -> None:
        """Report a loss at the deadline. Fragments only move the deadline, not the timer."""
        if self._loop.time() < self._silence_deadline:
            self._silence_timer = self._loop.call_at(self._silence_deadline, self._check_silence)
        else:
            self._report_loss()

    def _end_loss(self, until: Instant | None) -> None:
        """End the loss if a fragment is newer than the changes known when push was lost."""
        known = self.follower.known
        if self._known_at_loss is not None and known is not None and known < self._known_at_loss:
            self._known_at_loss = None  # the clock of the Source was set back
        is_new = until is not None and (self._known_at_loss is None or until > self._known_at_loss)
        if self._is_lost and is_new:
            self._is_lost = False
            self.up()


@dataclass
class NoticeReceiver(PushEvents):
    """Receives notifications about a Source's documents, and ignores all other events.

    Notifications are optional, because polling also finds new documents.
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
    """The components and callbacks of one run.

    Args:
        once: Whether the run ends when it has caught up.
        identity: The Source and its last known offer.
        offer_checked: Whether that offer was read in this run.
        worker: Runs calls that block on the disk, one after another.
        on_status_changed: Called whenever the status may have changed.
        on_committed: Called with durable changes.
    """

    once: bool
    identity: Identity
    offer_checked: bool
    state: DestinationState
    worker: Executor
    fetcher: Fetcher
    offers: OfferDiscovery
    endpoints: EndpointFactory
    handler: Handler | TransactionalHandler
    options: FollowOptions
    announce: Announcer
    on_status_changed: Callable[[], None]
    on_committed: Callable[[Sequence[Change]], None] | None


@dataclass
class PullMonitor:
    """Announces pulls, and tells a `PushSubscription` whether they found later changes."""

    follower: Follower
    push: PushSubscription
    announce: Announcer
    _pending: int = field(default=0, init=False)
    _kind: DocumentKind | None = field(default=None, init=False)
    _began: float = field(default=0.0, init=False)
    _found_new: bool = field(default=False, init=False)

    def requested(self, fetch: Fetch) -> None:
        if not self._pending or fetch.kind is not self._kind:
            self.announce(Pulling(fetch.kind, fetch.uri))
        if not self._pending:
            self._began, self._found_new = asyncio.get_running_loop().time(), False
        self._pending += 1
        self._kind = fetch.kind

    def fetched(self, fetch: Fetch, document: Document) -> None:
        """Check whether a document has new changes. Call this before the follower receives it."""
        last, known = document.changed_at, self.follower.known
        if fetch.kind is DocumentKind.CHANGE_LIST and not document.index and last and known:
            self._found_new = self._found_new or last > known

    def finished(self) -> None:
        """Record that the follower has received a result and sent its next requests."""
        self._pending -= 1
        if not self._pending:
            self.push.pulled(self._began, news=self._found_new)


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
            announce=self._on_push_event,
        )
        self._notices = PushSubscription(
            (),
            NoticeReceiver(self._on_notice),
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
        """Use the transports of a new offer. Keep the connections that it still offers."""
        if not self._context.once:
            self.changes.set_endpoints(self._context.endpoints.change_endpoints(offer))
            self._notices.set_endpoints(self._context.endpoints.notice_endpoints(offer))

    def _on_push_event(self, event: Event) -> None:
        self._context.announce(event)
        self._context.on_status_changed()

    def _on_notice(self, document: Document) -> None:
        now = asyncio.get_running_loop().time()
        self._perform(self._follower.notified(document, now))
