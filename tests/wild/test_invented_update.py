"""A hub delivers an update that never happened, dated an hour ahead, or with forged content.

The genuine change that comes then is dated earlier, and looks old. A different announced hash says
that it is another version: that wins over datetimes. Forged content agrees with a forged hash, so
that only the Source's own documents, or the resource itself, show it.
"""

from __future__ import annotations

import pytest

from tests.wild.documents import entry, inline, sha256
from tests.wild.hub import WildHub, offer_hub
from tests.wild.running import HURRIED, Copy, pace, polled, pushed, run_right, until, until_right
from tests.wild.source import WildSource

RARE = pace(poll=600.0, poll_with_push=600.0)
FORGED = b"forged"


@pytest.fixture(autouse=True)
def begun(source: WildSource, hub: WildHub) -> None:
    source.begin("a", "b", "c")
    offer_hub(source, hub)


def forged(source: WildSource, name: str, change: str, at: float, *, carried: bool = True) -> str:
    return entry(
        source.uri(name),
        change,
        datetime=source.t(at),
        content=FORGED,
        links=[inline(FORGED)] if carried else [],
    )


@pytest.mark.parametrize("carried", [True, False], ids=["inline", "hash only"])
@pytest.mark.parametrize("at", [50, 3650], ids=["dated now", "an hour ahead"])
async def test_the_next_poll_puts_it_right(
    source: WildSource, hub: WildHub, copy: Copy, at: float, carried: bool
) -> None:
    async with pushed(hub, source, copy, pace=HURRIED) as subscriber:
        lie = forged(source, "a", "updated", at, carried=carried)
        await hub.push([lie], source.t(10), source.t(at))
        await polled(subscriber, source)
        await until_right(subscriber, copy, source)


@pytest.mark.parametrize("carried", [True, False], ids=["inline", "hash only"])
async def test_the_genuine_update_wins_though_it_is_dated_earlier(
    source: WildSource, hub: WildHub, copy: Copy, carried: bool
) -> None:
    async with pushed(hub, source, copy, pace=HURRIED) as subscriber:
        lie = forged(source, "a", "updated", 3650, carried=carried)
        await hub.push([lie], source.t(10), source.t(3650))
        told = source.update("a", 60, b"genuine")
        source.list_changes(told)
        await hub.push([told], source.t(10), source.t(60))
        await until_right(subscriber, copy, source)


async def test_the_next_run_finds_the_genuine_one(
    source: WildSource, hub: WildHub, copy: Copy
) -> None:
    async with pushed(hub, source, copy, pace=RARE) as subscriber:
        lie = forged(source, "a", "updated", 3650)
        await hub.push([lie], source.t(10), source.t(3650))
        await until(subscriber, lambda _: copy.files().get("a") == FORGED)
    source.list_changes(source.update("a", 60, b"genuine"))
    await run_right(source, copy, pace=HURRIED)


async def test_what_never_was_there_is_removed_again(
    source: WildSource, hub: WildHub, copy: Copy
) -> None:
    async with pushed(hub, source, copy, pace=HURRIED) as subscriber:
        lie = forged(source, "x", "created", 50)
        await hub.push([lie], source.t(10), source.t(50))
        await polled(subscriber, source)
        await until_right(subscriber, copy, source)


async def test_what_never_was_there_is_removed_by_the_next_run(
    source: WildSource, hub: WildHub, copy: Copy
) -> None:
    async with pushed(hub, source, copy, pace=RARE) as subscriber:
        await hub.push([forged(source, "x", "created", 50)], source.t(10), source.t(50))
        await until(subscriber, lambda _: "x" in copy.files())
    await run_right(source, copy, pace=HURRIED)


async def test_forged_content_beside_the_genuine_hash_is_refused(
    source: WildSource, hub: WildHub, copy: Copy
) -> None:
    async with pushed(hub, source, copy, pace=RARE) as subscriber:
        source.file("a", b"genuine", 60)
        lie = entry(
            source.uri("a"),
            "updated",
            datetime=source.t(60),
            hash=sha256(b"genuine"),
            links=[inline(FORGED)],
        )
        await hub.push([lie], source.t(10), source.t(60))
        await until(subscriber, lambda _: copy.files() == source.resources)
    assert FORGED not in copy.files().values()


async def test_forged_content_without_any_hash_is_put_right(
    source: WildSource, hub: WildHub, copy: Copy
) -> None:
    """The list has the change, but no hash by which the forged content could be told."""
    async with pushed(hub, source, copy, pace=HURRIED) as subscriber:
        told = source.update("a", 60, b"genuine", hashed=False)
        lie = source.changed("a", "updated", 60, hashed=False, links=[inline(FORGED)])
        source.list_changes(told)
        await hub.push([lie], source.t(10), source.t(60))
        await polled(subscriber, source)
        await until_right(subscriber, copy, source)
