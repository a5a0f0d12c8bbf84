from __future__ import annotations

from contextlib import suppress
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.websub.forms import (
    Ping,
    SubscriptionRequest,
    denial_url,
    parse_form,
    verification_url,
)

TOPIC = "https://source.example/channel.xml"
CALLBACK = "https://destination.example/callback"


def form(**fields: str) -> bytes:
    values = {"mode": "subscribe", "topic": TOPIC, "callback": CALLBACK, **fields}
    return urlencode({"hub." + name: value for name, value in values.items()}).encode()


@given(
    mode=st.sampled_from(["subscribe", "unsubscribe"]),
    query=st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=5), max_size=3).map(
        urlencode
    ),
    lease=st.none() | st.integers(1, 10**9),
    secret=st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=49),
)
def test_a_subscription_request_is_read_as_it_was_written(
    mode: str, query: str, lease: int | None, secret: str | None
):
    callback = f"{CALLBACK}?{query}"
    fields = {"hub.mode": mode, "hub.topic": TOPIC, "hub.callback": callback, "other": "x"}
    if lease is not None:
        fields["hub.lease_seconds"] = str(lease)
    if secret is not None:
        fields["hub.secret"] = secret
    if mode == "unsubscribe":
        lease = None  # it means nothing there
    assert parse_form(urlencode(fields).encode()) == SubscriptionRequest(
        mode, TOPIC, callback, lease, secret
    )


@given(st.binary(max_size=200) | st.text("hub.=&%modesubcri0", max_size=80).map(str.encode))
def test_any_body_is_read_or_refused(body: bytes):
    with suppress(Refusal):
        assert isinstance(parse_form(body), SubscriptionRequest | Ping)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "hub.mode"),
        (form(mode="listen"), "hub.mode"),
        (form(topic=""), "hub.topic is missing"),
        (form(callback=""), "hub.callback is missing"),
        (form(callback="https://user:word@a.example/"), "user name"),
        (form(callback="https://a.example/#x"), "fragment"),
        (form(topic="https://a.example/" + "x" * 2048), "longer"),
        (form(lease_seconds="-1"), "lease"),
        (form(lease_seconds="0"), "lease"),
        (form(lease_seconds="1e3"), "lease"),
        (form(lease_seconds="٣"), "lease"),
        (form(secret="é" * 100), "199 bytes"),
        (b"hub.mode=subscribe&hub.topic=%ff", "UTF-8"),
        (b"&".join([b"a=b"] * 200), "too many"),
        (b"hub.mode=publish", "hub.url is missing"),
    ],
)
def test_a_bad_form_is_refused_with_the_reason(body: bytes, reason: str):
    with pytest.raises(Refusal, match=reason) as caught:
        parse_form(body)
    assert caught.value.code is Code.BAD_REQUEST


#: Texts that are no URL, or would inject a header.
NO_URLS = [
    "https://source.example/\r\nX-Evil: 1",
    "https://source.example/\nX-Evil:%201",
    'https://source.example/>; rel="hub", <https://evil.example/',
    "https://source.example/\x00",
    "https://source.example/\x85",
    "https://source.example/ HTTP/1.1",
    "javascript:alert(1)",
    "data:text/html,<script>",
    "ftp://a.example/",
    "file:///etc/passwd",
    "https://",
    "https:///x",
    "https://[::1",
    "https://a:99999/",
    "https://a:b/",
    "https://a:0/",
    "/websub",
    "*",
]


@pytest.mark.parametrize("field", ["topic", "callback", "url"])
def test_a_url_that_is_none_or_could_inject_a_header_is_refused(field: str):
    for url in NO_URLS:
        body = form(**{"mode": "publish" if field == "url" else "subscribe", field: url})
        with pytest.raises(Refusal, match=r"not an absolute http|percent-encoded"):
            parse_form(body)


@pytest.mark.parametrize("names", [("hub.url",), ("hub.topic",), ("hub.url", "hub.topic")])
def test_a_ping_names_topics_by_url_or_topic_and_each_is_fetched_once(names: tuple[str, ...]):
    body = urlencode([("hub.mode", "publish"), *((name, TOPIC) for name in names)])
    assert parse_form(body.encode()) == Ping((TOPIC,))


def test_the_query_of_a_callback_is_kept_when_it_is_verified():
    callback = CALLBACK + "?a=%2f&hub.mode=mine"
    url = verification_url(
        SubscriptionRequest("subscribe", TOPIC, callback, None, None), challenge="c&d", lease=60
    )
    assert url.startswith(callback + "&")
    assert parse_qsl(urlsplit(url).query)[2:] == [
        ("hub.mode", "subscribe"),
        ("hub.topic", TOPIC),
        ("hub.challenge", "c&d"),
        ("hub.lease_seconds", "60"),
    ]


def test_no_lease_is_sent_when_unsubscribing():
    url = verification_url(
        SubscriptionRequest("unsubscribe", TOPIC, CALLBACK), challenge="c", lease=60
    )
    assert "lease" not in url


def test_a_requested_lease_may_be_of_any_size():
    read = parse_form(form(lease_seconds="9" * 5000))
    assert isinstance(read, SubscriptionRequest)
    assert read.lease is not None
    assert read.lease > 10**9


@pytest.mark.parametrize("lease", ["0", "-1", "soon", "9" * 5000])
def test_a_lease_means_nothing_when_unsubscribing(lease: str):
    """WebSub §5.1: it MUST be ignored then."""
    read = parse_form(form(mode="unsubscribe", lease_seconds=lease))
    assert read == SubscriptionRequest("unsubscribe", TOPIC, CALLBACK)


def test_a_form_may_contain_unescaped_text():
    read = parse_form(form() + "&hub.secret=ü".encode())
    assert isinstance(read, SubscriptionRequest)
    assert read.secret == "ü"


@pytest.mark.parametrize(
    ("callback", "joint"),
    [(CALLBACK, "?"), (CALLBACK + "?", ""), (CALLBACK + "?a", "&"), (CALLBACK + "?a&", "")],
)
def test_new_parameters_go_to_the_end_of_the_query(callback: str, joint: str):
    assert denial_url(TOPIC, callback, reason="x").startswith(f"{callback}{joint}hub.mode=denied&")


def test_a_denial_contains_the_reason():
    url = denial_url(TOPIC, CALLBACK, reason="not here")
    assert dict(parse_qsl(urlsplit(url).query)) == {
        "hub.mode": "denied",
        "hub.topic": TOPIC,
        "hub.reason": "not here",
    }


def test_secrets_do_not_show():
    read = parse_form(form(secret="canary", callback=CALLBACK + "?key=canary"))
    assert "canary" not in repr(read)
