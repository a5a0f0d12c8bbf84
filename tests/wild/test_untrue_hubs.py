"""A hub delivers what is not true, is old, or is of other resources."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from rsnotify.selection import Selection
from rsnotify.sync.pace import Pace
from rsnotify_subscriber import Status
from tests.wild.documents import capability_list, description, entry, inline, ln, sha256
from tests.wild.hub import Hub, offer_hub
from tests.wild.running import (
    HURRIED,
    PACE,
    Copy,
    command_audit,
    command_follow_once,
    command_honest,
    follow_once,
    following,
    pace,
    polled,
    pushed,
    run_right,
    run_until_right,
    until,
    until_right,
)
from tests.wild.source import Source

# A hub delivers a deletion that never happened.
#
# A hub is not the Source: whoever may publish there, a bug, or messages of another era can invent a
# change. No list will ever have it, nor take it back. So what was learned by push alone counts
# until a list that covers its time confirms it; if the list lacks it, the resource itself is asked
# for.


RARE = pace(poll=600.0, poll_with_push=600.0)


FORGED = b"forged"
#: What a hub invents: the resource, the change, when it was, and whether the content comes along.
LIES = {
    "a deletion": ("a", "deleted", 50, False),
    "an update": ("a", "updated", 50, True),
    "a creation": ("x", "created", 50, True),
    "an update, by hash only": ("a", "updated", 50, False),
    "an update an hour ahead": ("a", "updated", 3650, True),
    "an update an hour ahead, by hash only": ("a", "updated", 3650, False),
}
APPLIED = ["a deletion", "an update", "a creation"]
CARRIED = pytest.mark.parametrize("carried", [True, False], ids=["inline", "hash only"])


async def lie(hub: Hub, source: Source, name: str, change: str, at: int, own: bool) -> None:
    content = None if change == "deleted" else FORGED
    links = [inline(FORGED)] if own else []
    moment = source.t(at)
    told = entry(source.uri(name), change, datetime=moment, content=content, links=links)
    await hub.push([told], source.t(10), moment)


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize("told", LIES)
async def test_the_next_poll_puts_right_what_a_hub_invented(
    source: Source, hub: Hub, copy: Copy, told: str
):
    async with pushed(hub, source, copy, pace=HURRIED) as subscriber:
        await lie(hub, source, *LIES[told])
        await polled(subscriber, source)
        await until_right(subscriber, copy, source)


@pytest.mark.usefixtures("offered")
async def test_so_it_does_where_the_list_goes_on(source: Source, hub: Hub, copy: Copy):
    async with pushed(hub, source, copy, pace=pace(poll_with_push=0.3)) as subscriber:
        await lie(hub, source, *LIES["a deletion"])
        told = source.update("b", 60)
        source.list_changes(told)
        await hub.push([told], source.t(50), source.t(60))
        await until_right(subscriber, copy, source)


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize("told", [*APPLIED, "an update, by hash only"])
async def test_the_lists_restore_the_preferred_alternate_of_a_resource(
    source: Source, hub: Hub, copy: Copy, told: str
):
    """The URI of the resource itself returns another representation."""
    entries = []
    for name, content in source.resources.items():
        source.put(f"{name}.txt", content, headers={"Content-Type": "text/plain"})
        source.put(name, b"<p>another representation</p>")
        alternate = ln("alternate", source.uri(f"{name}.txt"), type="text/plain")
        entries.append(entry(source.uri(name), lastmod=source.t(-1000), links=[alternate]))
    source.list_entries(*entries)
    async with pushed(hub, source, copy, pace=HURRIED, prefer="text/plain") as subscriber:
        await lie(hub, source, *LIES[told])
        await polled(subscriber, source)
        await until_right(subscriber, copy, source)


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize("told", [*APPLIED, "a creation, by runs that are too short to delete"])
async def test_the_next_run_puts_it_right_though_the_hub_is_believed_until_then(
    source: Source, hub: Hub, copy: Copy, told: str
):
    lied, _, are_short = told.partition(",")
    async with pushed(hub, source, copy, pace=RARE) as subscriber:
        await lie(hub, source, *LIES[lied])
        await until(subscriber, lambda _: copy.files() != source.resources)
    gone_after = 600.0 if are_short else HURRIED.gone_after
    await run_until_right(source, copy, pace=replace(HURRIED, gone_after=gone_after))


@pytest.mark.usefixtures("offered")
async def test_a_run_after_the_list_went_beyond_it_brings_back_what_was_removed(
    source: Source, hub: Hub, copy: Copy
):
    async with pushed(hub, source, copy, pace=RARE) as subscriber:
        await lie(hub, source, *LIES["a deletion"])
        await until(subscriber, lambda _: "a" not in copy.files())
    source.list_changes(source.update("b", 60))
    await run_right(source, copy)


@pytest.mark.usefixtures("offered")
async def test_a_true_deletion_that_the_list_confirms_costs_no_further_request(
    source: Source, hub: Hub, copy: Copy
):
    async with pushed(hub, source, copy) as subscriber:
        told = source.delete("a", 50)
        source.list_changes(told)
        source.forget()
        await hub.push([told], source.t(10), source.t(50))
        await until_right(subscriber, copy, source)
        await polled(subscriber, source)
    assert source.requests("a") == []
    assert source.requests("resourcelist.xml") == []


# A hub delivers an update that never happened, dated an hour ahead, or with forged content.
#
# The genuine change that comes then is dated earlier, and looks old. A different announced hash
# says that it is another version: that wins over datetimes. Forged content agrees with a forged
# hash, so that only the Source's own documents, or the resource itself, show it.


@pytest.mark.usefixtures("offered")
@CARRIED
async def test_the_genuine_update_wins_though_it_is_dated_earlier(
    source: Source, hub: Hub, copy: Copy, carried: bool
):
    async with pushed(hub, source, copy, pace=HURRIED) as subscriber:
        await lie(hub, source, "a", "updated", 3650, carried)
        told = source.update("a", 60, b"genuine")
        source.list_changes(told)
        await hub.push([told], source.t(10), source.t(60))
        await until_right(subscriber, copy, source)


@pytest.mark.usefixtures("offered")
async def test_the_next_run_finds_the_genuine_one(source: Source, hub: Hub, copy: Copy):
    async with pushed(hub, source, copy, pace=RARE) as subscriber:
        await lie(hub, source, "a", "updated", 3650, True)
        await until(subscriber, lambda _: copy.files().get("a") == FORGED)
    source.list_changes(source.update("a", 60, b"genuine"))
    await run_right(source, copy, pace=HURRIED)


@pytest.mark.usefixtures("offered")
async def test_forged_content_beside_the_genuine_hash_is_refused(
    source: Source, hub: Hub, copy: Copy
):
    async with pushed(hub, source, copy, pace=RARE) as subscriber:
        source.file("a", b"genuine", 60)
        moment, genuine, links = source.t(60), sha256(b"genuine"), [inline(FORGED)]
        told = entry(source.uri("a"), "updated", datetime=moment, hash=genuine, links=links)
        await hub.push([told], source.t(10), moment)
        await until(subscriber, lambda _: copy.files() == source.resources)
    assert FORGED not in copy.files().values()


@pytest.mark.usefixtures("offered")
async def test_forged_content_without_any_hash_is_put_right(source: Source, hub: Hub, copy: Copy):
    """The list has the change, but no hash by which the forged content could be told."""
    async with pushed(hub, source, copy, pace=HURRIED) as subscriber:
        told = source.update("a", 60, b"genuine", hashed=False)
        forged = source.changed("a", "updated", 60, hashed=False, links=[inline(FORGED)])
        source.list_changes(told)
        await hub.push([forged], source.t(10), source.t(60))
        await polled(subscriber, source)
        await until_right(subscriber, copy, source)


# A hub withholds changes, and says by `from` and `until` that there were none.


def change(source: Source) -> list[str]:
    first = source.update("a", 60)
    second = source.delete("b", 61)
    third = source.update("c", 62)
    source.list_changes(first, second, third)
    return [first, second, third]


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize("pace", [PACE, RARE], ids=["by the next poll", "by the next run"])
@pytest.mark.parametrize("told", [0, 1], ids=["all", "all but the last"])
async def test_they_are_found(source: Source, hub: Hub, copy: Copy, told: int, pace: Pace):
    async with pushed(hub, source, copy, pace=pace) as subscriber:
        changes = change(source)
        await hub.push(changes[3 - told :], source.t(10), source.t(100))
        if pace is PACE:
            await until_right(subscriber, copy, source)
        await until(subscriber, lambda status: status.through >= source.t(100))
    await run_right(source, copy)


# A hub delivers fragments that are true but old, or of a Source that was set up again since.
#
# MQTT brokers retain the last fragment of a topic, and send it to each new subscriber, however old
# it is; WebSub hubs deliver again what was not acknowledged (WebSub §7); a hub's log may
# outlive the Source's history.


@pytest.fixture
def recreated(source: Source, hub: Hub) -> None:
    source.files("a", "b", "c")
    source.file("a", b"created again", 100)
    source.list_resources(at=200)
    source.list_changes(source.changed("a", "deleted", 50), source.changed("a", "created", 100))
    offer_hub(source, hub)


RETAINED = "before all that is known, retained for new subscribers"
ERAS = {
    RETAINED: (40, 50),
    "before all that is known": (40, 50),
    "across what is known": (40, 5000),
    "from before the Source's lists": (-90_000, -80_000),
    "from the beginning until now": (-90_000, 5000),
    "ahead of all that is known": (9000, 9050),
}


@pytest.mark.usefixtures("recreated")
@pytest.mark.parametrize("era", ERAS)
async def test_a_retained_deletion_of_another_era_does_no_harm(
    source: Source, hub: Hub, copy: Copy, era: str
):
    from_, until_ = map(source.t, ERAS[era])
    old = source.changed("a", "deleted", until_)
    if era == RETAINED:
        text = await hub.push([old], from_, until_)
    async with pushed(hub, source, copy, pace=HURRIED) as subscriber:
        await (hub.deliver(text) if era == RETAINED else hub.push([old], from_, until_))
        await polled(subscriber, source)
        await until_right(subscriber, copy, source)
    await run_right(source, copy, pace=HURRIED)


@pytest.mark.usefixtures("recreated")
async def test_a_fragment_that_is_delivered_again_and_again_costs_nothing(
    source: Source, hub: Hub, copy: Copy
):
    async with pushed(hub, source, copy, pace=RARE) as subscriber:
        told = []
        for name, from_, at in (("a", 200, 300), ("b", 300, 301)):
            source.file(name, b"changed", at)
            entries = [source.changed(name, "updated", at)]
            told.append(await hub.push(entries, source.t(from_), source.t(at)))
        await until(subscriber, lambda _: copy.files() == source.resources)
        source.forget()
        for text in told * 5 + told[::-1] * 5:
            await hub.deliver(text)
        entries = [source.update("c", 302)]
        await hub.push(entries, source.t(301), source.t(302))
        await until(subscriber, lambda _: copy.files() == source.resources)
    assert source.requests("a") == source.requests("b") == []


# One Source has two sets of resources, and something of the one turns up in the other.
#
# core §6.3 gives each set its own Capability List. Hubs are set up wrongly, sets share a channel,
# and a Change List may list what does not belong to its set.


@pytest.fixture
def two_sets(source: Source, hub: Hub) -> None:
    source.begin("a", "b")
    offer_hub(source, hub)
    other = {"resourcelist": source.uri("/other/resourcelist.xml")}
    source.put("/other/capabilitylist.xml", capability_list(other))
    lists = [source.url, source.uri("/other/capabilitylist.xml")]
    source.put("/.well-known/resourcesync", description(lists))


@pytest.mark.usefixtures("two_sets")
async def test_who_names_the_site_is_asked_which_of_them(source: Source, folder: Path):
    outcome = await command_follow_once(source.site, folder)
    assert outcome.code == 2
    assert "/set/capabilitylist.xml" in outcome.output
    assert "/other/capabilitylist.xml" in outcome.output


@pytest.mark.usefixtures("two_sets")
async def test_a_fragment_of_the_other_set_changes_nothing(source: Source, hub: Hub, copy: Copy):
    async with pushed(hub, source, copy, pace=HURRIED) as subscriber:
        links, at = [inline(b"x")], source.t(50)
        uri = source.uri("/other/x")
        strange = entry(uri, "created", datetime=at, content=b"x", links=links)
        await hub.push([strange], source.t(10), source.t(50))
        await polled(subscriber, source)
        await until_right(subscriber, copy, source)
    await run_right(source, copy, pace=HURRIED)


@pytest.mark.usefixtures("two_sets")
async def test_the_time_of_the_other_set_does_not_count(source: Source, hub: Hub, copy: Copy):
    """Both sets share a channel: what the other tells says nothing of the time of this one."""
    async with pushed(hub, source, copy, pace=HURRIED) as subscriber:
        up = ln("up", source.uri("/other/capabilitylist.xml"))
        strange = entry(source.uri("/other/x"), "created", datetime=source.t(500), links=[up])
        await hub.push([strange], source.t(10), source.t(500))
        source.list_changes(source.update("a", 60))
        await until_right(subscriber, copy, source)


@pytest.mark.usefixtures("two_sets")
async def test_audit_does_not_mistake_one_set_for_the_other(source: Source, folder: Path):
    source.put("/other/resourcelist.xml", source.answers["/set/resourcelist.xml"])
    await command_honest(source, folder)
    outcome = await command_audit(source.uri("/other/capabilitylist.xml"), folder)
    assert outcome.code != 0


# Only a collection of a Source is followed, and a hub contradicts the lists about its resources.
#
# What is verified is fetched without an entry that names its collection (core §14.8): that is no
# reason to remove it from the copy, nor to take in what is of another collection.


WANTED, OTHER = "http://c.example/wanted", "http://c.example/other"
SELECTION = Selection(collections=(WANTED,))


@pytest.fixture
def collections(source: Source, hub: Hub) -> None:
    source.files("a", "b", "c")
    entries = source.listed("ab", links=[ln("collection", WANTED)])
    source.list_entries(*entries, *source.listed("c", links=[ln("collection", OTHER)]))
    source.list_changes()
    offer_hub(source, hub)


def right(source: Source) -> dict[str, bytes]:
    return {name: content for name, content in source.resources.items() if name != "c"}


@pytest.mark.usefixtures("collections")
@pytest.mark.parametrize("pace", [HURRIED, RARE], ids=["by the next poll", "in the next run"])
@pytest.mark.parametrize("change", ["deleted", "updated"])
async def test_what_a_hub_invents_of_it_is_put_right(
    source: Source, hub: Hub, copy: Copy, change: str, pace: Pace
):
    def is_right(status: Status) -> bool:
        return status.level and copy.files() == right(source)

    async with following(source, copy, pace=pace, selection=SELECTION) as subscriber:
        await hub.subscribed()
        await until(subscriber, is_right)
        links = [ln("collection", WANTED)]
        lie = source.changed("a", change, 50, hashed=False, links=links)
        await hub.push([lie], source.t(10), source.t(50))
        await until(subscriber, lambda status: status.through == source.t(50))
        if pace is HURRIED:
            await polled(subscriber, source)
            await until(subscriber, is_right)
    outcome = await follow_once(source, copy, pace=HURRIED, selection=SELECTION)
    assert copy.files() == right(source) or not outcome.claims
