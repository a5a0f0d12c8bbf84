"""Fragments that a hub delivers to a callback (docs/protocol.md).

A hub delivers what comes after the subscription began, so what came before is pulled: once after
the verification, and once more when the hub must have begun to deliver. A lease is renewed by a new
subscription with a callback and a secret of its own, and only then the old one is ended: what comes
by both counts once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
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

#: The seconds in which a hub may answer to an unsubscription when we stop.
_GOODBYE = 2.0


@dataclass
class WebSubTransport:
    """A subscription at a hub, renewed until it fails; a `Transport`.

    Args:
        channel: The topic, as the Source's documents name it.
        hubs: The hubs that they name, for a topic that names none itself.
        callbacks: Where hubs reach us.
    """

    channel: str
    hubs: tuple[str, ...]
    sessions: Sessions
    callbacks: Callbacks
    random: Random = field(default_factory=Random)

    async def receive(self, since: Instant | None, listener: TransportListener) -> None:
        loop = asyncio.get_running_loop()
        terms = self.callbacks.terms
        inbox = DeliveryInbox(HubSilence(loop.time(), terms.quiet))
        hubs = HubMembership(self.channel, self.hubs, self.sessions, self.callbacks, inbox)
        ended: asyncio.Future[None] = loop.create_future()
        tasks = Tasks(partial(_end, ended))
        try:
            member = await hubs.join()
            inbox.silence.end(loop.time())
            listener.up(member.hub)
            tasks.spawn(_pass_on(inbox, listener))
            tasks.spawn(_catch_up(listener, terms.settle))
            tasks.spawn(self._renew_forever(member, hubs, inbox.silence, tasks, listener))
            await ended
        finally:
            await tasks.cancel()
            await hubs.leave_all(_GOODBYE)

    async def _renew_forever(
        self,
        member: HubMember,
        hubs: HubMembership,
        silence: HubSilence,
        tasks: Tasks,
        listener: TransportListener,
    ) -> None:
        """Subscribe again whenever it is due, and then end the subscription before."""
        while True:
            await self._until_due(member, silence)
            before, member = member, await self._renewed(member, hubs, silence)
            if member.hub != before.hub:
                listener.up(member.hub)
            tasks.spawn(self._end_later(before, hubs))

    async def _until_due(self, member: HubMember, silence: HubSilence) -> None:
        """Wait for half of the lease or more, or for too long a silence."""
        loop = asyncio.get_running_loop()
        left = member.expires - loop.time()
        due = member.expires - left * (0.25 + self.random.random() / 4)
        while (now := loop.time()) < (when := min(due, silence.due)):
            try:
                async with asyncio.timeout(when - now):
                    await member.failure()
            except TimeoutError:
                continue

    async def _renewed(
        self, member: HubMember, hubs: HubMembership, silence: HubSilence
    ) -> HubMember:
        """Subscribe again; a hub that still delivers has until the end of the lease."""
        loop = asyncio.get_running_loop()
        attempts = 0
        while True:
            try:
                renewed = await hubs.join()
            except FetchError as error:
                attempts += 1
                least = error.retry_after or 0.0
                delay = self.callbacks.terms.retry.delay(attempts, self.random, at_least=least)
                if silence.due <= loop.time() or member.expires <= loop.time() + delay:
                    raise
                await asyncio.sleep(delay)
            else:
                silence.end(loop.time())
                return renewed

    async def _end_later(self, member: HubMember, hubs: HubMembership) -> None:
        await asyncio.sleep(self.callbacks.terms.settle)
        await hubs.leave(member, self.callbacks.terms.patience)


def _end(ended: asyncio.Future[None], error: BaseException) -> None:
    if not ended.done():
        ended.set_exception(error)


async def _pass_on(inbox: DeliveryInbox, listener: TransportListener) -> None:
    while True:
        listener.fragment(await inbox.get())
        await asyncio.sleep(0)  # so that many deliveries do not block the event loop


async def _catch_up(listener: TransportListener, settle: float) -> None:
    listener.gap()
    await asyncio.sleep(settle)
    listener.gap()
