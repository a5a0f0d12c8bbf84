"""What a Source offers, and what media types stand for."""

from __future__ import annotations

import pytest

from rsnotify.errors import InvalidDocument, WrongDocument
from rsnotify.format.media_types import extension, is_media_type, matches, may_match
from rsnotify.format.model import Capability, Document, Link, Rel, Resource
from rsnotify.format.offer import (
    FIELDS,
    Offer,
    read_framework,
    read_offer,
    repeated_capability,
)
from rsnotify.selection import Selection

PLACE = "http://a.example/sets/capabilitylist.xml"
DESCRIPTION = "http://a.example/.well-known/resourcesync"


def test_a_capability_list_offers_each_document_by_its_capability() -> None:
    entries = tuple(Resource(f"{field}.xml", capability=kind) for kind, field in FIELDS.items())
    document = Document(
        Capability.CAPABILITY_LIST,
        (*entries, Resource("other.xml", capability="moonlist")),
        links=(Link(Rel.UP, "/.well-known/resourcesync"),),
    )
    offer = read_offer(document, PLACE)
    expected = {kind: f"http://a.example/sets/{field}.xml" for kind, field in FIELDS.items()}
    assert offer.documents == expected
    assert (offer.source_description, offer.capability_list) == (DESCRIPTION, PLACE)
    assert (offer.channel, offer.hubs) == (None, ())


def test_a_channel_is_offered_with_its_hubs() -> None:
    links = (Link(Rel.HUB, "/hub"), Link("self", "/self"), Link(Rel.HUB, "wss://b.example/ws"))
    channel = Resource("channel", capability=Capability.CHANGE_NOTIFICATION, links=links)
    offer = read_offer(Document(Capability.CAPABILITY_LIST, (channel,)), PLACE)
    assert offer == Offer(
        capability_list=PLACE,
        channel="http://a.example/sets/channel",
        hubs=("http://a.example/hub", "wss://b.example/ws"),
    )


def test_another_document_is_no_capability_list() -> None:
    with pytest.raises(WrongDocument, match=r"not 'resourcelist'") as caught:
        read_offer(Document(Capability.RESOURCE_LIST), PLACE)
    assert PLACE in str(caught.value)


@pytest.mark.parametrize("kind", FIELDS)
def test_two_documents_of_one_capability_are_refused_with_both_names(kind: str) -> None:
    entries = (Resource("one.xml", capability=kind), Resource("two.xml", capability=kind))
    with pytest.raises(InvalidDocument, match=r"/sets/one\.xml and \S+/sets/two\.xml") as caught:
        read_offer(Document(Capability.CAPABILITY_LIST, entries), PLACE)
    assert kind in str(caught.value)
    assert PLACE in str(caught.value)


def test_unknown_capabilities_do_not_hide_that_one_is_repeated() -> None:
    entries = [Resource(f"http://a/{name}", capability="moonlist") for name in "ab"]
    entries += [Resource(f"http://a/{name}", capability=Capability.CHANGE_LIST) for name in "cd"]
    assert repeated_capability(entries, "http://a/") is not None


@pytest.mark.parametrize(
    ("offer", "uri", "top"),
    [
        (Offer("http://a/d", True, "http://a/c"), "http://a/c", "http://a/d"),
        (Offer("http://a/d", False, "http://a/c"), "http://a/c", "http://a/c"),
        (Offer(None, False, "http://a/c", "http://a/r"), "http://a/c", "http://a/c"),
        (Offer(resource_list="http://a/r"), "http://a/r", "http://a/r"),
        (Offer(), None, None),
    ],
)
def test_a_set_is_known_by_its_capability_list_or_by_its_first_document(
    offer: Offer, uri: str | None, top: str | None
) -> None:
    assert (offer.uri, offer.top) == (uri, top)


def test_a_document_that_is_listed_twice_is_offered() -> None:
    uri = "http://a.example/sets/one.xml"
    entries = tuple(Resource(one, capability="changelist") for one in ("one.xml", uri))
    offer = read_offer(Document(Capability.CAPABILITY_LIST, entries), PLACE)
    assert offer.change_list == uri


def described(own: bool, whole: bool, entry: bool) -> Document:
    """Return a Source Description with a channel in the set's entry, of all, or of its own."""

    def links(name: str, wanted: bool) -> tuple[Link, ...]:
        return (Link(Rel.HUB, "/hub"), Link(Rel.MONITOR_GROUP, name)) if wanted else ()

    entries = [
        Resource("/other.xml", links=links("other", True)),
        Resource("/sets/capabilitylist.xml", links=links("own", own)),
    ]
    if entry:
        kind = Capability.FRAMEWORK_NOTIFICATION
        entries.append(Resource("/entry", capability=kind, links=links("unused", True)))
    return Document(Capability.DESCRIPTION, tuple(entries), links=links("whole", whole))


@pytest.mark.parametrize(
    ("own", "whole", "entry", "topic"),
    [
        (True, True, True, "http://a.example/.well-known/own"),
        (False, True, True, "http://a.example/.well-known/whole"),
        (False, False, True, "http://a.example/entry"),
        (False, False, False, None),
    ],
)
def test_the_channel_of_documents_is_that_of_the_set_or_of_the_whole_source(
    own: bool, whole: bool, entry: bool, topic: str | None
) -> None:
    before = Offer(capability_list=PLACE, framework="http://a.example/old", framework_hubs=("x",))
    offer = read_framework(before, described(own, whole, entry), DESCRIPTION)
    assert offer.listed
    assert offer.framework == topic
    assert offer.framework_hubs == (() if topic is None else ("http://a.example/hub",))


def test_a_channel_may_have_no_hub() -> None:
    links = (Link(Rel.MONITOR_GROUP, "all.xml"),)
    document = Document(Capability.DESCRIPTION, (Resource(PLACE),), links=links)
    offer = read_framework(Offer(capability_list=PLACE), document, DESCRIPTION)
    assert (offer.framework, offer.framework_hubs) == ("http://a.example/.well-known/all.xml", ())


def test_a_set_that_is_not_described_is_not_listed() -> None:
    before = Offer(capability_list=PLACE + "2", listed=True)
    assert not read_framework(before, described(True, False, False), DESCRIPTION).listed


@pytest.mark.parametrize(
    ("media_type", "suffix"),
    [
        ("text/html; charset=utf-8", ".html"),
        ("application/json", ".json"),
        ("image/jpeg", ".jpeg"),
        ("text/plain", ".txt"),
        ("moon/cheese", ""),
    ],
)
def test_a_media_type_has_its_usual_extension(media_type: str, suffix: str) -> None:
    assert extension(media_type) == suffix


@pytest.mark.parametrize(
    ("media_type", "pattern", "expected"),
    [
        ("Text/HTML; charset=utf-8", "text/html", True),
        ("text/html", "TEXT/*", True),
        ("text/html", "*/*", True),
        ("text/html", "*/html", True),
        ("text/html", "text/plain", False),
        ("text/html", "image/*", False),
        ("text/html/x", "*/x", False),
        ("application/ld+json", "application/json", False),
    ],
)
def test_a_pattern_matches_without_case_and_parameters(
    media_type: str, pattern: str, expected: bool
) -> None:
    resource = Resource("a", type=media_type)
    assert matches(media_type, ("moon/cheese", pattern)) is expected
    assert may_match(resource, (pattern,)) is expected
    assert Selection(types=(pattern,)).wants(resource) is expected


def test_a_resource_of_unknown_type_may_match_and_its_name_may_tell() -> None:
    assert may_match(Resource("http://a.example/unknown"), ("text/html",))
    assert may_match(Resource("http://a.example/a.html"), ("text/html",))
    assert not may_match(Resource("http://a.example/a.png"), ("text/html",))
    assert may_match(Resource("http://a.example/a.png", type="text/html"), ("text/html",))
    assert may_match(Resource("http://a.example/a.png"), ())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("text/html", True),
        ("text/html; q=1", True),
        ("image/*", True),
        ("text", False),
        ("text/ht ml", False),
        ("text/html/x", False),
    ],
)
def test_a_media_type_has_two_parts(text: str, expected: bool) -> None:
    assert is_media_type(text) is expected
