"""A hub that follows origins itself, `[[follow]]`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest

from rsnotify.errors import ConfigurationError
from rsnotify.format.reader import read_document
from rsnotify_hub.config.loading import load_configuration
from rsnotify_validation.inspection import inspect
from tests.gateway.origin_server import Site, sitemap
from tests.gateway.published import changes_of, replayed
from tests.hub.event_streams import events
from tests.hub.helpers import Client, RunHub, fragment
from tests.hub.processes import hub_process
from tests.waiting import until

A, B, C = (f"https://site.example/{name}" for name in "abc")
CONTACT = "mailto:operator@hub.example"


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with Site() as server:
        server.pages["/sitemap.xml"] = sitemap({A: None})
        yield server


def follow(url: str, **more: Any) -> dict[str, Any]:
    often = {"poll": 0.05, "poll_most": 0.1, "delay": 0.0}
    origin = {"name": "site", "type": "sitemap", "url": url, **often, **more}
    return {"follow": [origin], "follow_contact": CONTACT}


async def listed(hub: Client) -> set[str]:
    status, body = await hub.get("follow/site/resourcelist.xml")
    if status != 200:
        return set()
    return {one.uri for one in read_document(body.encode()).resources}


async def test_a_hub_serves_and_sends_the_changes_of_what_it_follows(site: Site, run_hub: RunHub):
    async with run_hub(**follow(site.url("/sitemap.xml"))) as hub:
        await until(lambda: equals(listed(hub), {A}))
        topic = hub.url + "follow/site/channel.xml"
        offer = read_document((await hub.get("follow/site/capabilitylist.xml"))[1].encode())
        (channel,) = [one for one in offer.resources if one.capability == "change-notification"]
        assert channel.uri == topic
        assert [link.href for link in channel.links if link.rel == "hub"] == [
            hub.url + "websub",
            "ws" + hub.url.removeprefix("http") + "ws",
        ]
        async with events(hub, topic=topic, format="json") as stream:
            site.pages["/sitemap.xml"] = sitemap({A: None, B: None})
            found: list[str] = []
            while B not in found:
                event = await stream.next()
                if event.type == "message":
                    found += [one["uri"] for one in event.json["changes"]]
        tree = await inspect(hub.url + "follow/site/")
        assert "Deletions are detected as absence" in str(tree)
        about = json.loads((await hub.get("follow/site/origin.json"))[1])
        assert about["problem"] is None


async def published(hub: Client) -> set[str]:
    """Return what the changes lead to, of which none may be repeated or lost."""
    if (await hub.get("follow/site/changelist.xml"))[0] != 200:
        return set()
    return set(replayed(await changes_of(hub.session, hub.url + "follow/site/")))


async def equals(found: Awaitable[set[str]], wanted: set[str]) -> bool:
    return await found == wanted


async def test_only_the_hub_publishes_what_it_follows(site: Site, run_hub: RunHub):
    publishers = [{"token": "x" * 20, "topics": ["https://source.example/"]}]
    async with run_hub(publishers=publishers, **follow(site.url("/sitemap.xml"))) as hub:
        topic = hub.url + "follow/site/channel.xml"
        await until(lambda: equals(listed(hub), {A}))
        async with events(hub, topic=topic, format="json") as stream:
            site.pages["/sitemap.xml"] = sitemap({A: None, B: None})
            while (event := await stream.next()) is not None and B not in event.data:
                pass
        body, token = fragment(0, 1), "Bearer " + "x" * 20
        assert (await hub.publish(body, topic=topic))[0] == 401
        assert (await hub.publish(body, topic=topic, Authorization=token))[0] == 403


async def test_a_hub_that_is_killed_goes_on_where_it_was(site: Site, tmp_path: Path):
    file = tmp_path / "hub.toml"
    file.write_text(f"""
follow_contact = "{CONTACT}"
[[follow]]
name = "site"
type = "sitemap"
url = "{site.url("/sitemap.xml")}"
poll = 0.05
delay = 0
""")
    arguments = (tmp_path / "data", "--config", str(file))
    for uris in ([A], [A, B], [B, C], [C]):
        site.pages["/sitemap.xml"] = sitemap(dict.fromkeys(uris))
        async with hub_process(*arguments) as (hub, process):
            port = hub.url.rstrip("/").rpartition(":")[2]
            arguments = (tmp_path / "data", "--config", str(file), "--port", port)
            await until(lambda: equals(published(hub), set(uris)))  # noqa: B023 - it ends before
            process.kill()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"store": "nats://127.0.0.1:4222"}, "nodes of a cluster cannot share origins"),
        ({"follow_contact": None}, "this requires follow_contact"),
        ({"follow": [{"name": "a", "type": "ftp", "url": "x"}]}, "type: it must be one of"),
        ({"follow": [{"name": "a", "type": "feed", "url": "x", "set": "y"}]}, "accepts set"),
        ({"follow": [{"name": "a", "type": "feed", "url": "x"}] * 2}, "the name a; rename one"),
    ],
)
def test_what_cannot_be_followed_is_refused(change: dict[str, Any], message: str):
    settings = {**follow("https://site.example/"), **change}
    with pytest.raises(ConfigurationError, match=message):
        load_configuration(None, **settings)
