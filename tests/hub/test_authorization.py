"""Who may publish and administer: whole prefixes, tokens, local programs, and pages of the hub."""

from __future__ import annotations

from hashlib import sha256
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from aiohttp import web
from aiohttp.http import HttpVersion10
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from rsnotify_hub.access.authorization import Authorizer
from rsnotify_hub.access.grants import Grant, Grants, prefix_grants
from rsnotify_hub.config.configuration import AdminGrant, PublisherGrant
from rsnotify_hub.refusals import Refusal


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
        ("https://a.example/x", "https://a.example/%78/y", False),
        ("https://a.example/x", "https://a.example//x/y", False),
        ("https://a.example/x", "https://evil.example/?https://a.example/x", False),
        ("https://a.example/x", "https://evil.example\\@a.example/x", False),
        ("https://a.example/x", "https://xn--a-.example/x", False),
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
    assert prefix_grants(prefix, topic) is granted


ODD = "/ .. . %2e %2E %2f %5c \\ %25 x X y ; ? @ : a.example https: http: :443 xn--a é %C3%A9"
ENDINGS = st.lists(st.sampled_from(ODD.split()), max_size=8).map("".join)


@given(prefix=st.sampled_from(["", "/", "/x", "/x/", "/x/y", ":443/x"]), ending=ENDINGS)
def test_what_a_prefix_grants_is_below_it_when_dots_are_resolved(prefix: str, ending: str):
    prefix = f"https://a.example{prefix}"
    topic = prefix + ending
    if not prefix_grants(prefix, topic):
        return
    assert urlsplit(topic).netloc == urlsplit(prefix).netloc
    for seen in (topic, unquote(topic), unquote(unquote(topic)), topic.replace("\\", "/")):
        path = URL(seen).path  # decoded, and without dots
        assert path.startswith(urlsplit(prefix).path)


@given(prefix=ENDINGS, topic=ENDINGS)
def test_a_topic_without_a_granted_prefix_is_not_granted(prefix: str, topic: str):
    if prefix_grants("https://a.example/" + prefix, "https://a.example/" + topic):
        assert topic.startswith(prefix)


def test_a_token_publishes_what_it_is_granted_and_nothing_else():
    one, other = (
        publisher("a" * 16, "https://a.example/"),
        publisher("b" * 16, "https://b.example/"),
    )
    grants = Grants([one, other], anonymous=True)
    assert grants.grant_of("a" * 16).allows("https://a.example/1")
    assert not grants.grant_of("a" * 16).allows("https://b.example/1")
    assert grants.grant_of("ä\udc80") == Grant()
    assert grants.grant_of(one.token_sha256) == Grant()
    assert not grants.grant_of("a" * 16).admin
    assert not grants.anonymous
    assert grants.is_served("https://b.example/1")
    assert not grants.is_served("https://c.example/1")


def test_an_admin_administers_and_publishes_nothing():
    grants = Grants(admins=[AdminGrant(sha256(b"a" * 16).hexdigest())], anonymous=True)
    assert grants.grant_of("a" * 16) == Grant(admin=True)
    assert grants.grant_of("b" * 16) == Grant()
    assert not grants.anonymous


def test_open_topics_are_served_and_open_to_nothing_but_pings():
    grants = Grants(open_topics=["https://a.example/x"], anonymous=False)
    assert grants.is_open("https://a.example/x/y")
    assert grants.is_served("https://a.example/x/y")
    assert not grants.is_open("https://a.example/xy")
    assert grants.grant_of("a" * 16) == Grant()


def test_the_repr_of_a_grant_has_no_digest():
    assert "a" * 64 not in repr((PublisherGrant("a" * 64, ()), AdminGrant("a" * 64)))


TOPIC = "https://a.example/x"
SOURCE, ADMIN = "a-token-of-a-source", "a-token-of-an-admin"
LOCAL = {"Host": "127.0.0.1:8080"}


def request(headers: dict[str, str], *, peer: str = "127.0.0.1", **more: Any) -> web.Request:
    return make_mocked_request("POST", "/", headers=headers, **more).clone(remote=peer)


def anonymous() -> Authorizer:
    return Authorizer(Grants(anonymous=True))


@pytest.fixture
def authorizer() -> Authorizer:
    admin = AdminGrant(publisher(ADMIN).token_sha256)
    return Authorizer(
        Grants([publisher(SOURCE, TOPIC)], [admin], ["https://o.example/"], anonymous=True)
    )


def bearing(token: str, **headers: str) -> web.Request:
    return request({**LOCAL, "Authorization": f"Bearer {token}", **headers})


def test_a_token_allows_what_it_grants(authorizer: Authorizer):
    authorizer.check_publisher(bearing(SOURCE), TOPIC)
    authorizer.check_ping(bearing(SOURCE), TOPIC)
    authorizer.check_admin(bearing(ADMIN, Origin="https://elsewhere.example"))


def test_a_token_allows_nothing_else(authorizer: Authorizer):
    for check in (authorizer.check_publisher, authorizer.check_ping):
        with pytest.raises(Refusal, match="needs a token"):
            check(bearing(ADMIN), TOPIC)
    with pytest.raises(Refusal, match="requires an admin's token"):
        authorizer.check_admin(bearing(SOURCE))
    without_admins = Authorizer(Grants([publisher(SOURCE, TOPIC)], anonymous=False))
    with pytest.raises(Refusal, match="this hub has no admins; add one with `rsnotify hub token`"):
        without_admins.check_admin(bearing(SOURCE))


def test_once_there_are_tokens_a_request_needs_one(authorizer: Authorizer):
    with pytest.raises(Refusal):
        authorizer.check_publisher(request(LOCAL), TOPIC)
    assert not authorizer.is_admin(request(LOCAL))


def test_anybody_may_ping_open_topics_but_not_publish_on_them(authorizer: Authorizer):
    authorizer.check_ping(request(LOCAL, peer="192.0.2.1"), "https://o.example/feed")
    with pytest.raises(Refusal):
        authorizer.check_publisher(request(LOCAL), "https://o.example/feed")


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:8080", "[::1]:8080", "127.0.0.1"])
def test_without_tokens_a_local_program_may_do_everything(host: str):
    anonymous().check_publisher(request({"Host": host}), TOPIC)
    anonymous().check_admin(request({"Host": host}))


def test_a_page_of_the_hub_may_administer_but_not_publish():
    page = request({**LOCAL, "Origin": "http://127.0.0.1:8080", "Sec-Fetch-Site": "same-origin"})
    anonymous().check_admin(page)
    with pytest.raises(Refusal):
        anonymous().check_publisher(page, TOPIC)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:3000"},
        {"Origin": "http://localhost:8080"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "evil.example:8080"},
        {"Host": "evil.example:8080", "Origin": "http://evil.example:8080"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "localhost@evil.example"},
        {"Forwarded": "for=192.0.2.1"},
        {"X-Forwarded-For": "192.0.2.1"},
        {"Via": "1.1 proxy"},
    ],
)
def test_pages_of_other_sites_and_proxies_are_no_local_admins(headers: dict[str, str]):
    assert not anonymous().is_admin(request({**LOCAL, **headers}))


@pytest.mark.parametrize(
    "name",
    [
        "evil.example",
        "evil.example:8080",
        "127.0.0.1.evil.example",
        "evil.example@127.0.0.1",
        "127.0.0.1#evil",
        "127.0.0.1/evil",
        "127.0.0.1?evil",
        "127.0.0.1:80:80",
        "localhost\\evil",
        "[",
        "",
    ],
)
def test_a_local_hub_refuses_requests_for_another_host(authorizer: Authorizer, name: str):
    rebound = request({"Host": name, "Origin": f"http://{name}"})
    with pytest.raises(Refusal, match="only answers requests to localhost"):
        anonymous().check_host(rebound)
    authorizer.check_host(rebound)  # with tokens, a proxy may use any name


def test_neither_another_machine_nor_a_proxy_that_adds_nothing_is_local():
    assert not anonymous().is_admin(request(LOCAL, peer="192.0.2.1"))
    assert not anonymous().is_admin(request(LOCAL, version=HttpVersion10))


def test_a_wrong_token_does_not_fall_back_to_none():
    assert not anonymous().is_admin(bearing("x" * 16))
    with pytest.raises(Refusal):
        anonymous().check_publisher(bearing("x" * 16), TOPIC)
