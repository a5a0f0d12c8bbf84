"""Receives fragments by WebSub (docs/protocol.md).

`discover_topic` finds the hubs and the canonical URL of a topic (WebSub §4). `HubMembership`
subscribes at a hub, and unsubscribes from it (WebSub §5).

A hub delivers only changes from after the subscription began. Earlier ones are pulled twice: right
after the verification, and again once the hub should have begun to deliver. To renew a lease, the
transport makes a new subscription with its own callback and secret, and then ends the old one. If
both deliver a fragment, the second is a duplicate.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random

import aiohttp
from msgspec import Struct

from rsnotify.errors import FetchError, Unavailable
from rsnotify.format.datetimes import Instant
from rsnotify.format.links import html_links, parse_links, resolve, xml_links
from rsnotify.format.model import Rel
from rsnotify.runtime.tasks import Tasks, settle
from rsnotify_subscriber.fetching.responses import check_status, read_beginning, retry_after
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_subscriber.push.transport import TransportListener
from rsnotify_subscriber.push.websub_callbacks import (
    CallbackRoute,
    Callbacks,
    DeliveryInbox,
    HubSilence,
    SubscriptionMode,
)

logger = logging.getLogger("rsnotify.subscriber.websub")

#: Maximum number of bytes at the beginning of a topic to search for links.
_SEARCHED_BYTES = 1_000_000
_HTML = ("text/html", "application/xhtml+xml")

_Links = Sequence[tuple[str, str]]


class DiscoveredTopic(Struct, frozen=True):
    """The links of a topic.

    Args:
        topic: The canonical URL of the topic, for subscribing.
        hubs: The WebSub hubs of the topic, beginning with those that use https (WebSub §8.2).
    """

    topic: str
    hubs: tuple[str, ...]


async def discover_topic(sessions: Sessions, uri: str) -> DiscoveredTopic:
    """GET a topic, and return its links, from Link headers or else from its body."""
    async with sessions.get(uri, {"Accept-Encoding": "gzip"}) as response:
        check_status(uri, response)
        place = str(response.url)
        links: _Links = parse_links(response.headers.getall("Link", []))
        found = _discovered(place, links)
        if found.hubs and _targets(place, links, Rel.SELF):
            return found  # without reading the body, which may be large
        beginning = await read_beginning(uri, response, _SEARCHED_BYTES)
        return _discovered(place, links, embedded_links(beginning, response.content_type))


def embedded_links(beginning: bytes, content_type: str) -> _Links:
    """Return the links at the beginning of an HTML page, a feed or a Sitemap."""
    if content_type in _HTML:
        return html_links(beginning.decode(errors="replace"))
    return xml_links(beginning) if "xml" in content_type else []


def _discovered(place: str, links: _Links, embedded: _Links = ()) -> DiscoveredTopic:
    topics = _targets(place, links, Rel.SELF) or _targets(place, embedded, Rel.SELF) or [place]
    hubs = _hubs(place, links) or _hubs(place, embedded)
    return DiscoveredTopic(topics[0], tuple(sorted(hubs, key=lambda hub: hub[:6] != "https:")))


def _hubs(place: str, links: _Links) -> list[str]:
    """Return the hubs with HTTP URIs. Other hubs do not use WebSub."""
    hubs = dict.fromkeys(_targets(place, links, Rel.HUB))
    return [hub for hub in hubs if hub.startswith(("http:", "https:"))]


def _targets(place: str, links: _Links, relation: str) -> list[str]:
    return [resolve(place, target) for rel, target in links if rel.lower() == relation]


#: Maximum number of bytes of a hub's reason to include in a message.
_REASON_BYTES = 200
#: Seconds before the next request to a hub that denied a subscription.
_DENIED_DELAY = 300.0


@dataclass(eq=False)
class HubMember:
    """A subscription at a hub."""

    hub: str
    callback: CallbackRoute

    @property
    def expires(self) -> float:
        """When the lease ends, on the clock of the event loop."""
        return self.callback.subscription.expires

    async def failure(self) -> None:
        """Wait until the hub can no longer deliver, and raise `Unavailable`."""
        await self.callback.until(lambda one: one.is_over or one.weak)
        self.check()

    def check(self) -> None:
        """Raise `Unavailable` if the hub can no longer deliver."""
        subscription = self.callback.subscription
        if subscription.is_over:
            why = f": {subscription.denial!r}" if subscription.denial else ""
            raise Unavailable(self.hub, f"it denied the subscription{why}", _DENIED_DELAY)
        if subscription.weak:
            how = "which is not accepted; to accept it, add it to the signature methods"
            raise Unavailable(self.hub, f"it signs with {subscription.weak}, {how}", _DENIED_DELAY)


#: Seconds for hubs to confirm an unsubscription when this process stops.
_UNSUBSCRIBE_TIMEOUT = 2.0


@dataclass
class WebSubTransport:
    """A subscription at a hub, renewed until it fails. Implements `Transport`.

    Args:
        channel: The topic, as the Source's documents name it.
        hubs: The hubs that these documents name, for a topic that names none.
        callbacks: The callbacks of this process.
    """

    channel: str
    hubs: tuple[str, ...]
    sessions: Sessions
    callbacks: Callbacks

    async def receive(self, since: Instant | None, listener: TransportListener) -> None:
        await HubMembership(self, listener).receive()


class HubMembership:
    """Subscribes to the topic of a transport, and renews the subscription until that fails."""

    def __init__(self, transport: WebSubTransport, listener: TransportListener) -> None:
        self._transport = transport
        self._callbacks = transport.callbacks
        self._terms = transport.callbacks.terms
        self._listener = listener
        self._random = Random()
        self._loop = asyncio.get_running_loop()
        self._silence = HubSilence(self._loop.time(), self._terms.quiet)
        self._inbox = DeliveryInbox(self._silence)
        self._members: list[HubMember] = []
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._tasks = Tasks(partial(settle, self._ended))

    async def receive(self) -> None:
        try:
            member = await self.join()
            self._silence.end(self._loop.time())
            self._listener.up(member.hub)
            self._tasks.spawn(self._pass_on())
            self._tasks.spawn(self._catch_up())
            self._tasks.spawn(self._renew_forever(member))
            await self._ended
        finally:
            await self._tasks.cancel()
            await asyncio.gather(*(self._leave(one, _UNSUBSCRIBE_TIMEOUT) for one in self._members))

    async def _pass_on(self) -> None:
        while True:
            self._listener.fragment(await self._inbox.get())
            await asyncio.sleep(0)  # many deliveries must not block the event loop

    async def _catch_up(self) -> None:
        self._listener.gap()
        await asyncio.sleep(self._terms.settle)
        self._listener.gap()

    # Subscribing and unsubscribing

    async def join(self) -> HubMember:
        """Subscribe to the topic's current URL at the first hub that accepts (WebSub §6.1).

        Raises:
            FetchError: No hub accepted the subscription.
        """
        found = await self._discover()
        failure: FetchError = Unavailable(
            self._transport.channel, "it names no hub that supports WebSub"
        )
        for hub in found.hubs:
            try:
                return await self._join(hub, found.topic)
            except FetchError as error:
                failure = error
        raise failure

    async def _discover(self) -> DiscoveredTopic:
        channel, hubs = self._transport.channel, self._transport.hubs
        try:
            found = await discover_topic(self._transport.sessions, channel)
        except FetchError as error:
            if not hubs:
                raise
            logger.info("using the hubs that the Source's documents name: %s", error)
            return DiscoveredTopic(channel, hubs)
        return found if found.hubs else DiscoveredTopic(found.topic, hubs)

    async def _join(self, hub: str, topic: str) -> HubMember:
        member = HubMember(hub, self._callbacks.open(topic, self._inbox))
        self._members.append(member)  # before the request, in case this is cancelled
        try:
            await self._request(member, SubscriptionMode.SUBSCRIBE)
            async with asyncio.timeout(self._terms.patience):
                await member.callback.until(lambda one: one.is_active or one.is_over)
            member.check()
            self._check_lease(member)
        except TimeoutError:
            self._forget(member)
            raise Unavailable(hub, self._why_unconfirmed(member)) from None
        except FetchError:
            self._forget(member)
            raise
        return member

    def _check_lease(self, member: HubMember) -> None:
        granted = member.callback.subscription.granted
        if granted < min(self._terms.shortest_lease, self._terms.lease):
            reason = f"it grants a lease of only {granted} s; check its settings"
            raise Unavailable(member.hub, reason, _DENIED_DELAY)

    def _forget(self, member: HubMember) -> None:
        self._callbacks.close(member.callback)
        self._members.remove(member)

    def _why_unconfirmed(self, member: HubMember) -> str:
        refused = member.callback.subscription.refused
        if refused is not None:
            return f"it sent a verification {refused}, which is wrong (WebSub §5.3)"
        patience, url = self._terms.patience, self._callbacks.url
        return f"it sent no verification within {patience:g} s; can it reach {url}?"

    async def _request(self, member: HubMember, mode: SubscriptionMode) -> None:
        form = member.callback.subscription.request(mode, self._loop.time() + self._terms.patience)
        async with self._transport.sessions.post(member.hub, form) as response:
            if not 200 <= response.status < 300:
                reason = f"it answered {response.status} to {mode}{await _reason(response)}"
                raise Unavailable(member.hub, reason, retry_after(response))

    async def _leave(self, member: HubMember, seconds: float) -> None:
        """Try to unsubscribe within `seconds`.

        A hub that did not receive the request gets a 410 response to its next delivery.
        """
        with suppress(FetchError, TimeoutError):
            if member.callback.subscription.is_active:
                async with asyncio.timeout(seconds):
                    await self._request(member, SubscriptionMode.UNSUBSCRIBE)
                    await member.callback.until(lambda one: one.is_over)
        self._forget(member)

    # Renewing

    async def _renew_forever(self, member: HubMember) -> None:
        """Subscribe again whenever the renewal is due, then end the previous subscription."""
        while True:
            await self._until_due(member)
            before, member = member, await self._renewed(member)
            if member.hub != before.hub:
                self._listener.up(member.hub)
            self._tasks.spawn(self._leave_later(before))

    async def _until_due(self, member: HubMember) -> None:
        """Wait for half of the lease or more, or until the hub has been silent for too long."""
        left = member.expires - self._loop.time()
        due = member.expires - left * (0.25 + self._random.random() / 4)
        while (now := self._loop.time()) < (when := min(due, self._silence.due)):
            with suppress(TimeoutError):
                async with asyncio.timeout(when - now):
                    await member.failure()

    async def _renewed(self, member: HubMember) -> HubMember:
        """Subscribe again. Retry until the lease ends, or the hub has been silent for too long."""
        attempts = 0
        while True:
            try:
                renewed = await self.join()
            except FetchError as error:
                attempts += 1
                least = error.retry_after or 0.0
                delay = self._terms.retry.delay(attempts, self._random, at_least=least)
                now = self._loop.time()
                if self._silence.due <= now or member.expires <= now + delay:
                    raise
                await asyncio.sleep(delay)
            else:
                self._silence.end(self._loop.time())
                return renewed

    async def _leave_later(self, member: HubMember) -> None:
        await asyncio.sleep(self._terms.settle)
        await self._leave(member, self._terms.patience)


async def _reason(response: aiohttp.ClientResponse) -> str:
    beginning = await response.content.read(_REASON_BYTES)
    text = beginning.decode(errors="replace").strip()
    return f": {text!r}" if text else ""
