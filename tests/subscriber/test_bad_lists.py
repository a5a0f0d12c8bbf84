from __future__ import annotations

import gzip
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from rsnotify.errors import ConfigurationError, DocumentError, RsnotifyError
from rsnotify.format.model import Resource
from rsnotify.format.writer import write_document
from tests.subscriber.destination import Destination
from tests.subscriber.source import SmallSource, body, first, status

Spoil = Callable[[bytes], bytes]

SPOILS: dict[str, Spoil] = {
    "truncated": lambda xml: xml[: len(xml) * 2 // 3],
    "malformed": lambda xml: xml.replace(b"</url>", b"</uri>", 1),
    "doctype": lambda xml: xml.replace(b"?>", b"?><!DOCTYPE urlset [<!ENTITY e 'x'>]>", 1),
    "wrong namespace": lambda xml: xml.replace(b"sitemap/0.9", b"sitemap/0.8"),
    "wrong root": lambda xml: xml.replace(b"urlset", b"urllist"),
    "unknown capability": lambda xml: xml.replace(b'"changelist"', b'"wishlist"').replace(
        b'"resourcelist"', b'"wishlist"'
    ),
    "bad datetime": lambda xml: xml.replace(b'at="2', b'at="Yesterday 2', 1).replace(
        b'datetime="2', b'datetime="Yesterday 2', 1
    ),
    "no loc": lambda xml: xml[: xml.index(b"<loc>")] + xml[xml.index(b"</loc>") + 6 :],
    "damaged gzip": lambda xml: gzip.compress(xml)[:-20],
}


pytestmark = pytest.mark.usefixtures("some_content")


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
async def test_nothing_of_an_unusable_resource_list_is_applied(
    spoil: Spoil, source: SmallSource, destination: Destination
) -> None:
    whole = write_document(source.resource_list())
    source.answers["/data/resourcelist.xml"] = body(spoil(whole))
    with pytest.raises(DocumentError, match=r"data/resourcelist\.xml"):
        await destination.catch_up()
    assert destination.files() == {}
    source.answers.clear()
    await destination.become_equal()


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
async def test_an_unusable_change_list_is_read_again_and_nothing_of_it_is_applied(
    spoil: Spoil, source: SmallSource, destination: Destination
) -> None:
    await destination.catch_up()
    source.put("a", b"1")
    source.delete("r0")
    source.put("b", b"2")
    whole = write_document(source.change_list())
    source.answers["/data/changelist.xml"] = first(2, body(spoil(whole)), body(whole))
    source.answers["/data/resourcelist.xml"] = status(503)
    await destination.become_equal()


async def test_a_change_list_that_stays_unusable_is_replaced_by_the_resource_list(
    source: SmallSource, destination: Destination
) -> None:
    await destination.catch_up()
    source.put("a", b"1")
    source.delete("r0")
    source.answers["/data/changelist.xml"] = body(b"<html>we are redesigning our site</html>")
    with pytest.raises(RsnotifyError, match=r"changelist\.xml"):
        await destination.catch_up()
    assert destination.equals_source()


async def test_a_change_without_a_type_makes_the_list_unusable(
    source: SmallSource, destination: Destination
) -> None:
    await destination.catch_up()
    source.put("a", b"1")
    document = source.change_list()
    untold = tuple(replace(one, change=None) for one in document.resources)
    source.publish("changelist.xml", replace(document, resources=untold))
    source.answers["/data/resourcelist.xml"] = status(503)
    with pytest.raises(RsnotifyError):
        await destination.catch_up()
    assert "a" not in destination.files()


async def test_a_list_may_be_gzip_on_the_wire_and_as_a_file(
    source: SmallSource, destination: Destination
) -> None:
    listed = write_document(source.resource_list())
    source.answers["/data/resourcelist.xml"] = body(gzip.compress(listed))
    changes = gzip.compress(write_document(source.change_list()))
    source.answers["/data/changelist.xml"] = body(changes, headers={"Content-Encoding": "gzip"})
    await destination.become_equal()


async def test_a_source_that_offers_nothing_to_follow_gets_one_sentence(
    source: SmallSource, destination: Destination
) -> None:
    document = source.capability_list()
    nothing = replace(document, resources=(Resource(source.base + "x", capability="wishlist"),))
    source.publish("capabilitylist.xml", nothing)
    with pytest.raises(ConfigurationError, match="without a Resource List, Change List"):
        await destination.catch_up()
