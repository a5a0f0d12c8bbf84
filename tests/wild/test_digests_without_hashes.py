"""A hub says what the digest of the whole set is, and the Source's lists have no hashes.

docs/audit.md. That the digest differs is known then, but not where: entries without hashes say
nothing of what is held. Either everything is fetched anew, or it is said that the copy differs.
"""

from __future__ import annotations

import pytest

from rsnotify.format.hashes import SetSum
from tests.wild.documents import md, seconds, sha256, urlset
from tests.wild.hub import WildHub, offer_hub
from tests.wild.running import Copy, outcome_of, pace, pushed, until
from tests.wild.source import WildSource

AUDIT = 'xmlns:audit="urn:uuid:1c73af33-b853-4b18-86f7-ed83600e2ed7"'


@pytest.fixture(autouse=True)
def begun(source: WildSource, hub: WildHub) -> None:
    source.files("a", "b", "c")
    source.list_resources(hashed=False)
    source.list_changes()
    offer_hub(source, hub)


def heartbeat(source: WildSource, from_: float, until_: float) -> bytes:
    """Say what the set is as of now, with nothing else."""
    held = SetSum()
    held.add((source.uri(name), sha256(content)) for name, content in source.resources.items())
    digest = held.digest()
    said = f'audit:count="{digest.count}" audit:hash="{digest.hash}" audit:digest="{digest.digest}"'
    told = md(
        capability="change-notification", from_=source.t(from_), until=source.t(until_)
    ).replace("<rs:md ", f"<rs:md {AUDIT} {said} ")
    return urlset((), told)


async def test_a_right_copy_is_in_step(source: WildSource, hub: WildHub, copy: Copy) -> None:
    async with pushed(hub, source, copy) as subscriber:
        await hub.deliver(heartbeat(source, 10, 20))
        await until(subscriber, lambda status: status.in_step is True)


@pytest.mark.parametrize("dated", [True, False], ids=["with lastmod", "without"])
async def test_a_change_that_no_list_tells_is_repaired_or_named(
    source: WildSource, hub: WildHub, copy: Copy, dated: bool
) -> None:
    hurried = pace(repair=0.2, lag_tries=2)
    async with pushed(hub, source, copy, pace=hurried) as subscriber:
        source.file("b", b"B", 15)
        if dated:
            source.put(
                "resourcelist.xml",
                urlset(
                    [
                        f"<url><loc>{source.uri(name)}</loc><lastmod>"
                        f"{seconds(source.t(15))}</lastmod></url>"
                        for name in source.resources
                    ],
                    md(capability="resourcelist", at=source.t(18)),
                ),
            )
        for number in range(6):
            await hub.deliver(heartbeat(source, 10 + number, 20 + number))
        await until(
            subscriber, lambda status: copy.files() == source.resources or status.in_step is False
        )
        if copy.files() != source.resources:
            outcome = outcome_of(subscriber.status)
            assert not outcome.claims
            assert outcome.reasons
