"""The URIs of PubSub services, and the nodes of channels."""

from __future__ import annotations

import pytest

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.mqtt_broker import channel_topic
from rsnotify_xmpp.xmpp_service import parse_service

CHANNEL = "https://source.example/data/channel.xml"
NODE = channel_topic(CHANNEL)


@pytest.mark.parametrize(
    ("uri", "jid", "node"),
    [
        ("xmpp:pubsub.example.org", "pubsub.example.org", NODE),
        ("xmpp:pubsub.example.org/", "pubsub.example.org", NODE),  # as in the early draft
        ("xmpp:PubSub.Example.org", "pubsub.example.org", NODE),
        ("xmpp:user@example.org?;node=All", "user@example.org", "All"),
        ("xmpp:p.example?pubsub;action=subscribe;node=a%20b", "p.example", "a b"),
        ("xmpp:p.example?;node=deep/down/", "p.example", channel_topic(CHANNEL, "deep/down/")),
    ],
)
def test_a_uri_names_a_service_and_a_node(uri: str, jid: str, node: str) -> None:
    service = parse_service(uri)
    assert (service.jid, service.node(CHANNEL)) == (jid, node)
    again = parse_service(service.url_for(CHANNEL))
    assert (again.jid, again.node(CHANNEL)) == (jid, node)


@pytest.mark.parametrize(
    "uri",
    [
        "xmpp:",
        "xmpp://pubsub.example.org",
        "xmpp:pubsub.example.org/resource",
        "xmpp:a b",
        "xmpp:a@b@c",
        "xmpp:a'b",
        "xmpp:p.example?;node=",
        "xmpp:p.example?;node=a%0Ab",
        "xmpp:p.example?;node=" + "x" * 1024,
        "mqtt://p.example",
    ],
)
def test_anything_else_is_refused(uri: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_service(uri)
