"""The status of followed Sources: as JSON at `/status`, as a page at `/`, and in a terminal."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer
from msgspec import Struct

from rsnotify.errors import ConfigurationError, Unavailable, counted
from rsnotify.runtime.command_line import printable
from rsnotify.runtime.command_reports import duration, print_result
from rsnotify_subscriber.commands.follow_report import status_facts
from rsnotify_subscriber.fleet.fleet import Fleet, FollowedSourceStatus, Standing, standing

if TYPE_CHECKING:
    from aiohttp import web
    from rich.console import Group

    from rsnotify.runtime.command_status import StatusServer
    from rsnotify_subscriber.subscriber import Subscriber

_STATIC = Path(__file__).with_name("static")
_PATH = "status"
#: Timeout in seconds for reading the status of another process.
_STATUS_TIMEOUT = 30.0
_COLORS = {Standing.LEVEL: "green", Standing.BEHIND: "yellow", Standing.DOUBT: "red"}


def serving_follower(
    follower: Subscriber | Fleet, status: StatusServer
) -> AbstractAsyncContextManager[None]:
    """Serve the status, metrics and page of a follower while the context is active."""
    if not status.is_listening:
        return nullcontext()
    from rsnotify_subscriber.metrics import FollowMetrics, not_ready

    families = FollowMetrics(follower).collect
    return status.serving(families, lambda: not_ready(follower), *routes(follower))


def routes(follower: Subscriber | Fleet) -> list[web.RouteDef]:
    """Return the routes of the status page and its data."""
    from aiohttp import web

    from rsnotify.runtime.serving import page_files
    from rsnotify_subscriber.metrics import statuses

    async def status(request: web.Request) -> web.Response:
        rows = [_row(name, one) for name, one in statuses(follower).items()]
        found: dict[str, Any] = {"at": datetime.now(UTC), "sources": rows}
        if isinstance(follower, Fleet):
            found["elsewhere"] = follower.elsewhere()
        body = msgspec.json.encode(found)
        headers = {"Cache-Control": "no-store"}
        return web.Response(body=body, content_type="application/json", headers=headers)

    return [web.get(f"/{_PATH}", status), *page_files(_STATIC)]


def _row(name: str, one: FollowedSourceStatus) -> dict[str, Any]:
    facts = status_facts(one.status) | {"phase": one.phase, "error": one.error}
    return {"name": name, "url": one.url, "standing": standing(one)} | facts


class StatusRow(Struct, frozen=True):
    """The fields of a Source's status that are shown in a terminal."""

    name: str
    standing: Standing
    through: datetime | None = None
    behind_since: datetime | None = None
    lag_ms: float | None = None
    push: str = "off"
    pending: int = 0
    doubts: list[str] = []
    error: str | None = None

    @property
    def reason(self) -> str:
        reasons = [self.error] if self.error else self.doubts
        return "" if self.standing is Standing.LEVEL else printable("; ".join(reasons))

    @property
    def push_words(self) -> str:
        if self.through is None and self.push != "up":
            return ""
        return {"up": "push", "down": "polling: no hub"}.get(self.push, "polling")


class StatusRows(Struct, frozen=True):
    at: datetime
    sources: list[StatusRow]
    #: The processes that follow Sources elsewhere, by the Source's name.
    elsewhere: dict[str, str] = {}


def show_status(place: str, *, json: bool) -> None:
    """Print the status of a running follower, given its `--status-port` or URL.

    The exit code is 1 unless all copies are level.
    """
    body = _get(_url(place))
    try:
        found = msgspec.json.decode(body, type=StatusRows)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Unavailable(place, "this is not the status of `rsnotify follow`") from None
    if json:
        typer.echo(body.decode())
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(_table(found))
    else:
        print_result(None, _lines(found), json=False)
    if any(row.standing is not Standing.LEVEL for row in found.sources):
        raise typer.Exit(1)


def _url(place: str) -> str:
    if place.isdecimal():
        place = f"http://127.0.0.1:{place}"
    elif "://" not in place:
        place = f"http://{place}"
    if not place.startswith(("http://", "https://")):
        raise ConfigurationError(f"{place!r} is neither a port nor a URL of a status")
    return f"{place.removesuffix(_PATH).rstrip('/')}/{_PATH}"


def _get(url: str) -> bytes:
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=_STATUS_TIMEOUT) as response:
            return bytes(response.read())
    except urllib.error.HTTPError as error:
        error.close()
        raise Unavailable(url, f"it answered {error.code}, so it is not a status") from None
    except (OSError, ValueError):
        hint = "start `rsnotify follow` with --status-port, and use that port"
        raise Unavailable(url, f"there is no answer; {hint}") from None


def _lines(found: StatusRows) -> Iterator[str]:
    for row in found.sources:
        why = f": {row.reason}" if row.reason else ""
        is_new = row.through is None
        synced = "not synced yet" if is_new else f"synced through {_time(row.through)}"
        yield f"{row.standing:<6}  {row.name}  {synced}{why}"
    yield from others(found.elsewhere)
    yield _sums(found)


def others(elsewhere: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each other process, with the number of Sources that it follows."""
    for process, count in Counter(elsewhere.values()).most_common():
        yield f"{counted(count, 'Source')} followed by {process}"


def _table(found: StatusRows) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for title in ("", "Source", "for", "synced through", "lag", "by", "pending"):
        table.add_column(title, justify="right" if title in ("for", "lag", "pending") else "left")
    rows = sorted(found.sources, key=lambda row: list(Standing).index(row.standing))
    for row in rows:
        table.add_row(
            Text(row.standing, style=_COLORS[row.standing]),
            Text(printable(row.name), overflow="fold"),
            ""
            if row.behind_since is None
            else duration((found.at - row.behind_since).total_seconds()),
            _time(row.through),
            "" if row.lag_ms is None else f"{row.lag_ms:.1f} ms",
            row.push_words,
            f"{row.pending:,}",
        )
    reasons = [Text(f"{printable(one.name)}: {one.reason}") for one in rows if one.reason]
    notes = [Text(printable(line)) for line in others(found.elsewhere)]
    return Group(table, Text(), *reasons, *notes, Text(_sums(found)))


def _sums(found: StatusRows) -> str:
    count = [row.standing for row in found.sources].count
    others = {"behind": count(Standing.BEHIND), "in doubt": count(Standing.DOUBT)}
    rest = "".join(f", {number:,} {what}" for what, number in others.items() if number)
    return f"{count(Standing.LEVEL):,} of {counted(len(found.sources), 'Source')} level{rest}"


def _time(moment: datetime | None) -> str:
    return "never" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}Z"
