"""Authorization by tokens, of local programs, and of pages of the hub itself."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from aiohttp.http import HttpVersion10
from aiohttp.test_utils import make_mocked_request

from rsnotify_hub.access.authorization import Authorizer, Grants
from rsnotify_hub.config.configuration import AdminGrant
from rsnotify_hub.refusals import Refusal
from tests.hub.test_grants import publisher

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
    for check, token in ((authorizer.check_publisher, ADMIN), (authorizer.check_ping, ADMIN)):
        with pytest.raises(Refusal, match="needs a token"):
            check(bearing(token), TOPIC)
    with pytest.raises(Refusal, match="needs the token of an admin"):
        authorizer.check_admin(bearing(SOURCE))


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
    with pytest.raises(Refusal, match="answers to localhost"):
        anonymous().check_name(rebound)
    authorizer.check_name(rebound)  # with tokens, a proxy may use any name


def test_another_machine_is_not_local():
    assert not anonymous().is_admin(request(LOCAL, peer="192.0.2.1"))


def test_a_proxy_that_adds_nothing_is_not_local():
    assert not anonymous().is_admin(request(LOCAL, version=HttpVersion10))


def test_a_wrong_token_does_not_fall_back_to_none():
    assert not anonymous().is_admin(bearing("x" * 16))
    with pytest.raises(Refusal):
        anonymous().check_publisher(bearing("x" * 16), TOPIC)
