"""The push subscriptions of one run, and whether pulls find changes that they should have sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from rsnotify.format.model import Document
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import Action, DocumentKind, Fetch
from rsnotify.sync.follower import Follower
from rsnotify_subscriber.events import Announcer, Event, Pulling
from rsnotify_subscriber.push.subscription import PushSubscription
from rsnotify_subscriber.status import PushState
from rsnotify_subscriber.sync.context import RunContext, RunObservers
from rsnotify_subscriber.sync.push_monitor import NoticeReceiver, PushMonitor
from rsnotify_subscriber.tasks import Tasks


@dataclass
class PullMonitor:
    """Announces pulls, and reports to a `PushSubscription` whether they found newer changes."""

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
        """Examine a document, before the follower receives it."""
        last, known = document.changed_at, self.follower.since
        if fetch.kind is DocumentKind.CHANGE_LIST and not document.index and last and known:
            self._has_news = self._has_news or last > known

    def finished(self) -> None:
        """Note that the follower has received a result, and has requested what it needs next."""
        self._pending -= 1
        if not self._pending:
            self.push.pulled(self._began, news=self._has_news)


class PushChannels:
    """Subscribes to changes, and to notifications about documents, as the Source offers them.

    Args:
        perform: Performs the follower's actions.
        once: Whether the run only catches up, so that no changes are to be pushed.

    Attributes:
        changes: The subscription to changes.
        pulls: Compares the documents that are pulled with those that were pushed.
    """

    def __init__(
        self,
        context: RunContext,
        observers: RunObservers,
        follower: Follower,
        perform: Callable[[Iterable[Action]], None],
        *,
        once: bool,
    ) -> None:
        self._transports = context.ways
        self._once = once
        self._observers = observers
        self._follower = follower
        self._perform = perform
        random = Random()
        self.changes = PushSubscription(
            () if once else self._transports.change_endpoints(context.identity.offer),
            PushMonitor(follower, perform, observers.announce),
            lambda: follower.since,
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
        self.pulls = PullMonitor(follower, self.changes, observers.announce)

    @property
    def state(self) -> PushState:
        if not self.changes.endpoints:
            return PushState.OFF
        return PushState.UP if self.changes.up else PushState.DOWN

    def start(self, tasks: Tasks, offer: Offer) -> None:
        if not self._once:
            tasks.spawn(self.changes.run())
            self._notices.set_endpoints(self._transports.notice_endpoints(offer))
            tasks.spawn(self._notices.run())

    def offered(self, offer: Offer) -> None:
        """Use the transports of another offer; connections that it still offers are kept."""
        if self._once:
            return
        self.changes.set_endpoints(self._transports.change_endpoints(offer))
        self._notices.set_endpoints(self._transports.notice_endpoints(offer))

    def _changed(self, event: Event) -> None:
        self._observers.announce(event)
        self._observers.moved()

    def _notified(self, document: Document) -> None:
        now = asyncio.get_running_loop().time()
        self._perform(self._follower.notified(document, now))
