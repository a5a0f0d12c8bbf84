"""A subscription as its callback sees it: what it confirms, and what it takes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsnotify.format.signatures import METHODS, signature
from rsnotify_subscriber.push.websub_callbacks import (
    CallbackDecision,
    CallbackSubscription,
    SubscriptionMode,
    SubscriptionState,
)
from tests.examples_count import examples

TOPIC = "https://source.example/channel.xml"
SECRET = "canary"
BODY = b"<urlset/>"


def subscription() -> CallbackSubscription:
    return CallbackSubscription(
        TOPIC, "https://a.example/canary", secret=SECRET, signatures=METHODS[1:], lease=100
    )


def question(mode: str = "subscribe", **others: str) -> dict[str, str]:
    named = {"topic": TOPIC, "challenge": "?", "lease_seconds": "50", "mode": mode, **others}
    return {"hub." + name: value for name, value in named.items()}


def requested() -> CallbackSubscription:
    made = subscription()
    made.request(SubscriptionMode.SUBSCRIBE, until=10)
    return made


def active() -> CallbackSubscription:
    made = requested()
    assert made.verify(question(), now=1) == "?"
    return made


def test_a_request_has_the_lease_and_the_secret() -> None:
    assert subscription().request(SubscriptionMode.SUBSCRIBE, until=10) == {
        "hub.mode": "subscribe",
        "hub.topic": TOPIC,
        "hub.callback": "https://a.example/canary",
        "hub.lease_seconds": "100",
        "hub.secret": SECRET,
    }


def test_a_confirmed_subscription_is_active_until_the_lease_ends() -> None:
    made = active()
    assert made.is_active
    assert made.expires == 51


@pytest.mark.parametrize(
    ("asked", "now", "what"),
    [
        (question(topic=TOPIC + "?"), 1, f"with hub.topic='{TOPIC}?'"),
        (question(mode="unsubscribe"), 1, "with hub.mode='unsubscribe'"),
        (question(mode="publish"), 1, "with hub.mode='publish'"),
        (question(), 11, None),
        (question(challenge="x" * 5000), 1, f"with hub.challenge='{'x' * 100}'"),
        (question(lease_seconds="0"), 1, "with hub.lease_seconds='0'"),
        (question(lease_seconds="-1"), 1, "with hub.lease_seconds='-1'"),
        (question(lease_seconds="forever"), 1, "with hub.lease_seconds='forever'"),
        (question(lease_seconds="9" * 30), 1, f"with hub.lease_seconds='{'9' * 30}'"),
        ({}, 1, "without hub.topic"),
    ],
)
def test_a_wrong_or_late_verification_is_not_confirmed_and_its_wrong_parameter_is_stored(
    asked: dict[str, str], now: float, what: str | None
) -> None:
    made = requested()
    assert made.verify(asked, now) is None
    assert made.state is SubscriptionState.REQUESTED
    assert what is None or made.refused == what


def test_nothing_is_confirmed_without_a_request() -> None:
    made = subscription()
    assert made.verify(question(), now=0) is None
    assert made.verify(question(mode="denied"), now=0) is None
    assert made.state is SubscriptionState.NEW


def test_an_active_subscription_is_confirmed_again_for_a_while_only() -> None:
    made = active()
    assert made.verify(question(challenge="again", lease_seconds="70"), now=10) == "again"
    assert made.expires == 80
    assert made.verify(question(), now=10.1) is None
    assert made.is_active


def test_a_missing_lease_counts_as_the_requested_one() -> None:
    made, asked = requested(), question()
    del asked["hub.lease_seconds"]
    assert made.verify(asked, now=1) == "?"
    assert made.expires == 101


def test_content_is_accepted_until_the_unsubscription_is_confirmed() -> None:
    made = active()
    form = made.request(SubscriptionMode.UNSUBSCRIBE, until=20)
    assert "hub.secret" not in form
    assert made.decide(signature(SECRET, BODY), BODY) is CallbackDecision.ACCEPTED
    assert made.verify(question(), now=12) is None
    assert made.verify(question(mode="unsubscribe"), now=12) == "?"
    assert made.is_over
    assert made.decide(signature(SECRET, BODY), BODY) is CallbackDecision.OVER
    assert made.verify(question(mode="unsubscribe"), now=12) is None


def test_a_subscription_that_was_never_active_ends_at_once() -> None:
    made = requested()
    made.request(SubscriptionMode.UNSUBSCRIBE, until=20)
    assert made.is_over


@pytest.mark.parametrize("made", [active(), requested()], ids=["active", "asked"])
def test_a_denial_ends_a_subscription(made: CallbackSubscription) -> None:
    assert made.verify(question(mode="denied", topic="another"), now=2) is None
    assert made.verify(question(mode="denied", reason="no" * 500), now=2) == ""
    assert made.is_over
    assert made.denial is not None
    assert made.denial.startswith("nono")
    assert len(made.denial) == 200


def test_content_before_the_hub_was_answered_is_too_early() -> None:
    made = subscription()
    assert made.decide(signature(SECRET, BODY), BODY) is CallbackDecision.EARLY
    made.request(SubscriptionMode.SUBSCRIBE, until=10)
    assert made.decide(signature(SECRET, BODY), BODY) is CallbackDecision.EARLY


@pytest.mark.parametrize("method", METHODS)
def test_content_needs_a_signature_by_an_accepted_method(method: str) -> None:
    made = active()
    verdict = CallbackDecision.WEAK if method == "sha1" else CallbackDecision.ACCEPTED
    assert made.decide(signature(SECRET, BODY, method), BODY) is verdict
    assert made.weak == ("sha1" if method == "sha1" else None)


@pytest.mark.parametrize("header", [None, "", "sha256=00", signature("another", BODY)])
def test_content_without_a_right_signature_is_forged(header: str | None) -> None:
    made = active()
    assert made.decide(header, BODY) is CallbackDecision.FORGED
    assert made.weak is None


def test_neither_secret_nor_callback_shows() -> None:
    assert "canary" not in repr(active())


def queries() -> st.SearchStrategy[dict[str, str]]:
    names = st.sampled_from(["mode", "topic", "challenge", "lease_seconds", "reason"])
    values = st.sampled_from(["subscribe", "unsubscribe", "denied", TOPIC, "7", ""]) | st.text()
    return st.dictionaries(names.map("hub.".__add__), values)


@settings(max_examples=examples(50))
@given(st.lists(queries()), st.binary(), st.text())
def test_no_request_from_outside_makes_a_subscription(
    asked: list[dict[str, str]], body: bytes, header: str
) -> None:
    made = subscription()
    assert [made.verify(query, now=0) for query in asked] == [None] * len(asked)
    assert made.decide(header, body) is CallbackDecision.EARLY
