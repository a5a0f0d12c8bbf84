"""npm's `sitemap` and `sitemapper` read our Resource List as what it also is, a Sitemap, and our
Destination follows what `sitemap` writes: JavaScript, and nothing in common with our code.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.clients import Node, contents, follow, is_in_step
from tests.interop.site import Site
from tests.publisher.helpers import Start

NAMES = ["plain.ttl", "with space.ttl", "ümläut.ttl", "a&b.ttl", "deep/er.ttl"]


def test_two_libraries_read_our_resource_list_as_a_sitemap(node: Node, folder: Path, source: Start):
    (folder / "deep").mkdir()
    for name in NAMES:
        (folder / name).write_text("<a> <b> <c> .")
    process = source()
    read = node.run("read_sitemap.mjs", process.url + "resourcelist.xml")
    assert read["errors"] == []
    expected = {process.url + name for name in (
        "plain.ttl", "with%20space.ttl", "%C3%BCml%C3%A4ut.ttl", "a&b.ttl", "deep/er.ttl",
    )}  # fmt: skip
    assert set(read["sitemap"]) == expected
    assert set(read["sitemapper"]) == expected


@pytest.mark.parametrize("limit", [100, 2])
def test_we_follow_a_sitemap_that_a_library_writes_in_one_part_or_several(
    node: Node, site: Site, tmp_path: Path, limit: int
):
    copy = tmp_path / "copy"

    def write(*names: str) -> None:
        written = node.run(
            *("write_sitemap.mjs", str(site.folder), site.url, str(limit)),
            *(f"data/{name}" for name in names),
        )
        assert written == len(names)

    for number in range(5):
        (site.data / f"{number}.ttl").write_text(f"{number}")
    write(*(f"{number}.ttl" for number in range(5)))
    follow(f"{site.url}/sitemap.xml", copy)
    assert contents(copy) == {f"data/{number}.ttl": b"%d" % number for number in range(5)}

    (site.data / "1.ttl").write_text("changed")
    (site.data / "2.ttl").unlink()
    (site.data / "new.ttl").write_text("new")
    write("0.ttl", "1.ttl", "3.ttl", "4.ttl", "new.ttl")
    follow(f"{site.url}/sitemap.xml", copy)
    assert contents(copy) == {f"data/{name}": data for name, data in contents(site.data).items()}
    assert is_in_step(f"{site.url}/sitemap.xml", copy)
