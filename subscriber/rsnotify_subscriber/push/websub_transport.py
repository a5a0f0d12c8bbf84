"""WebSub: subscribing to a topic, and receiving fragments at a callback (docs/protocol.md).

`discover_topic` finds the hubs and the canonical URL of a topic (WebSub §4). `HubMembership`
subscribes at a hub, and unsubscribes from it (WebSub §5).

A hub delivers only changes from after the subscription began, so earlier ones are pulled: once
after the verification, and once more when the hub must have begun to deliver. A lease is renewed
with a new subscription that has its own callback and secret. The old one is ended only after that,
and a fragment that both deliver counts once.
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

#: Maximum number of bytes of a topic that are searched for links, which are at its beginning.
_BEGINNING = 1_000_000
_HTML = ("text/html", "application/xhtml+xml")

_Links = Sequence[tuple[str, str]]


class DiscoveredTopic(Struct, frozen=True):
    """The links of a topic.

    Args:
        topic: The canonical URL of the topic, used for subscribing.
        hubs: The topic's hubs that support WebSub, those with https first (WebSub §8.2).
    """

    topic: str
    hubs: tuple[str, ...]


async def discover_topic(sessions: Sessions, uri: str) -> DiscoveredTopic:
    """GET a topic, and return its hubs from Link headers, or else from links in its body."""
    async with sessions.get(uri, {"Accept-Encoding": "gzip"}) as response:
        check_status(uri, response)
        place = str(response.url)
        links: _Links = parse_links(response.headers.getall("Link", []))
        found = _discovered(place, links)
        if found.hubs and _targets(place, links, Rel.SELF):
            return found  # without the body, which may be large
        beginning = await read_beginning(uri, response, _BEGINNING)
        return _discovered(place, links, embedded(beginning, response.content_type))


def embedded(beginning: bytes, content_type: str) -> _Links:
    """Return the links in (the beginning of) a body that is HTML, a feed or a Sitemap."""
    if content_type in _HTML:
        return html_links(beginning.decode(errors="replace"))
    return xml_links(beginning) if "xml" in content_type else []


def _discovered(place: str, links: _Links, embedded: _Links = ()) -> DiscoveredTopic:
    topics = _targets(place, links, Rel.SELF) or _targets(place, embedded, Rel.SELF) or [place]
    hubs = _hubs(place, links) or _hubs(place, embedded)
    return DiscoveredTopic(topics[0], tuple(sorted(hubs, key=lambda hub: hub[:6] != "https:")))


def _hubs(place: str, links: _Links) -> list[str]:
    """Return the hubs with HTTP URIs. A Source may also name others."""
    hubs = dict.fromkeys(_targets(place, links, Rel.HUB))
    return [hub for hub in hubs if hub.startswith(("http:", "https:"))]


def _targets(place: str, links: _Links, relation: str) -> list[str]:
    return [resolve(place, target) for rel, target in links if rel.lower() == relation]


logger = logging.getLogger("rsnotify.subscriber.websub")

#: Maximum number of bytes of a hub's reason that are read and repeated in a message.
_REASON = 200
#: Seconds to wait before the next request to a hub that has denied a subscription.
_DENIED = 300.0


@dataclass(eq=False)
class HubMember:
    """A subscription that a hub has confirmed."""

    hub: str
    callback: CallbackRoute

    @property
    def expires(self) -> float:
        """When the lease ends, on the clock of the event loop."""
        return self.callback.subscription.expires

    async def failure(self) -> None:
        """Wait until the hub can no longer deliver, then raise `Unavailable`."""
        await self.callback.until(lambda one: one.is_over or one.weak)
        self.check()

    def check(self) -> None:
        """Raise `Unavailable` if the hub can no longer deliver."""
        subscription = self.callback.subscription
        if subscription.is_over:
            why = f": {subscription.denial!r}" if subscription.denial else ""
            raise Unavailable(self.hub, f"it denies the subscription{why}", _DENIED)
        if subscription.weak:
            how = "which is not accepted; name that method among the signatures that are"
            raise Unavailable(self.hub, f"it signs with {subscription.weak}, {how}", _DENIED)


#: Seconds for hubs to answer an unsubscription when this process stops.
_GOODBYE = 2.0


@dataclass
class WebSubTransport:
    """A subscription at a hub, renewed until it fails. Implements `Transport`.

    Args:
        channel: The topic, as the Source's documents name it.
        hubs: The hubs in those documents, used if the topic itself names none.
        callbacks: The callbacks at which hubs reach this process.
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
            await asyncio.gather(*(self._leave(one, _GOODBYE) for one in self._members))

    async def _pass_on(self) -> None:
        while True:
            self._listener.fragment(await self._inbox.get())
            await asyncio.sleep(0)  # so that many deliveries do not block the event loop

    async def _catch_up(self) -> None:
        self._listener.gap()
        await asyncio.sleep(self._terms.settle)
        self._listener.gap()

    # Subscribing and unsubscribing

    async def join(self) -> HubMember:
        """Subscribe to the topic's current URL at the first hub that accepts (WebSub §6.1).

        Raises:
            FetchError: No hub accepted.
        """
        found = await self._discover()
        failure: FetchError = Unavailable(
            self._transport.channel, "it names no hub that speaks WebSub"
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
            logger.info("the hubs are those that the Source's documents name: %s", error)
            return DiscoveredTopic(channel, hubs)
        return found if found.hubs else DiscoveredTopic(found.topic, hubs)

    async def _join(self, hub: str, topic: str) -> HubMember:
        member = HubMember(hub, self._callbacks.open(topic, self._inbox))
        self._members.append(member)  # before the request, so that it is ended if this is cancelled
        try:
            await self._request(member, SubscriptionMode.SUBSCRIBE)
            async with asyncio.timeout(self._terms.patience):
                await member.callback.until(lambda one: one.is_active or one.is_over)
            member.check()
            self._check_lease(member)
        except TimeoutError:
            self._forget(member)
            raise Unavailable(hub, self._unconfirmed(member)) from None
        except FetchError:
            self._forget(member)
            raise
        return member

    def _check_lease(self, member: HubMember) -> None:
        granted = member.callback.subscription.granted
        if granted < min(self._terms.shortest_lease, self._terms.lease):
            reason = f"it grants a lease of only {granted} s; check its settings"
            raise Unavailable(member.hub, reason, _DENIED)

    def _forget(self, member: HubMember) -> None:
        self._callbacks.close(member.callback)
        self._members.remove(member)

    def _unconfirmed(self, member: HubMember) -> str:
        refused = member.callback.subscription.refused
        if refused is not None:
            return f"it sent a verification {refused}, which cannot be confirmed (WebSub §5.3)"
        patience, url = self._terms.patience, self._callbacks.url
        return f"it sent no verification within {patience:g} s; can it reach {url}?"

    async def _request(self, member: HubMember, mode: SubscriptionMode) -> None:
        form = member.callback.subscription.request(mode, self._loop.time() + self._terms.patience)
        async with self._transport.sessions.post(member.hub, form) as response:
            if not 200 <= response.status < 300:
                reason = f"it answers {response.status} to {mode}{await _reason(response)}"
                raise Unavailable(member.hub, reason, retry_after(response))

    async def _leave(self, member: HubMember, seconds: float) -> None:
        """Try to unsubscribe within this many seconds.

        A hub that does not receive the request gets a 410 response to its next delivery.
        """
        with suppress(FetchError, TimeoutError):
            if member.callback.subscription.is_active:
                async with asyncio.timeout(seconds):
                    await self._request(member, SubscriptionMode.UNSUBSCRIBE)
                    await member.callback.until(lambda one: one.is_over)
        self._forget(member)

    # Renewing

    async def _renew_forever(self, member: HubMember) -> None:
        """Subscribe again whenever it is due, and then end the previous subscription."""
        while True:
            await self._until_due(member)
            before, member = member, await self._renewed(member)
            if member.hub != before.hub:
                self._listener.up(member.hub)
            self._tasks.spawn(self._end_later(before))

    async def _until_due(self, member: HubMember) -> None:
        """Wait for at least half of the lease, or until the hub has been silent for too long."""
        left = member.expires - self._loop.time()
        due = member.expires - left * (0.25 + self._random.random() / 4)
        while (now := self._loop.time()) < (when := min(due, self._silence.due)):
            with suppress(TimeoutError):
                async with asyncio.timeout(when - now):
                    await member.failure()

    async def _renewed(self, member: HubMember) -> HubMember:
        """Subscribe again. If the hub still delivers, retry until the end of the lease."""
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

    async def _end_later(self, member: HubMember) -> None:
        await asyncio.sleep(self._terms.settle)
        await self._leave(member, self._terms.patience)


async def _reason(response: aiohttp.ClientResponse) -> str:
    beginning = await response.content.read(_REASON)
    text = beginning.decode(errors="replace").strip()
    return f": {text!r}" if text else ""
