"""Our Destination follows what PyPI's `resync-build` and its library write: Sources without
`from`, without `datetime`, without `until`, out of chronological order.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from resync.dump import Dump
from resync.mapper import Mapper
from resync.resource import Resource
from resync.resource_dump import ResourceDump
from resync.resource_list_builder import ResourceListBuilder

from tests.interop.clients import contents, follow, is_in_step
from tests.interop.site import Site


class Sequel:
    """What `resync-build` tells first, and what it tells after the resources changed."""

    def __init__(self, site: Site, tmp_path: Path) -> None:
        self.site = site
        self.copy = tmp_path / "copy"
        self._first_list = tmp_path / "first.xml"
        for number in range(6):
            (site.data / f"{number}.ttl").write_text(f"{number}")

    def first(self, *arguments: str) -> None:
        """Describe the resources, and that nothing changed."""
        self.site.offer("resourcelist", "changelist")
        shutil.copy(self.site.list_resources(*arguments), self._first_list)
        self.site.build("--write-changelist", "--empty", out="changelist.xml")

    def then(self) -> str:
        """Tell how the resources differ from the first list, and follow that."""
        self.site.list_changes(self._first_list)
        return self.follow()

    def follow(self) -> str:
        return follow(self.site.capability_list, self.copy)

    def is_equal(self) -> bool:
        here = {name.removeprefix("data/"): data for name, data in contents(self.copy).items()}
        return here == contents(self.site.data)


@pytest.fixture
def sequel(site: Site, tmp_path: Path) -> Sequel:
    return Sequel(site, tmp_path)


@pytest.mark.parametrize("how", ["deleted", "created updated deleted"])
def test_what_was_created_updated_and_deleted_is_followed(sequel: Sequel, how: str):
    data = sequel.site.data
    sequel.first()
    sequel.follow()
    assert sequel.is_equal()
    if "created updated" in how:
        (data / "new.ttl").write_text("new")
        (data / "1.ttl").write_text("changed")
    (data / "2.ttl").unlink()
    sequel.then()
    assert sequel.is_equal()
    sequel.site.list_resources()
    assert is_in_step(sequel.site.capability_list, sequel.copy)


def test_a_resource_that_came_back_stays(sequel: Sequel):
    gone = sequel.site.data / "2.ttl"
    sequel.first()
    sequel.follow()
    gone.unlink()
    sequel.then()
    gone.write_text("back again")
    sequel.then()
    assert sequel.is_equal()


def test_a_resource_list_index_of_many_parts_is_followed(sequel: Sequel):
    sequel.first("--max-sitemap-entries", "2")
    sequel.site.describe()
    assert "<sitemapindex" in (sequel.site.folder / "resourcelist.xml").read_text()
    log = follow(sequel.site.url, sequel.copy)
    assert "baseline from the Resource List" in log
    assert sequel.is_equal()
    assert is_in_step(sequel.site.url, sequel.copy)


def test_a_resource_dump_of_several_packages_is_followed(site: Site, tmp_path: Path):
    for number in range(5):
        (site.data / f"{number}.ttl").write_text(f"{number}")
    mapper = Mapper([f"{site.url}/data={site.data}"])
    resources = ResourceListBuilder(set_hashes=["sha-256"], set_path=True, mapper=mapper)
    dump = Dump(resources=resources.from_disk(), format="zip")
    dump.max_files = 2
    assert dump.write(basename=str(site.folder / "part")) == 3
    listed = ResourceDump()
    listed.up = site.capability_list
    listed.md_at = "now"
    for package in sorted(site.folder.glob("part*.zip")):
        uri = f"{site.url}/{package.name}"
        length = package.stat().st_size
        listed.add(Resource(uri=uri, mime_type="application/zip", length=length))
    listed.write(basename=str(site.folder / "resourcedump.xml"))
    site.offer("resourcedump")
    shutil.rmtree(shutil.move(site.data, tmp_path / "away"))  # only the packages have it now
    log = follow(site.capability_list, tmp_path / "copy")
    assert "baseline from the Resource Dump" in log
    assert {name.rpartition("/")[2] for name in contents(tmp_path / "copy")} == {
        f"{number}.ttl" for number in range(5)
    }
