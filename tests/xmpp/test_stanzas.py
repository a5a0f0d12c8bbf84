"""Fragments as payloads of items."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify.format.reader import read_document
from rsnotify_xmpp import xmpp_connection as stanzas
from tests.hub.helpers import fragment

HEAD = '<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'
ROOMY = 1_000_000


def received(payload: str, node: str = "n") -> bytes:
    """Return the payload as a client receives it in a message."""
    text = (
        f'<message xmlns="jabber:client"><event xmlns="{stanzas.EVENT}">'
        f'<items node="{node}"><item id="1">{payload}</item></items></event></message>'
    )
    (item,) = stanzas.items_in(ElementTree.fromstring(text), "service")
    return item.payload


@given(st.lists(st.integers(1, 1000), min_size=0, max_size=5, unique=True).map(sorted))
def test_a_fragment_means_the_same_at_the_other_end(seconds: list[int]) -> None:
    body = fragment(0, *seconds, until=2000)
    found = read_document(received(stanzas.payload_of(body, ROOMY)))
    assert found == read_document(body)


@pytest.mark.parametrize(
    "text",
    [
        f'{HEAD} xmlns:x="urn:x" x:sum="5"><!-- ]]> --><?pi?><url>&lt;&amp;&#x2028;</url></urlset>',
        f"<?xml version='1.0' encoding='ISO-8859-1'?>{HEAD}><url><loc>\xe9</loc></url></urlset>",
        f"{HEAD}><url><loc><![CDATA[</item></publish>]]></loc></url></urlset>",
    ],
)
def test_what_a_stream_may_not_have_is_left_out(text: str) -> None:
    body = text.encode("latin-1" if "ISO" in text else "utf-8")
    root = ElementTree.fromstring(received(stanzas.payload_of(body, ROOMY)))
    expected = ElementTree.fromstring(body)
    assert root.attrib == expected.attrib
    assert [one.text for one in root.iter()] == [one.text for one in expected.iter()]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\x89PNG", "not well-formed"),
        (b"", "not well-formed"),
        (b"<html/>", "not a ResourceSync document"),
        (b'<!DOCTYPE urlset [<!ENTITY a "b">]>' + HEAD.encode() + b">&a;</urlset>", "DOCTYPE"),
        (HEAD.encode() + b">" + b"x" * 300_000 + b"</urlset>", "too large for a stanza"),
    ],
)
def test_what_cannot_be_a_payload_is_refused(body: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        stanzas.payload_of(body, 262_144)


def test_names_cannot_leave_their_attributes() -> None:
    name = "'\"<&>"
    request = stanzas.iq_stanza("set", name, name, stanzas.create_element(name, name))
    root = ElementTree.fromstring(f'<stream xmlns="jabber:client">{request}</stream>')[0]
    assert (root.get("to"), root.get("id")) == (name, name)
    created = root.find(f".//{{{stanzas.PUBSUB}}}create")
    assert created.get("node") == name
    assert name in [value.text for value in root.iter("{jabber:x:data}value")]
