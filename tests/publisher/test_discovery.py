"""How a Source is discovered: the well-known URI, links of resources, robots.txt (core §6.3)."""

from __future__ import annotations

import asyncio
import os
import urllib.request
from html.parser import HTMLParser
from pathlib import Path

import aiohttp
import pytest

from rsnotify.format.links import parse_links
from rsnotify.format.reader import read_document
from rsnotify_publisher import (
    Publisher,
    SourceDescription,
    application,
    html_link,
    link_header,
    robots_lines,
)
from tests.publisher.helpers import BASE, PATIENCE, Start, serving


async def leads_of(url: str, method: str = "GET", **headers: str) -> list[tuple[str, str]]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, headers=headers) as answer,
    ):
        assert answer.status == (304 if headers else 200)
        return parse_links(answer.headers.getall("Link", []))


def text_of(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        assert answer.headers.get_content_type() == "text/plain"
        text: str = answer.read().decode()
    return text


def sitemaps(robots: str) -> list[str]:
    lines = (line.partition(":") for line in robots.splitlines())
    return [value.strip() for name, _, value in lines if name == "Sitemap"]


async def test_every_resource_of_a_folder_leads_to_its_capability_list(
    folder: Path, source: Start
) -> None:
    (folder / "page.html").write_text("<html></html>")
    os.utime(folder / "page.html", (10**9, 10**9))
    process = await asyncio.to_thread(source, folder, "--port", "0")
    leads = [("resourcesync", process.url + "capabilitylist.xml")]
    async with (
        aiohttp.ClientSession() as session,
        session.get(process.url + "page.html") as answer,
    ):
        tag = answer.headers["ETag"]
    assert await leads_of(process.url + "page.html") == leads
    assert await leads_of(process.url + "page.html", "HEAD") == leads
    assert await leads_of(process.url + "page.html", **{"If-None-Match": tag}) == leads
    # A document is no resource of the set, which the Capability List would describe.
    assert await leads_of(process.url + "resourcelist.xml") == []
    capabilities = read_document(process.get("capabilitylist.xml"))
    assert capabilities.link("up") == process.url + ".well-known/resourcesync"


def test_robots_txt_leads_to_the_resource_list(folder: Path, source: Start) -> None:
    process = source(folder, "--port", "0")
    assert sitemaps(text_of(process.url + "robots.txt")) == [process.url + "resourcelist.xml"]
    listed = read_document(process.get("resourcelist.xml"))
    assert listed.link("up") == process.url + "capabilitylist.xml"


def test_a_robots_txt_of_the_folder_is_a_resource_like_any_other(
    folder: Path, source: Start
) -> None:
    (folder / "robots.txt").write_text("User-agent: *\nDisallow:\n")
    process = source(folder, "--port", "0")
    assert text_of(process.url + "robots.txt") == "User-agent: *\nDisallow:\n"
    (entry,) = read_document(process.get("resourcelist.xml")).resources
    assert entry.uri == process.url + "robots.txt"


def test_robots_txt_is_at_the_host_whatever_the_base_url(
    folder: Path, source: Start, unused_tcp_port: int
) -> None:
    (folder / "robots.txt").write_text("no robots.txt, as it is not at the host")
    host = f"http://127.0.0.1:{unused_tcp_port}"
    source(folder, "--port", str(unused_tcp_port), "--base-url", f"{host}/data/")
    assert sitemaps(text_of(f"{host}/robots.txt")) == [f"{host}/data/resourcelist.xml"]


def test_the_header_and_the_element_lead_to_the_capability_list(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, "https://source.example/a&b/")
    there = "https://source.example/a&b/capabilitylist.xml"
    assert parse_links([link_header(publisher)]) == [("resourcesync", there)]
    found: list[dict[str, str | None]] = []

    class Finder(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert tag == "link"
            found.append(dict(attrs))

    Finder().feed(html_link(publisher))
    assert found == [{"rel": "resourcesync", "href": there}]


def test_robots_lines_name_every_set(tmp_path: Path) -> None:
    sets = [Publisher(tmp_path / name, f"https://x.example/{name}/") for name in "ab"]
    assert sitemaps(robots_lines(sets)) == [
        "https://x.example/a/resourcelist.xml",
        "https://x.example/b/resourcelist.xml",
    ]


@pytest.mark.parametrize(("base", "served"), [("https://x.example/", True), (BASE, False)])
async def test_the_application_serves_robots_txt_where_it_is_the_hosts(
    tmp_path: Path, base: str, served: bool
) -> None:
    sets = [Publisher(tmp_path / name, f"{base}{name}/") for name in "ab"]
    app = application(SourceDescription(base, sets))
    async with (
        serving(app) as url,
        aiohttp.ClientSession() as session,
        session.get(f"{url}/robots.txt") as answer,
    ):
        assert answer.status == (200 if served else 404)
        assert len(sitemaps(await answer.text())) == (2 if served else 0)
