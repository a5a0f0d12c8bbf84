"""Feeds a hub over HTTP: posts fragments, or pings the hub, which then fetches the channel.

WebSub §7 does not specify how a publisher notifies a hub. Many hubs accept only the form
`hub.mode=publish`. Such a hub refuses the first fragment and is pinged from then on.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urljoin

import aiohttp
from aiohttp.abc import ResolveResult

from rsnotify.format.datetimes import parse_http_date
from rsnotify.format.links import format_links
from rsnotify.format.model import Rel
from rsnotify.runtime.addresses import TIMEOUT, AddressResolver, Connector, Dialer
from rsnotify.sync.retry import parse_retry_after
from rsnotify_publisher.hubs import Hub, HubFailure
from rsnotify_publisher.push.hub_feed import HubFeed

#: Seconds within which a hub must respond.
RESPONSE_TIMEOUT = 30.0
#: The status code of a refusal that concerns the Source, so that every node would repeat it.
TOO_MANY_REQUESTS = 429
#: Status codes from a hub that does not accept fragments by POST.
_FRAGMENTS_UNSUPPORTED = frozenset({400, 405, 406, 411, 415, 422, 501})
#: Client errors that a retry may resolve.
_TRANSIENT_STATUSES = frozenset({408, 421, 423, 425, 429})


async def feed_by_post(hub: Hub, topic: str, feed: HubFeed, dialer: Dialer) -> None:
    """Post fragments one by one, or ping a hub that does not accept them, until an error occurs."""
    timeout = aiohttp.ClientTimeout(total=RESPONSE_TIMEOUT, sock_connect=TIMEOUT)
    connector = Connector(resolver=_OrderedResolver(dialer), socket_factory=dialer.create_socket)
    async with (
        aiohttp.ClientSession(connector=connector, headers=hub.headers, timeout=timeout) as session,
        aclosing(feed.fragments()) as fragments,
    ):
        requests = _HubRequests(session, hub, topic)
        is_pinged = False
        fetched = None
        async for fragment in fragments:
            refusal = None if is_pinged else await requests.post(fragment.body)
            if is_pinged or refusal is not None:
                last = fragment.from_ if fragment.is_heartbeat else fragment.until
                if fetched is None or last > fetched:
                    # A hub that is pinged too early would fetch a channel without the change.
                    fetched = await feed.stream.wait_until_documented(last)
                    if (failure := await requests.ping()) is not None:
                        raise failure if refusal is None or failure.remedy is None else refusal
            if refusal is not None:
                feed.pinged(hub.uri, refusal.reason)
                is_pinged = True
            feed.accepted(fragment.until)


class _OrderedResolver(AddressResolver):
    """A resolver that sorts addresses to the end that failed in earlier attempts."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await super().resolve(host, port, family)
        by_address = {(each["host"], each["port"]): each for each in found}
        return [by_address[address] for address in self._dialer.memory.order(by_address)]


@dataclass
class _HubRequests:
    session: aiohttp.ClientSession
    hub: Hub
    topic: str

    async def post(self, body: bytes) -> HubFailure | None:
        """Post a fragment. Return the hub's refusal if it may accept pings instead."""
        headers = {
            "Content-Type": "application/xml",
            "Link": format_links([(Rel.SELF, self.topic), (Rel.HUB, self.hub.uri)]),
        }
        status, refusal = await self._send(body, headers)
        if refusal is not None and status not in _FRAGMENTS_UNSUPPORTED:
            raise refusal
        return refusal

    async def ping(self) -> HubFailure | None:
        """Ask the hub to fetch the channel. Return its refusal, if any."""
        # The field is `hub.topic` in WebSub and `hub.url` in PubSubHubbub 0.4; hubs read either.
        form = {"hub.mode": "publish", "hub.topic": self.topic, "hub.url": self.topic}
        _, refusal = await self._send(aiohttp.FormData(form), {})
        return refusal

    async def _send(
        self, data: bytes | aiohttp.FormData, headers: dict[str, str]
    ) -> tuple[int, HubFailure | None]:
        async with self.session.post(
            self.hub.uri, data=data, headers=headers, allow_redirects=False
        ) as response:
            status = response.status
            if 200 <= status < 300:
                return status, None
            text = (await response.content.read(200)).decode(errors="replace").strip()
            reason = f"it answered {status} {response.reason}: {text}".rstrip(": ")
            location = response.headers.get("Location", "")
            return status, HubFailure(
                self.hub.uri,
                reason,
                seconds_to_wait(response.headers),
                remedy=remedy(self.hub, self.topic, status, location),
                everywhere=status == TOO_MANY_REQUESTS,
            )


def seconds_to_wait(headers: Mapping[str, str]) -> float:
    """Return the delay in seconds that a `Retry-After` header requests, or 0 without one.

    A date in the header refers to the hub's clock, which the `Date` header shows.
    """
    now = parse_http_date(headers.get("Date", "")) or datetime.now(UTC)
    return parse_retry_after(headers.get("Retry-After", ""), now) or 0.0


def remedy(hub: Hub, topic: str, status: int, location: str = "") -> str | None:
    """Return what the user must do, as a clause, or None if a retry may help."""
    if status in (401, 403):
        if not hub.token:
            return f"give the Source a token that the hub accepts for {topic}"
        return (
            f"the hub does not accept this token for {topic}: replace the token, grant it the "
            "topic at the hub, or remove it if the hub requires none"
        )
    if status == 413:
        return "raise the hub's limit for requests, or lower `fragment_bytes`"
    if 300 <= status < 400 and location:
        return f"change the hub's URL to {urljoin(hub.uri, location)}"
    if 300 <= status < 500 and status not in _TRANSIENT_STATUSES:
        return "check the hub's URL, and whether the hub accepts this Source"
    return None
