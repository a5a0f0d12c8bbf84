"""Subscribing at a hub, and taking leave of it (WebSub §5)."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import aiohttp

from rsnotify.errors import FetchError, Unavailable
from rsnotify_subscriber.fetching.responses import retry_after
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_subscriber.push.websub.callbacks import CallbackRoute, Callbacks
from rsnotify_subscriber.push.websub.discovery import DiscoveredTopic, discover_topic
from rsnotify_subscriber.push.websub.inbox import DeliveryInbox
from rsnotify_subscriber.push.websub.subscription import SubscriptionMode

logger = logging.getLogger("rsnotify.subscriber.websub")

#: How much of a hub's reason is told, and read, in bytes.
_REASON = 200
#: Seconds before a hub is asked again that has said no.
_DENIED = 300.0


class HubMember:
    """A subscription that a hub has confirmed.

    Args:
        hub: The hub.
        callback: Where it delivers.
    """

    def __init__(self, hub: str, callback: CallbackRoute) -> None:
        self.hub = hub
        self.callback = callback

    @property
    def expires(self) -> float:
        """When its lease ends, in seconds of the event loop."""
        return self.callback.subscription.expires

    async def trouble(self) -> None:
        """Wait for what keeps the hub from delivering.

        Raises:
            Unavailable: That has come.
        """
        await self.callback.until(lambda one: one.is_over or one.weak)
        self.check()

    def check(self) -> None:
        """Go on only if nothing keeps the hub from delivering.

        Raises:
            Unavailable: Something does.
        """
        subscription = self.callback.subscription
        if subscription.is_over:
            why = f": {subscription.denial!r}" if subscription.denial else ""
            raise Unavailable(self.hub, f"it denies the subscription{why}", _DENIED)
        if subscription.weak:
            how = "which is not taken; name that method among the signatures that are"
            raise Unavailable(self.hub, f"it signs with {subscription.weak}, {how}", _DENIED)


class HubMembership:
    """Subscribes to one topic, again and again.

    Args:
        channel: The topic, as the Source's documents name it.
        hubs: The hubs that they name, for where the topic names none itself.
        sessions: The HTTP client sessions.
        callbacks: Where hubs reach us.
        inbox: Where content goes.
    """

    def __init__(
        self,
        channel: str,
        hubs: tuple[str, ...],
        sessions: Sessions,
        callbacks: Callbacks,
        inbox: DeliveryInbox,
    ) -> None:
        self._channel = channel
        self._hubs = hubs
        self._sessions = sessions
        self._callbacks = callbacks
        self._inbox = inbox
        self._patience = callbacks.terms.patience
        self._members: list[HubMember] = []

    async def join(self) -> HubMember:
        """Subscribe at the first hub that lets us, to what the topic is now (WebSub §6.1).

        Raises:
            FetchError: None did.
        """
        found = await self._find()
        failure: FetchError = Unavailable(self._channel, "it names no hub that speaks WebSub")
        for hub in found.hubs:
            try:
                return await self._join(hub, found.topic)
            except FetchError as error:
                failure = error
        raise failure

    async def _find(self) -> DiscoveredTopic:
        try:
            found = await discover_topic(self._sessions, self._channel)
        except FetchError as error:
            if not self._hubs:
                raise
            logger.info("the hubs are those that the Source's documents name: %s", error)
            return DiscoveredTopic(self._channel, self._hubs)
        return found if found.hubs else DiscoveredTopic(found.topic, self._hubs)

    async def _join(self, hub: str, topic: str) -> HubMember:
        member = HubMember(hub, self._callbacks.open(topic, self._inbox))
        self._members.append(member)  # also one that is given up halfway has to be left
        try:
            await self._ask(member, SubscriptionMode.SUBSCRIBE)
            async with asyncio.timeout(self._patience):
                await member.callback.until(lambda one: one.is_active or one.is_over)
            member.check()
        except TimeoutError:
            self._forget(member)
            raise Unavailable(hub, self._unconfirmed(member)) from None
        except FetchError:
            self._forget(member)
            raise
        return member

    def _forget(self, member: HubMember) -> None:
        self._callbacks.close(member.callback)
        self._members.remove(member)

    def _unconfirmed(self, member: HubMember) -> str:
        where, refused = self._callbacks.url, member.callback.subscription.refused
        if refused is not None:
            return f"it asked back {refused}, which cannot be confirmed (WebSub §5.3)"
        return f"it did not ask back within {self._patience:g} s; can it reach {where}?"

    async def _ask(self, member: HubMember, mode: SubscriptionMode) -> None:
        until = asyncio.get_running_loop().time() + self._patience
        form = member.callback.subscription.want(mode, until)
        async with self._sessions.post(member.hub, form) as response:
            if not 200 <= response.status < 300:
                reason = f"it answers {response.status} to {mode}{await _said(response)}"
                raise Unavailable(member.hub, reason, retry_after(response))

    async def leave(self, member: HubMember, seconds: float) -> None:
        """Unsubscribe, as far as that can be done in some seconds.

        A hub that does not hear of it hears of it when it delivers next.
        """
        with suppress(FetchError, TimeoutError):
            if member.callback.subscription.is_active:
                async with asyncio.timeout(seconds):
                    await self._ask(member, SubscriptionMode.UNSUBSCRIBE)
                    await member.callback.until(lambda one: one.is_over)
        self._forget(member)

    async def leave_all(self, seconds: float) -> None:
        """Unsubscribe everywhere, as far as that can be done in some seconds."""
        await asyncio.gather(*(self.leave(member, seconds) for member in self._members))


async def _said(response: aiohttp.ClientResponse) -> str:
    said = await response.content.read(_REASON)
    text = said.decode(errors="replace").strip()
    return f": {text!r}" if text else ""
