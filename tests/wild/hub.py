"""A hub that delivers whatever a test tells it to, true or not."""

from __future__ import annotations

from datetime import datetime

from tests.subscriber.hub import SmallHub
from tests.wild.documents import entry, fragment, ln, md, urlset
from tests.wild.source import Source


class Hub(SmallHub):
    """Serves WebSockets at `url`; `log` is what it replays to those who join.

    `push` sends a fragment to all who are subscribed, and keeps it for replay unless told not to.
    """

    async def push(
        self, entries: list[str], from_: datetime, until: datetime, *, keep: bool = True
    ) -> bytes:
        """Deliver a fragment of entries as `documents.entry` writes them; return its bytes."""
        text = fragment(entries, from_, until)
        await self.deliver(text)
        if keep:
            self.log.append((from_, until, text.decode()))
        return text

    async def deliver(self, data: bytes) -> None:
        for socket in list(self.sockets):
            await socket.send_str(data.decode())


def offer_hub(source: Source, hub: SmallHub) -> None:
    """Offer this hub in the Capability List of a Source."""
    names = {"resourcelist": "resourcelist.xml", "changelist": "changelist.xml"}
    entries = [entry(source.uri(name), capability=one) for one, name in names.items()]
    channel = entry(
        source.uri("channel.xml"), capability="change-notification", links=[ln("hub", hub.url)]
    )
    source.put("capabilitylist.xml", urlset([*entries, channel], md(capability="capabilitylist")))
