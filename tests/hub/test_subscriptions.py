from __future__ import annotations

from datetime import timedelta

import pytest

from rsnotify_hub.websub.callback_requests import Answer
from rsnotify_hub.websub_subscription import (
    Subscription,
    is_expired,
    new_or_renewed,
)
from tests.hub.helpers import at

NEW = {"topic": "t", "callback": "c", "secret": None, "lease": 60, "now": at(0), "position": 7}


def test_a_new_subscription_begins_at_the_end_of_the_log():
    assert new_or_renewed(None, **NEW) == Subscription("t", "c", None, at(60), 7)


def test_a_renewal_keeps_the_position_and_replaces_secret_and_lease():
    old = Subscription("t", "c", "old", at(10), 3)
    assert new_or_renewed(old, **{**NEW, "secret": "new"}) == Subscription(
        "t", "c", "new", at(60), 3
    )


def test_a_renewal_after_the_lease_has_ended_is_a_new_subscription():
    old = Subscription("t", "c", None, at(0), 3)
    assert new_or_renewed(old, **NEW).position == 7


def test_a_lease_ends_at_its_instant():
    subscription = new_or_renewed(None, **NEW)
    assert not is_expired(subscription, at(60) - timedelta(microseconds=1))
    assert is_expired(subscription, at(60))


@pytest.mark.parametrize(
    ("status", "succeeded", "is_gone"),
    [
        (200, True, False),
        (299, True, False),
        (301, False, False),
        (404, False, False),
        (410, False, True),
        (500, False, False),
        (None, False, False),
    ],
)
def test_an_answer_is_judged_by_its_status(status: int | None, succeeded: bool, is_gone: bool):
    assert (Answer(status, "").succeeded, Answer(status, "").is_gone) == (succeeded, is_gone)


def test_secrets_do_not_show():
    assert "canary" not in repr(Subscription("t", "c?canary", "canary", at(1), 0))
