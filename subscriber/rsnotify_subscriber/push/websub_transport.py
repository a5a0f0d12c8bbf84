"""WebSub: subscribing to a topic, and receiving fragments at a callback (docs/protocol.md).

`discover_topic` finds the hubs and the canonical URL of a topic (WebSub §4). `HubMembership`
subscribes at a hub, and unsubscribes from it (WebSub §5). `WebSubTransport` receives the fragments.

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
from dataclasses import dataclass, field
from functools import partial
from random import Random

import aiohttp
from msgspec import Struct

from rsnotify.errors import FetchError, Unavailable
from rsnotify.format.datetimes import Instant
from rsnotify.format.links import html_links, parse_links, resolve, xml_links
from rsnotify.format.model import Rel
from rsnotify.runtime.tasks import Tasks
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


@dataclass
class HubMembership:
    """Subscribes to one topic, and renews the subscription.

    Args:
        channel: The topic, as the Source's documents name it.
        hubs: The hubs in those documents, used if the topic itself names none.
        sessions: The HTTP requests of the subscriber.
        callbacks: The callbacks at which hubs reach this process.
        inbox: The queue for deliveries.
    """

    channel: str
    hubs: tuple[str, ...]
    sessions: Sessions
    callbacks: Callbacks
    inbox: DeliveryInbox
    _members: list[HubMember] = field(default_factory=list, init=False)

    async def join(self) -> HubMember:
        """Subscribe to the topic's current URL at the first hub that accepts (WebSub §6.1).

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
        """Try to unsubscribe within this many seconds.

        A hub that does not receive the request gets a 410 response to its next delivery.
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


#: Seconds for hubs to answer an unsubscription when this process stops.
_GOODBYE = 2.0


@dataclass
class WebSubTransport:
    """A subscription at a hub, renewed until it fails. Implements `Transport`.

    Args:
        channel: The topic, as the Source's documents name it.
        hubs: The hubs in those documents, used if the topic itself names none.
        sessions: The HTTP requests of the subscriber.
        callbacks: The callbacks at which hubs reach this process.
        random: The source of randomness for renewals and backoff.
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
        """Subscribe again whenever it is due, and then end the previous subscription."""
        while True:
            await self._until_due(member, silence)
            before, member = member, await self._renewed(member, hubs, silence)
            if member.hub != before.hub:
                listener.up(member.hub)
            tasks.spawn(self._end_later(before, hubs))

    async def _until_due(self, member: HubMember, silence: HubSilence) -> None:
        """Wait for at least half of the lease, or until the hub has been silent for too long."""
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
        """Subscribe again. If the hub still delivers, retry until the end of the lease."""
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
