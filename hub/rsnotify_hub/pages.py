"""The first page: which topics there are, who listens, and who lags."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from msgspec import Struct

from rsnotify.datetimes import Instant, format_datetime
from rsnotify_hub.log.store import LogState
from rsnotify_hub.subscriptions import Subscription
from rsnotify_hub.websub.forms import host_of

#: Nothing but the page itself and its style; no script, no frame, no form.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'"
)

#: How many rows a table has at most.
MAX_ROWS = 500

_REFRESH_SECONDS = 5
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem;
  padding: 0 1rem; color: CanvasText; background: Canvas; color-scheme: light dark }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #8884;
  overflow-wrap: anywhere }
th, td.number { white-space: nowrap }
td.number, th.number { text-align: right }
"""


class TopicRow(Struct, frozen=True):
    """One topic.

    Args:
        state: Its log.
        websockets: How many WebSockets listen.
        callbacks: How many WebSub subscriptions it has.
    """

    state: LogState
    websockets: int
    callbacks: int


class SubscriptionRow(Struct, frozen=True):
    """One WebSub subscription.

    Args:
        subscription: What the store keeps.
        behind_since: When it began to lag; None when it is up to date.
        failures: How many tries failed in a row.
    """

    subscription: Subscription
    behind_since: Instant | None
    failures: int


def first_page(
    topics: Sequence[TopicRow], subscriptions: Sequence[SubscriptionRow], *, now: Instant
) -> str:
    """Write the page. Of a callback only the host is shown, since the rest may be secret."""
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="{_REFRESH_SECONDS}">
<meta name="viewport" content="width=device-width"><title>rsnotify hub</title>
<style>{_STYLE}</style></head><body>
<h1>rsnotify hub</h1>
<h2>Topics</h2>
{_table(_TOPIC_HEADINGS, [_topic_cells(row) for row in topics[:MAX_ROWS]], len(topics))}
<h2>WebSub subscriptions</h2>
{
        _table(
            _SUBSCRIPTION_HEADINGS,
            [_subscription_cells(row, now) for row in subscriptions[:MAX_ROWS]],
            len(subscriptions),
        )
    }
</body></html>
"""


_TOPIC_HEADINGS = (
    "Topic",
    "Through",
    "Fragments kept",
    "WebSockets",
    "Subscriptions",
    "Last received",
)
_SUBSCRIPTION_HEADINGS = ("Callback host", "Topic", "Lease until", "Lag")


def _topic_cells(row: TopicRow) -> tuple[str | int, ...]:
    state = row.state
    return (
        state.topic,
        format_datetime(state.through),
        state.kept,
        row.websockets,
        row.callbacks,
        format_datetime(state.received),
    )


def _subscription_cells(row: SubscriptionRow, now: Instant) -> tuple[str | int, ...]:
    subscription = row.subscription
    return (
        host_of(subscription.callback),
        subscription.topic,
        format_datetime(subscription.expires),
        _lag(row, now),
    )


def _lag(row: SubscriptionRow, now: Instant) -> str:
    if row.behind_since is None:
        return "none"
    seconds = max(0.0, (now - row.behind_since).total_seconds())
    tries = f", {row.failures} failed tries" if row.failures else ""
    return f"{seconds:.1f} s{tries}"


def _table(headings: Iterable[str], rows: Sequence[tuple[str | int, ...]], total: int) -> str:
    if not rows:
        return "<p>None yet.</p>"
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in rows)
    more = f"<p>And {total - len(rows)} more.</p>" if total > len(rows) else ""
    return f"<table><tr>{head}</tr>\n{body}</table>{more}"


def _cell(value: str | int) -> str:
    kind = ' class="number"' if isinstance(value, int) else ""
    return f"<td{kind}>{escape(str(value))}</td>"
