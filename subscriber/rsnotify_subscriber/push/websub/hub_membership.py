"""Subscribing at a hub, and unsubscribing from it (WebSub §5)."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field

import aiohttp

from rsnotify.errors import FetchError, Unavailable
from rsnotify_subscriber.fetching.responses import retry_after
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_subscriber.push.websub.callbacks import CallbackRoute, Callbacks
from rsnotify_subscriber.push.websub.discovery import DiscoveredTopic, discover_topic
from rsnotify_subscriber.push.websub.inbox import DeliveryInbox
from rsnotify_subscriber.push.websub.subscription import SubscriptionMode

logger = logging.getLogger("rsnotify.subscriber.websub")

#: The most bytes of a hub's reason that are read, and repeated in a message.
_REASON = 200
#: The seconds before the next request to a hub that has denied a subscription.
_DENIED = 300.0


@dataclass(eq=False)
class HubMember:
    """A subscription that a hub has confirmed."""

    hub: str
    callback: CallbackRoute

    @property
    def expires(self) -> float:
        """When its lease ends, in seconds of the event loop."""
        return self.callback.subscription.expires

    async def failure(self) -> None:
        """Wait until something keeps the hub from delivering; then raise `Unavailable`."""
        await self.callback.until(lambda one: one.is_over or one.weak)
        self.check()

    def check(self) -> None:
        """Raise `Unavailable` if something keeps the hub from delivering."""
        subscription = self.callback.subscription
        if subscription.is_over:
            why = f": {subscription.denial!r}" if subscription.denial else ""
            raise Unavailable(self.hub, f"it denies the subscription{why}", _DENIED)
        if subscription.weak:
            how = "which is not accepted; name that method among the signatures that are"
            raise Unavailable(self.hub, f"it signs with {subscription.weak}, {how}", _DENIED)


@dataclass
class HubMembership:
    """Subscribes to one topic, and renews the subscription.

    Args:
        channel: The topic, as the Source's documents name it.
        hubs: The hubs that they name, for a topic that names none itself.
    """

    channel: str
    hubs: tuple[str, ...]
    sessions: Sessions
    callbacks: Callbacks
    inbox: DeliveryInbox
    _members: list[HubMember] = field(default_factory=list, init=False)

    async def join(self) -> HubMember:
        """Subscribe at the first hub that accepts, to the topic's present URL (WebSub §6.1).

        Raises:
            FetchError: No hub accepted.
        """
        found = await self._discover()
        failure: FetchError = Unavailable(self.channel, "it names no hub that speaks WebSub")
        for hub in found.hubs:
            try:
                return await self._join(hub, found.topic)
            except FetchError as error:
                failure = error
        raise failure

    async def _discover(self) -> DiscoveredTopic:
        try:
            found = await discover_topic(self.sessions, self.channel)
        except FetchError as error:
            if not self.hubs:
                raise
            logger.info("the hubs are those that the Source's documents name: %s", error)
            return DiscoveredTopic(self.channel, self.hubs)
        return found if found.hubs else DiscoveredTopic(found.topic, self.hubs)

    async def _join(self, hub: str, topic: str) -> HubMember:
        member = HubMember(hub, self.callbacks.open(topic, self.inbox))
        self._members.append(member)  # before the request, so that `leave_all` includes it
        try:
            await self._request(member, SubscriptionMode.SUBSCRIBE)
            async with asyncio.timeout(self.callbacks.terms.patience):
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
        self.callbacks.close(member.callback)
        self._members.remove(member)

    def _unconfirmed(self, member: HubMember) -> str:
        refused = member.callback.subscription.refused
        if refused is not None:
            return f"it sent a verification {refused}, which cannot be confirmed (WebSub §5.3)"
        patience, url = self.callbacks.terms.patience, self.callbacks.url
        return f"it sent no verification within {patience:g} s; can it reach {url}?"

    async def _request(self, member: HubMember, mode: SubscriptionMode) -> None:
        until = asyncio.get_running_loop().time() + self.callbacks.terms.patience
        form = member.callback.subscription.request(mode, until)
        async with self.sessions.post(member.hub, form) as response:
            if not 200 <= response.status < 300:
                reason = f"it answers {response.status} to {mode}{await _reason(response)}"
                raise Unavailable(member.hub, reason, retry_after(response))

    async def leave(self, member: HubMember, seconds: float) -> None:
        """Unsubscribe, as far as that can be done in some seconds.

        A hub that does not receive the request gets 410 for its next delivery.
        """
        with suppress(FetchError, TimeoutError):
            if member.callback.subscription.is_active:
                async with asyncio.timeout(seconds):
                    await self._request(member, SubscriptionMode.UNSUBSCRIBE)
                    await member.callback.until(lambda one: one.is_over)
        self._forget(member)

    async def leave_all(self, seconds: float) -> None:
        await asyncio.gather(*(self.leave(member, seconds) for member in self._members))


async def _reason(response: aiohttp.ClientResponse) -> str:
    beginning = await response.content.read(_REASON)
    text = beginning.decode(errors="replace").strip()
    return f": {text!r}" if text else ""
