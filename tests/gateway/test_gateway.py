from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError
from rsnotify.format.datetimes import format_datetime, from_microseconds
from rsnotify_validation.inspection import inspect
from tests.gateway.checking import origin
from tests.gateway.origin_server import Site, sitemap
from tests.gateway.running import RunningGateway
from tests.publisher.helpers import FakeHub
from tests.reader import ROOT
from tests.waiting import until

A, B = "https://site.example/a", "https://site.example/b"
MONDAY, TUESDAY = "2026-11-02T10:00:00Z", "2026-11-03T10:00:00Z"


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with Site() as server:
        server.pages["/sitemap.xml"] = sitemap({A: MONDAY})
        yield server


async def test_changes_of_an_origin_are_pushed_with_its_own_uris(
    site: Site, hub: FakeHub, tmp_path: Path
):
    settings = [origin("sitemap", site.url("/sitemap.xml"))]
    async with RunningGateway(tmp_path, settings, hubs=[hub.url + "websub"]) as running:
        await running.until_ready()
        listed = await running.document("one/resourcelist.xml")
        assert [resource.uri for resource in listed.resources] == [A]
        site.pages["/sitemap.xml"] = sitemap({A: TUESDAY, B: MONDAY})
        await hub.has(B)
    changes = [entry for fragment in hub.fragments for entry in fragment.resources]
    assert [(str(entry.change), entry.uri) for entry in changes[-2:]] == [
        ("updated", A),
        ("created", B),
    ]


async def test_no_heartbeat_is_sent_while_the_origin_cannot_be_checked(
    site: Site, hub: FakeHub, tmp_path: Path
):
    settings = [origin("sitemap", site.url("/sitemap.xml"))]
    async with RunningGateway(tmp_path, settings, hubs=[hub.url + "websub"]) as running:
        (watch,) = running.gateway.watches
        await hub.until(lambda: len(hub.fragments) >= 3)
        site.statuses["/sitemap.xml"] = (500, {})
        await until(lambda: watch.problem is not None)
        assert watch.last_check is not None
        checked = from_microseconds(watch.last_check)
        failed = site.requests["/sitemap.xml"]
        await until(lambda: site.requests["/sitemap.xml"] >= failed + 4)
        assert max(fragment.until for fragment in hub.fragments if fragment.until) <= checked
        del site.statuses["/sitemap.xml"]
        await hub.until(lambda: (hub.fragments[-1].until or checked) > checked)
        assert watch.problem is None
    untils = [fragment.until for fragment in hub.fragments if fragment.until is not None]
    assert len(set(untils)) == len(untils), "no heartbeat repeats another"


async def test_a_new_run_claims_nothing_before_its_first_check(
    site: Site, hub: FakeHub, tmp_path: Path
):
    settings = [origin("sitemap", site.url("/sitemap.xml"))]
    async with RunningGateway(tmp_path, settings) as running:
        await running.until_ready()
        port = running.port
        last_check = running.gateway.watches[0].last_check
    assert last_check is not None
    site.statuses["/sitemap.xml"] = (500, {})
    again = RunningGateway(tmp_path, settings, port, hubs=[hub.url + "websub"])
    async with again:
        (watch,) = again.gateway.watches
        await until(lambda: watch.problem is not None)
        await again.until_ready()
        listed = await again.document("one/resourcelist.xml")
        checked = watch.last_check
        assert checked is not None
        assert listed.at <= from_microseconds(checked)
        assert all((one.until or listed.at) <= from_microseconds(checked) for one in hub.fragments)


async def test_nothing_is_published_before_the_first_check_is_complete(site: Site, tmp_path: Path):
    site.statuses["/sitemap.xml"] = (500, {})
    async with RunningGateway(tmp_path, [origin("sitemap", site.url("/sitemap.xml"))]) as running:
        (watch,) = running.gateway.watches
        await until(lambda: watch.problem is not None)
        status, body = await running.get("one/capabilitylist.xml")
        assert status == 503
        assert b"the server says 500" in body
        del site.statuses["/sitemap.xml"]
        await running.until_ready()
        assert (await running.get("one/capabilitylist.xml"))[0] == 200


async def test_an_origin_that_fails_does_not_stop_another(site: Site, tmp_path: Path):
    bad = replace(origin("oai-pmh", site.url("/none")), name="bad")
    good = origin("sitemap", site.url("/sitemap.xml"))
    async with RunningGateway(tmp_path, [bad, good]) as running:
        await running.until_ready(1)
        assert (await running.document("one/resourcelist.xml")).resources[0].uri == A


async def test_what_an_origin_cannot_show_is_described_where_the_readme_says_and_inspected(
    site: Site, tmp_path: Path
):
    readme = (ROOT / "extensions/gateway/README.md").read_text()
    ((place, inspected),) = re.findall(
        r"`https://push\.example/repository/(\S+)`"
        r".*?`rsnotify inspect https://push\.example/repository/(\S*)`",
        readme,
        re.DOTALL,
    )
    site.pages["/sitemap.xml"] = sitemap({A: None})
    async with RunningGateway(tmp_path, [origin("sitemap", site.url("/sitemap.xml"))]) as running:
        await running.until_ready()
        _, body = await running.get(f"one/{place}")
        found = json.loads(body)
        assert found["protocol"] == "Sitemap"
        assert found["problem"] is None
        checked = running.gateway.watches[0].last_check
        assert checked is not None
        assert found["checked"] <= format_datetime(from_microseconds(checked))
        assert "without a lastmod" in found["limits"][0]
        tree = await inspect(f"{running.url}one/{inspected}")
    text = str(tree)
    assert "Entries without a lastmod: 1 of 1." in text
    assert "Deletions are detected as absence" in text


async def test_two_gateways_do_not_use_the_same_state(site: Site, tmp_path: Path):
    settings = [origin("sitemap", site.url("/sitemap.xml"))]
    async with RunningGateway(tmp_path, settings):
        other = RunningGateway(tmp_path, settings)
        with pytest.raises(ConfigurationError, match="another rsnotify gateway"):
            await other.gateway.run()
        other._socket.close()
