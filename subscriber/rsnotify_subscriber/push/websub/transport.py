"""Fragments that a hub delivers to a callback of ours, as docs/protocol.md has it.

A hub delivers what comes after the subscription began, so what came before is pulled: once as
soon as the hub has been answered, and once more when it must have begun. A lease is renewed by
a new subscription with a callback and a secret of its own, and only then the old one is ended:
what comes by both counts once.
"""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random

from rsnotify.errors import FetchError
from rsnotify.format.datetimes import Instant
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_subscriber.push.transport import TransportListener
from rsnotify_subscriber.push.websub.callbacks import Callbacks
from rsnotify_subscriber.push.websub.hub_membership import HubMember, HubMembership
from rsnotify_subscriber.push.websub.inbox import DeliveryInbox, HubSilence
from rsnotify_subscriber.tasks import Tasks

#: Seconds in which a hub may answer to an unsubscription when we stop.
_GOODBYE = 2.0


class WebSubTransport:
    """A subscription at a hub, kept up; a `Transport`.

    Args:
        channel: The topic, as the Source's documents name it.
        hubs: The hubs that they name, for where the topic names none itself.
        sessions: The HTTP client sessions.
        callbacks: Where hubs reach us.
        random: The source of jitter.
    """

    def __init__(
        self,
        channel: str,
        hubs: tuple[str, ...],
        *,
        sessions: Sessions,
        callbacks: Callbacks,
        random: Random | None = None,
    ) -> None:
        self._channel = channel
        self._hubs = hubs
        self._sessions = sessions
        self._callbacks = callbacks
        self._random = random or Random()

    async def receive(self, since: Instant | None, listener: TransportListener) -> None:
        """Subscribe, and tell the listener what is delivered until the hub is lost."""
        loop = asyncio.get_running_loop()
        terms = self._callbacks.terms
        inbox = DeliveryInbox(HubSilence(loop.time(), terms.quiet))
        membership = HubMembership(
            self._channel, self._hubs, self._sessions, self._callbacks, inbox
        )
        ended: asyncio.Future[None] = loop.create_future()
        tasks = Tasks(partial(_end, ended))
        try:
            member = await membership.join()
            inbox.silence.heard(loop.time())
            listener.up(member.hub)
            tasks.spawn(_hand_on(inbox, listener))
            tasks.spawn(_catch_up(listener, terms.settle))
            tasks.spawn(self._keep(member, membership, inbox.silence, tasks, listener))
            await ended
        finally:
            await tasks.cancel()
            await membership.leave_all(_GOODBYE)

    async def _keep(
        self,
        member: HubMember,
        membership: HubMembership,
        silence: HubSilence,
        tasks: Tasks,
        listener: TransportListener,
    ) -> None:
        """Subscribe anew whenever it is time, and end what was before."""
        while True:
            await self._until_due(member, silence)
            before, member = member, await self._renewed(member, membership, silence)
            if member.hub != before.hub:
                listener.up(member.hub)
            tasks.spawn(self._retire(before, membership))

    async def _until_due(self, member: HubMember, silence: HubSilence) -> None:
        """Wait for half of the lease or more, or for too long a silence."""
        loop = asyncio.get_running_loop()
        left = member.expires - loop.time()
        due = member.expires - left * (0.25 + self._random.random() / 4)
        while (now := loop.time()) < (when := min(due, silence.due)):
            try:
                async with asyncio.timeout(when - now):
                    await member.trouble()
            except TimeoutError:
                continue

    async def _renewed(
        self, member: HubMember, membership: HubMembership, silence: HubSilence
    ) -> HubMember:
        """Subscribe anew; a hub that goes on delivering has until the end of the lease."""
        loop = asyncio.get_running_loop()
        attempts = 0
        while True:
            try:
                renewed = await membership.join()
            except FetchError as error:
                attempts += 1
                wish = error.retry_after or 0.0
                delay = self._callbacks.terms.retry.delay(attempts, self._random, at_least=wish)
                if silence.due <= loop.time() or member.expires <= loop.time() + delay:
                    raise
                await asyncio.sleep(delay)
            else:
                silence.heard(loop.time())
                return renewed

    async def _retire(self, member: HubMember, membership: HubMembership) -> None:
        await asyncio.sleep(self._callbacks.terms.settle)
        await membership.leave(member, self._callbacks.terms.patience)


def _end(ended: asyncio.Future[None], error: BaseException) -> None:
    if not ended.done():
        ended.set_exception(error)


async def _hand_on(inbox: DeliveryInbox, listener: TransportListener) -> None:
    while True:
        listener.fragment(await inbox.get())
        await asyncio.sleep(0)  # others have their turn, however much there is


async def _catch_up(listener: TransportListener, settle: float) -> None:
    listener.gap()
    await asyncio.sleep(settle)
    listener.gap()
