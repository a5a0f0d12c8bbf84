"""Who may publish on what: whole prefixes, whatever the spelling."""

from __future__ import annotations

from hashlib import sha256
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from rsnotify_hub.access.authorization import Grant, Grants
from rsnotify_hub.access.limits import is_granted
from rsnotify_hub.config.configuration import AdminGrant, PublisherGrant


def publisher(token: str, *topics: str) -> PublisherGrant:
    return PublisherGrant(token_sha256=sha256(token.encode()).hexdigest(), topics=topics)


@pytest.mark.parametrize(
    ("prefix", "topic", "granted"),
    [
        ("https://a.example/x", "https://a.example/x", True),
        ("https://a.example/x", "https://a.example/x/y", True),
        ("https://a.example/x", "https://a.example/x?y", True),
        ("https://a.example/x/", "https://a.example/x/y", True),
        ("https://a.example/x/", "https://a.example/x/..y/.z", True),
        ("https://a.example/x", "https://a.example/xy", False),
        ("https://a.example/x/", "https://a.example/x", False),
        ("https://a.example/x", "https://a.example/", False),
        ("https://a.example/x", "https://a.example/X", False),
        ("https://a.example", "https://a.example.evil.example/", False),
        ("https://a.example", "https://a.example@evil.example/", False),
        ("https://a.example", "https://a.example:8443/", False),
        ("https://a.example:80", "https://a.example:8080/", False),
        ("https://a.example/", "http://a.example/", False),
        ("https://a.example/x/", "https://a.example/x/../y", False),
        ("https://a.example/x/", "https://a.example/x/..", False),
        ("https://a.example/x/", "https://a.example/x/./y", False),
        ("https://a.example/x/", "https://a.example/x/%2e%2E/y", False),
        ("https://a.example/x/", "https://a.example/x/.%2e/y", False),
        ("https://a.example/x/", "https://a.example/x/..%2fy", False),
        ("https://a.example/x/", "https://a.example/x/..%5Cy", False),
        ("https://a.example/x/", "https://a.example/x/%252e%252e/y", False),
        ("https://a.example/x/", "https://a.example/x/..;a=b/y", False),
        ("https://a.example/x/", "https://a.example/x/%25252525252e", False),
    ],
)
def test_a_prefix_grants_what_lies_below_it(prefix: str, topic: str, granted: bool):
    assert is_granted(prefix, topic) is granted


ODD = "/ .. . %2e %2E %2f %5c \\ %25 x X y ; ? @ : a.example https: http: :443 xn--a é %C3%A9"
ENDINGS = st.lists(st.sampled_from(ODD.split()), max_size=8).map("".join)


@given(prefix=st.sampled_from(["", "/", "/x", "/x/", "/x/y", ":443/x"]), ending=ENDINGS)
def test_what_a_prefix_grants_is_below_it_when_dots_are_resolved(prefix: str, ending: str):
    prefix = f"https://a.example{prefix}"
    topic = prefix + ending
    if not is_granted(prefix, topic):
        return
    assert urlsplit(topic).netloc == urlsplit(prefix).netloc
    for seen in (topic, unquote(topic), unquote(unquote(topic)), topic.replace("\\", "/")):
        path = URL(seen).path  # decoded, and without dots
        assert path.startswith(urlsplit(prefix).path)


@given(prefix=ENDINGS, topic=ENDINGS)
def test_a_topic_without_a_granted_prefix_is_not_granted(prefix: str, topic: str):
    if is_granted("https://a.example/" + prefix, "https://a.example/" + topic):
        assert topic.startswith(prefix)


def test_a_token_publishes_what_it_is_granted_and_nothing_else():
    one, other = (
        publisher("a" * 16, "https://a.example/"),
        publisher("b" * 16, "https://b.example/"),
    )
    grants = Grants([one, other], anonymous=True)
    assert grants.grant("a" * 16).covers("https://a.example/1")
    assert not grants.grant("a" * 16).covers("https://b.example/1")
    assert grants.grant("ä\udc80") == Grant()
    assert grants.grant(one.token_sha256) == Grant()
    assert not grants.grant("a" * 16).admin
    assert not grants.anonymous
    assert grants.is_served("https://b.example/1")
    assert not grants.is_served("https://c.example/1")


def test_an_admin_administers_and_publishes_nothing():
    grants = Grants(admins=[AdminGrant(sha256(b"a" * 16).hexdigest())], anonymous=True)
    assert grants.grant("a" * 16) == Grant(admin=True)
    assert grants.grant("b" * 16) == Grant()
    assert not grants.anonymous


def test_open_topics_are_served_and_open_to_nothing_but_pings():
    grants = Grants(open_topics=["https://a.example/x"], anonymous=False)
    assert grants.is_open("https://a.example/x/y")
    assert grants.is_served("https://a.example/x/y")
    assert not grants.is_open("https://a.example/xy")
    assert grants.grant("a" * 16) == Grant()


def test_the_repr_of_a_grant_has_no_digest():
    assert "a" * 64 not in repr((PublisherGrant("a" * 64, ()), AdminGrant("a" * 64)))
