from __future__ import annotations

import pytest

from rsnotify_hub.urls import authority_of, check_url, host_of, redacted_callback


def test_a_host_is_the_same_however_it_is_spelled():
    for callback in ("https://a.example/", "https://A.Example./x", "http://a.example.:80?y"):
        assert host_of(callback) == "a.example"
    assert authority_of("https://a.example/") == authority_of("https://A.example.:443/x")
    assert authority_of("https://a.example/") != authority_of("http://a.example/")


def test_a_url_is_not_changed_by_checking():
    odd = "https://a.example/%7e/..//x?y=%41"
    assert check_url(odd, "topic") == odd


@pytest.mark.parametrize(
    ("callback", "shown"),
    [
        ("https://b.example:8443/hooks/4f1c9a?key=k", "https://b.example:8443/…/…?…"),
        ("http://b.example/ws/callbacks/", "http://b.example/ws/ca…/"),
        ("http://b.example", "http://b.example"),
    ],
)
def test_a_callback_is_shown_without_what_may_be_secret(callback: str, shown: str):
    assert redacted_callback(callback) == shown
