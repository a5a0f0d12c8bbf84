"""A date in `Retry-After`, from a server whose clock is wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec import Struct
from multidict import CIMultiDict

from rsnotify_publisher.push.http_post import seconds_to_wait
from rsnotify_subscriber.fetching.responses import format_http_date, retry_after


class Head(Struct):
    headers: CIMultiDict[str]
    status: int = 503


@pytest.mark.parametrize("ahead", [timedelta(hours=-1), timedelta(), timedelta(hours=1)])
def test_a_date_in_retry_after_is_by_the_clock_of_the_server(ahead: timedelta) -> None:
    now = datetime.now(UTC).replace(microsecond=0) + ahead
    later = format_http_date(now + timedelta(seconds=30))
    head = Head(CIMultiDict({"Date": format_http_date(now), "Retry-After": later}))
    assert retry_after(head) == 30  # type: ignore[arg-type]
    assert seconds_to_wait(head.headers) == 30
