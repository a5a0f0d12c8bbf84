"""The checks of `rsnotify doctor`: of this machine, and of a Source or hub as reached from it."""

from __future__ import annotations

import re
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from rich.filesize import decimal
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from rsnotify import __version__
from rsnotify.errors import (
    FetchError,
    NotFound,
    RefusedAddress,
    RsnotifyError,
    SeveralSets,
    Unavailable,
)
from rsnotify.format.links import resolve
from rsnotify.format.offer import HUB_DOCUMENT, HubDocument, Offer
from rsnotify.runtime.addresses import TIMEOUT
from rsnotify.runtime.listening import listen
from rsnotify.runtime.reasons import reason_of
from rsnotify.runtime.state_folders import flush_milliseconds
from rsnotify_subscriber.discovery.discovery import discover
from rsnotify_subscriber.fetching.credentials import NO_CREDENTIALS, Credentials, without_login
from rsnotify_subscriber.fetching.fetcher import Fetcher
from rsnotify_subscriber.fetching.responses import ResponseOrigin, read_beginning
from rsnotify_subscriber.fetching.sessions import Sessions
from rsnotify_subscriber.push.hub_dialer import AddressMemory, HubDialer


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


class Check(Struct, frozen=True):
    """The result of one check: what was found and, if it is a problem, what to do about it."""

    name: str
    level: Level
    found: str
    remedy: str = ""


# This machine

_REQUIREMENT = re.compile(r"([\w.-]+)")
_EXTRA = re.compile(r"""extra == ["']([\w-]+)""")
_BOUND = re.compile(r"(>=|<)\s*([\d.]+)")
_DEFAULT_PORTS = {8080: "rsnotify hub", 8000: "rsnotify source"}
#: If the clock shows an earlier year, it was never set.
_EARLIEST_YEAR = 2026
#: Maximum number of measured flushes, and maximum seconds for all of them.
_MAX_FLUSHES, _MAX_FLUSH_SECONDS = 15, 1.5
#: Free bytes below which the disk gets a warning, and below which it fails the check.
_LOW_BYTES, _TOO_FEW_BYTES = 1_000_000_000, 100_000_000


def machine_checks(folder: Path, ports: Sequence[int] | None) -> Iterator[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Check("Python", Level.OK, f"{version} ({sys.executable}), rsnotify {__version__}")
    yield check_packages()
    for port in ports or _DEFAULT_PORTS:
        yield check_port(port, Level.FAILED if ports else Level.WARNING)
    yield check_year(datetime.now(UTC).year)
    yield check_flush(folder)
    yield check_space(folder, shutil.disk_usage(folder).free)


def check_packages() -> Check:
    required = metadata.requires("rsnotify") or ()
    wanted = [each for each in required if "extra ==" not in each]
    problems = [problem for each in wanted if (problem := _problem_of(each)) is not None]
    if problems:
        remedy = "run `pip install --upgrade rsnotify`"
        return Check("packages", Level.FAILED, ", ".join(problems), remedy)
    extras = ", ".join(_usable_extras(required)) or "none"
    return Check("packages", Level.OK, f"all {len(wanted)} required; extras: {extras}")


def _usable_extras(required: Sequence[str]) -> list[str]:
    """Return the extras whose packages are all installed in the required versions."""
    usable: dict[str, bool] = {}
    for each in required:
        if found := _EXTRA.search(each):
            usable[found[1]] = usable.get(found[1], True) and _problem_of(each) is None
    return sorted(extra for extra, is_usable in usable.items() if is_usable)


def _problem_of(requirement: str) -> str | None:
    """Return why a requirement is not met, or None if it is."""
    found = _REQUIREMENT.match(requirement)
    name = found[1] if found else requirement
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"{name} is not installed"
    for relation, bound in _BOUND.findall(requirement.partition(";")[0]):
        if (_numbers(version) >= _numbers(bound)) != (relation == ">="):
            return f"{name} {version} is not {relation}{bound}"
    return None


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def check_port(port: int, level: Level) -> Check:
    use = f" ({_DEFAULT_PORTS[port]})" if port in _DEFAULT_PORTS else ""
    try:
        listen("0.0.0.0", port).close()
    except RsnotifyError as error:
        reason = str(error).partition("; ")[0]
        remedy = f"stop the process that uses it, or choose another port with --port{use}"
        return Check("port", level, reason, remedy)
    return Check("port", Level.OK, f"{port} is free{use}")


def check_year(year: int) -> Check:
    if year < _EARLIEST_YEAR:
        remedy = "set the clock, because certificates and datetimes depend on it"
        return Check("clock", Level.FAILED, f"it shows the year {year}", remedy)
    return Check("clock", Level.OK, f"it shows the year {year}")


def check_flush(folder: Path) -> Check:
    times: list[float] = []
    began = monotonic()
    try:
        while len(times) < _MAX_FLUSHES and monotonic() - began < _MAX_FLUSH_SECONDS:
            times.append(flush_milliseconds(folder))
    except OSError as error:
        reason = f"cannot write to {folder}: {reason_of(error)}"
        return Check(
            "disk", Level.FAILED, reason, "choose another folder, or correct its permissions"
        )
    return flush_verdict(folder, median(times))


def flush_verdict(folder: Path, milliseconds: float) -> Check:
    """Judge the duration of a flush. Each change waits for two: at the Source and at the copy."""
    measured = f"a flush in {folder.resolve()} takes {milliseconds:.2f} ms"
    if milliseconds < 0.05:
        remedy = "a power failure may lose committed changes; keep the state on a real disk"
        found = f"{measured}, too short for a disk: it is in memory, or ignores flushes"
        return Check("disk", Level.WARNING, found, remedy)
    for limit, word in ((3, "fast"), (15, "normal")):
        if milliseconds <= limit:
            return Check("disk", Level.OK, f"{measured}: {word}")
    remedy = "each change waits for a flush; keep the state (--data, --state) on an SSD"
    return Check("disk", Level.WARNING, f"{measured}: slow", remedy)


def check_space(folder: Path, free: int) -> Check:
    found = f"{decimal(free)} free in {folder.resolve()}"
    if free >= _LOW_BYTES:
        return Check("space", Level.OK, found)
    level = Level.FAILED if free < _TOO_FEW_BYTES else Level.WARNING
    return Check("space", level, found, "free up space, or choose another disk")


# A Source or a hub

#: Difference of the clocks, in seconds, above which datetimes mislead, and certificates may fail.
_SKEW_SECONDS, _LARGE_SKEW_SECONDS = 5, 300
#: The names of the checks of endpoints, by scheme.
_ENDPOINTS = {"http": "hub", "https": "hub", "ws": "WebSocket", "wss": "WebSocket"}
_PORTS = {"ws": 80, "wss": 443, "mqtt": 1883, "mqtts": 8883, "xmpp": 5222}


async def examine(
    url: str,
    report: Callable[[Check], None],
    *,
    allow_private_addresses: bool = False,
    credentials: Credentials = NO_CREDENTIALS,
) -> None:
    """Check a Source and its hubs, or a hub."""
    sessions = Sessions(
        url, allow_private_addresses=allow_private_addresses, credentials=credentials
    )
    with TemporaryDirectory(prefix="rsnotify-doctor-") as temporary:
        async with sessions:
            fetcher = Fetcher(sessions, Path(temporary))
            await _RemoteChecks(sessions, fetcher, without_login(url), report).run()


class _RemoteChecks:
    def __init__(
        self, sessions: Sessions, fetcher: Fetcher, url: str, report: Callable[[Check], None]
    ) -> None:
        self._sessions = sessions
        self._fetcher = fetcher
        self._url = url
        self._report = report

    def _ok(self, name: str, found: str) -> None:
        self._report(Check(name, Level.OK, found))

    def _failed(self, name: str, error: RsnotifyError, remedy: str) -> None:
        # The reason for a refused address already includes the remedy.
        advice = "" if isinstance(error, RefusedAddress) else remedy
        self._report(Check(name, Level.FAILED, str(error), advice))

    async def run(self) -> None:
        if not await self._clock():
            return
        try:
            document = await self._hub_document(self._url)
        except FetchError:
            document = None  # it is not a hub
        if document is None:
            await self._source()
        else:
            self._ok("hub", _description(self._url, document))
            if document.websocket is not None:
                await self._endpoint(document.websocket)

    async def _clock(self) -> bool:
        """Compare the local clock with the server's clock. Return whether the server responds."""
        origin, began = ResponseOrigin(self._url), datetime.now(UTC)
        try:
            async with self._sessions.get(self._url, {"Cache-Control": "no-cache"}, origin):
                pass
        except FetchError as error:
            self._failed("URL", error, "check the URL, the server and the network")
            return False
        ended = datetime.now(UTC)
        if origin.sent is not None and not origin.cached:
            skew = (began + (ended - began) / 2 - origin.sent).total_seconds()
            self._report(clock_verdict(skew, (ended - began).total_seconds() + 1))
        return True

    async def _source(self) -> None:
        try:
            offer = await discover(self._fetcher, self._url)
        except SeveralSets as several:
            self._report(Check("Source", Level.WARNING, str(several), "check one of them"))
            return
        except RsnotifyError as error:
            self._failed("Source", error, f"run `rsnotify inspect {self._url}` for details")
            return
        self._ok("Source", f"found at {offer.uri}")
        await self._documents(offer)
        if not offer.hubs:
            remedy = "publish with --hub (rsnotify source), or follow with a short --poll"
            self._report(
                Check("push", Level.WARNING, "the Source has no hub, so Destinations poll", remedy)
            )
        for endpoint in offer.hubs:
            await self._endpoint(endpoint)

    async def _documents(self, offer: Offer) -> None:
        uris = [each for each in (offer.top, offer.capability_list) if each is not None]
        uris = list(dict.fromkeys([*uris, *offer.documents.values()]))
        for uri in uris:
            try:
                if not await self._fetcher.exists(uri):
                    raise NotFound(uri, "the server does not have it")
            except FetchError as error:
                remedy = "publish it, or remove it from its parent document"
                self._failed("document", error, remedy)
                return
        checking = f"`rsnotify validate {self._url} --deep` checks their content"
        self._ok("documents", f"all {len(uris)} are available; {checking}")

    async def _endpoint(self, uri: str) -> None:
        scheme = urlsplit(uri).scheme
        name = _ENDPOINTS.get(scheme, scheme)
        try:
            if name == "hub":
                self._ok(name, await self._websub(uri))
                return
            if name == "WebSocket":
                await self._websocket(uri)
            else:
                (await self._dial(uri)).close()
            self._ok(name, f"{uri} accepts connections")
        except FetchError as error:
            remedy = "start it, or correct --hub and --advertise at the Source"
            self._failed(name, error, remedy)

    async def _websub(self, uri: str) -> str:
        document = await self._hub_document(uri)
        if document is not None:
            return _description(uri, document)
        async with self._hub_sessions(uri) as sessions, sessions.get(uri, {}) as response:
            return f"{uri} responds with {response.status}; it is not an rsnotify hub"

    @asynccontextmanager
    async def _hub_sessions(self, uri: str) -> AsyncIterator[Sessions]:
        # Unlike documents, a hub may use any port of the Source's host.
        trusted = await self._sessions.allows_any_address(urlsplit(uri).hostname)
        async with Sessions("", allow_private_addresses=trusted) as sessions:
            yield sessions

    async def _hub_document(self, uri: str) -> HubDocument | None:
        """Return a hub's document about itself, or None if it has none."""
        place = resolve(uri, ".") + HUB_DOCUMENT
        async with self._hub_sessions(uri) as sessions, sessions.get(place, {}) as response:
            body = await read_beginning(place, response, 10_000)
            if response.status != 200:
                return None
        try:
            return msgspec.json.decode(body, type=HubDocument)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    async def _websocket(self, uri: str) -> None:
        sock = await self._dial(uri)
        headers = self._sessions.credentials_for(uri)
        try:
            async with connect(
                uri, sock=sock, additional_headers=headers, open_timeout=TIMEOUT, close_timeout=1
            ):
                pass
        except (OSError, ValueError, WebSocketException) as error:
            raise Unavailable(uri, f"cannot open a WebSocket: {reason_of(error)}") from None

    async def _dial(self, uri: str) -> socket.socket:
        parts = urlsplit(uri)
        port = parts.port or _PORTS.get(parts.scheme, 0)
        try:
            dialer = HubDialer(AddressMemory(), self._sessions.allows_any_address)
            return await dialer.dial(uri, parts.hostname, port)
        except OSError as error:
            raise Unavailable(uri, f"cannot connect: {reason_of(error)}") from None


def clock_verdict(skew: float, uncertainty: float) -> Check:
    """Judge the difference between the local clock and a server's clock.

    Args:
        skew: How far the local clock is ahead of the server's, in seconds.
        uncertainty: The uncertainty of `skew`, in seconds.
    """
    if abs(skew) <= max(_SKEW_SECONDS, uncertainty):
        return Check("clock", Level.OK, "agrees with the server's")
    found = f"{abs(skew):,.0f} s {'ahead of' if skew > 0 else 'behind'} the server's"
    level = Level.FAILED if abs(skew) > _LARGE_SKEW_SECONDS else Level.WARNING
    return Check("clock", level, found, "synchronize both clocks, for example with NTP")


def _description(uri: str, document: HubDocument) -> str:
    offered = [name for name in document.__struct_fields__ if getattr(document, name) is not None]
    return f"{uri} is an rsnotify hub that offers {', '.join(offered)}"
