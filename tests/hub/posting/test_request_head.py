"""The endpoint of a callback's URL, and the head of its requests."""

from __future__ import annotations

import pytest

from rsnotify.runtime.http_client import HttpOrigin
from rsnotify_hub.websub.callback_requests import notification_head, parse_callback


@pytest.mark.parametrize(
    ("url", "target", "host", "origin"),
    [
        ("http://a.example/cb", "/cb", "a.example", HttpOrigin(False, "a.example", 80)),
        ("https://a.example/cb", "/cb", "a.example", HttpOrigin(True, "a.example", 443)),
        ("http://a.example:8080/", "/", "a.example:8080", HttpOrigin(False, "a.example", 8080)),
        ("http://a.example:/", "/", "a.example", HttpOrigin(False, "a.example", 80)),
        ("http://A.example", "/", "A.example", HttpOrigin(False, "a.example", 80)),
        ("http://a.example/cb?", "/cb?", "a.example", HttpOrigin(False, "a.example", 80)),
        ("http://a.example?q=/", "/?q=/", "a.example", HttpOrigin(False, "a.example", 80)),
        ("http://a.example/a//b/../%2f;x?&=?", "/a//b/../%2f;x?&=?", "a.example", None),
        ("http://[2001:db8::1]:8080/x", "/x", "[2001:db8::1]:8080", None),
        ("https://[::1]/x", "/x", "[::1]", HttpOrigin(True, "::1", 443)),
    ],
)
def test_a_target_is_what_the_subscriber_wrote(
    url: str, target: str, host: str, origin: HttpOrigin | None
):
    found, opening = parse_callback(url)
    assert opening == f"POST {target} HTTP/1.1\r\nHost: {host}\r\n".encode()
    assert origin is None or found == origin


@pytest.mark.parametrize(
    "url",
    [
        "http://a.example/\r\nX: y",
        "http://a.example/ x",
        "http://a.example/ü",
        "http://a.example:99999/",
        "ftp://a.example/",
        "//a.example/",
        "http:///x",
        "",
    ],
)
def test_a_url_that_cannot_be_requested_is_refused(url: str):
    with pytest.raises(ValueError, match=r".+"):
        parse_callback(url)


@pytest.mark.parametrize("value", ["a\r\nX: y", "a\ny", "a\0", "\x7f", "a\r"])
def test_no_value_ends_its_header_early(value: str):
    with pytest.raises(ValueError, match="Content-Type"):
        notification_head("https://a.example/", "https://hub.example/websub", value, 1)
