"""The push subscriptions of one run: to changes, and to notifications about documents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from random import Random

from rsnotify.format.model import Document
from rsnotify.format.offer import Offer
from rsnotify.sync.actions import Action
from rsnotify.sync.follower import Follower
from rsnotify_subscriber.events import Event
from rsnotify_subscriber.push.document_notices import NoticeSubscription
from rsnotify_subscriber.push.subscription import PushSubscription
from rsnotify_subscriber.status import PushState
from rsnotify_subscriber.sync.context import RunContext, RunObservers
from rsnotify_subscriber.sync.pull_monitor import PullMonitor
from rsnotify_subscriber.sync.push_intake import PushIntake
from rsnotify_subscriber.tasks import Tasks


class PushChannels:
    """Keeps the subscriptions that the Source offers.

    Args:
        context: The parts of the run.
        observers: Are called when connections come up and go down.
        follower: Receives the documents that are pushed.
        perform: Performs the follower's actions.
        once: Whether the run only catches up, so that no changes are to be pushed.

    Attributes:
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
        self._changes = PushSubscription(
            () if once else self._transports.change_endpoints(context.identity.offer),
            PushIntake(follower, perform, observers.announce),
            lambda: follower.since,
            random,
            most=context.options.hubs,
            announce=self._changed,
        )
        self._notices = NoticeSubscription(
            self._transports,
            received=self._notified,
            since=lambda: follower.told_through,
            random=random,
        )
        self.pulls = PullMonitor(follower, self._changes, observers.announce)

    @property
    def state(self) -> PushState:
        """Whether changes arrive by push."""
        if not self._changes.endpoints:
            return PushState.OFF
        return PushState.UP if self._changes.up else PushState.DOWN

    @property
    def hubs(self) -> tuple[str, ...]:
        """The hubs from which changes arrive, the best first."""
        return self._changes.hubs

    @property
    def error(self) -> str | None:
        """Why no changes arrive, if that was tried."""
        return self._changes.error

    def start(self, tasks: Tasks, offer: Offer) -> None:
        """Subscribe by the transports that are offered."""
        if not self._once:
            tasks.spawn(self._changes.run())
            self._notices.set_offer(offer)
            tasks.spawn(self._notices.run())

    def offered(self, offer: Offer) -> None:
        """Use the transports of another offer; connections that it still offers are kept."""
        if self._once:
            return
        self._changes.set_endpoints(self._transports.change_endpoints(offer))
        self._notices.set_offer(offer)

    def _changed(self, event: Event) -> None:
        self._observers.announce(event)
        self._observers.moved()

    def _notified(self, document: Document) -> None:
        now = asyncio.get_running_loop().time()
        self._perform(self._follower.told(document, now))
