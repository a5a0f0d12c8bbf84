"""Origins without push on simulated machines: an OAI-PMH repository, and a stream of events.

Both serve their resources, too. What is true of them is kept as the versions of each resource, with
the virtual time at which each became visible.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from random import Random
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from aiohttp import web

from rsnotify.format.datetimes import format_datetime, parse_datetime
from rsnotify_gateway import OriginSettings
from rsnotify_gateway.adapters import event_streams, oai_pmh
from rsnotify_gateway.adapters.event_streams import EventMapping
from tests.harnesses.simulation.loop import Clock, Machine, SimulatedLoop
from tests.harnesses.simulation.network import Network
from tests.harnesses.simulation.patching import EPOCH
from tests.harnesses.simulation.world import RESOURCES, Simulated, hash_of

#: They are loaded by name, and the code of the modules that are loaded later is not patched.
ADAPTERS = oai_pmh, event_streams
_EMPTY = b'<?xml version="1.0"?><OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/">'
_MOST_LISTED = 3


class OriginTerms(NamedTuple):
    """How the origins of a seed behave.

    Attributes:
        kinds: Which there are.
        deletions: What the repository declares of deleted records (OAI-PMH §2.5.1).
        late: By how many seconds some records become visible after their datestamp.
        snapshots: Whether a list stays as it was when it was requested; otherwise it goes on after
            the last datestamp and identifier.
        errors: Which part of the requests fails.
        ids: Whether events have ids; without, a connection has what comes after it began.
        slow_clock: Whether the clock of the repository may be behind, so that datestamps are older
            than the overlap.
        overlap: By how many seconds harvests overlap; lists may take longer.
    """

    kinds: tuple[str, ...]
    deletions: str
    late: float
    snapshots: bool
    errors: float
    ids: bool
    slow_clock: bool
    overlap: float

    @property
    def is_compared(self) -> bool:
        """Whether the gateway compares the whole repository from time to time."""
        is_late = self.late > self.overlap or self.slow_clock
        return is_late or self.deletions != "persistent"


def draw_terms(random: Random) -> OriginTerms:
    return OriginTerms(
        random.choice((("oai",), ("events",), ("oai", "events"))),
        random.choice(("persistent", "persistent", "transient", "no")),
        random.choice((0.0, 0.0, 30.0, 90.0)),
        random.random() < 0.5,
        random.choice((0.0, 0.1, 0.3)),
        random.random() < 0.75,
        random.random() < 0.3,
        random.choice((60.0, 2.0)),
    )


class Version(NamedTuple):
    """A version of a resource.

    Attributes:
        visible: The virtual time from which on the origin has it.
        digest: The hash of the content; None if there is none.
        stamp: The datetime that the origin states.
    """

    visible: float
    digest: str | None
    stamp: datetime


class Origin(Simulated):
    """A server of resources, which a gateway follows."""

    def __init__(
        self, loop: SimulatedLoop, network: Network, name: str, port: int, terms: OriginTerms
    ) -> None:
        super().__init__(loop, network, name, Clock())
        self.port = port
        self.base = f"http://127.0.0.1:{port}/"
        self.terms = terms
        self.is_faulty = True
        self.contents: dict[int, bytes] = {}
        self.versions: dict[int, list[Version]] = {number: [] for number in range(RESOURCES)}
        self._count = 0

    def settings(self) -> OriginSettings:
        """Return how a gateway follows it."""
        raise NotImplementedError

    def add_routes(self, app: web.Application) -> None:
        raise NotImplementedError

    async def run(self, machine: Machine) -> None:
        app = web.Application()
        app.router.add_get("/r/{name}", self._resource)
        self.add_routes(app)
        await self.network.serve(machine, self.port, app)
        await asyncio.Event().wait()

    async def _resource(self, request: web.Request) -> web.Response:
        content = self.contents.get(int(request.match_info["name"]))
        if content is None:
            raise web.HTTPNotFound
        return web.Response(body=content)

    def now(self) -> datetime:
        """Return the time of day of this machine."""
        return EPOCH + timedelta(microseconds=round(self.clock.read(self.loop.now) * 1_000_000))

    def change(self, number: int, *, delete: bool) -> None:
        """Change a resource; deletions of what is not there are none."""
        if delete and number not in self.contents:
            return
        self._count += 1
        content = None if delete else b"%d at %s" % (self._count, self.base.encode())
        self.show(number, content, self.now())

    def show(self, number: int, content: bytes | None, stamp: datetime) -> None:
        """Make a version visible."""
        if content is None:
            self.contents.pop(number, None)
        else:
            self.contents[number] = content
        digest = None if content is None else hash_of(content)
        self.versions[number].append(Version(self.loop.now, digest, stamp))

    def visible(self, number: int, when: float) -> int:
        """Return how many versions of a resource were visible at a time."""
        return sum(version.visible <= when for version in self.versions[number])

    @property
    def set(self) -> dict[str, str]:
        """The hashes of all resources."""
        return {f"{self.base}r/{n}": hash_of(content) for n, content in self.contents.items()}

    def end_faults(self) -> None:
        self.is_faulty = False


class FastClock(Clock):
    """A clock that is never behind."""

    def set(self, ahead: float) -> None:
        super().set(max(0.0, ahead))

    def stop(self, now: float) -> None: ...


class Record(NamedTuple):
    number: int
    stamp: datetime
    content: bytes | None


class Repository(Origin):
    """An OAI-PMH repository."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        if not self.terms.slow_clock:
            self.clock = FastClock()
        self._records: dict[int, Record] = {}
        #: What each resumption token continues; a restart forgets them.
        self._tokens: dict[str, tuple[datetime | None, list[Record] | Record]] = {}
        self._given = 0

    def settings(self) -> OriginSettings:
        return OriginSettings(
            name=self.name,
            type="oai-pmh",
            url=f"{self.base}oai",
            uri=f"{self.base}r/{{local}}",
            overlap=self.terms.overlap,
            compare=_COMPARE if self.terms.is_compared else None,
            poll=5,
            poll_most=20,
            delay=0.2,
            allow_private_addresses=True,
        )

    def add_routes(self, app: web.Application) -> None:
        self._tokens.clear()
        app.router.add_get("/oai", self._answer)

    def change(self, number: int, *, delete: bool) -> None:
        late = self.terms.late
        if not late or delete or self.loop.random.random() < 0.5:
            super().change(number, delete=delete)
            return
        self._count += 1
        content, stamp = b"%d, late" % self._count, self.now()
        self.loop.call_later(late * self.loop.random.random(), self.show, number, content, stamp)

    def show(self, number: int, content: bytes | None, stamp: datetime) -> None:
        stamp = stamp.replace(microsecond=0)
        super().show(number, content, stamp)
        # A record moves to the end of the list.
        self._records.pop(number, None)
        if content is not None or self.terms.deletions != "no":
            self._records[number] = Record(number, stamp, content)
        if content is None and self.terms.deletions == "transient":
            self.loop.call_later(_KEPT, self._forget, self._records[number])

    def _forget(self, record: Record) -> None:
        if self._records.get(record.number) is record:
            del self._records[record.number]

    async def _answer(self, request: web.Request) -> web.Response:
        chance = self.loop.random
        if self.is_faulty and chance.random() < self.terms.errors:
            kind = chance.choice(("error", "busy", "half", "token"))
            if kind == "error":
                raise web.HTTPInternalServerError
            if kind == "busy":
                raise web.HTTPServiceUnavailable(headers={"Retry-After": "3"})
            if kind == "token":
                self._tokens.clear()
        else:
            kind = ""
        arguments = dict(request.query)
        verbs: dict[str, Callable[[dict[str, str]], str]] = {
            "Identify": self._identify,
            "ListRecords": self._list,
            "GetRecord": self._get,
        }
        date = f"<responseDate>{_written(self.now())}</responseDate><request>x</request>"
        body = _EMPTY + (date + verbs[arguments["verb"]](arguments) + "</OAI-PMH>").encode()
        if kind == "half":
            body = body[: len(body) // 2]
        return web.Response(body=body, content_type="text/xml")

    def _identify(self, _: dict[str, str]) -> str:
        fields = {
            "repositoryName": "Simulated",
            "baseURL": f"{self.base}oai",
            "protocolVersion": "2.0",
            "earliestDatestamp": _written(EPOCH - timedelta(days=2)),
            "deletedRecord": self.terms.deletions,
            "granularity": "YYYY-MM-DDThh:mm:ssZ",
        }
        return _element("Identify", "".join(_element(*field) for field in fields.items()))

    def _list(self, arguments: dict[str, str]) -> str:
        if (token := arguments.get("resumptionToken")) is not None:
            if token not in self._tokens:
                return '<error code="badResumptionToken">It is not known.</error>'
            begin, rest = self._tokens[token]
        else:
            stated = arguments.get("from")
            begin = None if stated is None else parse_datetime(stated)
            rest = self._listed(begin)
        found = rest if isinstance(rest, list) else self._listed(begin, rest)
        if not found:
            return '<error code="noRecordsMatch">There are none.</error>'
        page, rest = found[:_MOST_LISTED], found[_MOST_LISTED:]
        text = "".join(map(_record, page))
        if rest:
            self._given += 1
            self._tokens[f"token-{self._given}"] = (
                begin,
                rest if self.terms.snapshots else page[-1],
            )
            text += _element("resumptionToken", f"token-{self._given}")
        elif token is not None:
            text += "<resumptionToken/>"
        return _element("ListRecords", text)

    def _listed(self, begin: datetime | None, after: Record | None = None) -> list[Record]:
        """Return the records from a datestamp on that are listed after another one."""
        found = sorted(self._records.values(), key=lambda each: (each.stamp, each.number))
        if after is not None:
            last = after.stamp, after.number
            found = [each for each in found if (each.stamp, each.number) > last]
        return [each for each in found if begin is None or each.stamp >= begin]

    def _get(self, arguments: dict[str, str]) -> str:
        record = self._records.get(int(arguments["identifier"].rpartition(":")[2]))
        if record is None:
            return '<error code="idDoesNotExist">It does not exist.</error>'
        return _element("GetRecord", _record(record))


#: The seconds between comparisons, and for which transient deletions are kept.
_COMPARE, _KEPT = 60.0, 30.0


def _written(instant: datetime) -> str:
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ")


def _element(name: str, text: str) -> str:
    return f"<{name}>{text if '<' in text else escape(text)}</{name}>"


def _record(record: Record) -> str:
    header = f"<identifier>oai:simulated:{record.number}</identifier>"
    header += f"<datestamp>{_written(record.stamp)}</datestamp>"
    if record.content is None:
        return f'<record><header status="deleted">{header}</header></record>'
    metadata = f'<metadata><dc xmlns="x">{record.content.decode()}</dc></metadata>'
    return f"<record><header>{header}</header>{metadata}</record>"


#: Seconds between two changes of everything after the faults.
_TOUCHED = 60.0


class EventStream(Origin):
    """A stream of Server-Sent Events that has all events since the beginning."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        #: The data of each event; its id is its number.
        self.log: list[bytes] = []
        #: The resource, the number of the version and the datetime of each event.
        self.events: list[tuple[int, int, datetime]] = []
        #: With which event the last connection began.
        self.begun = 0
        self._touched = 0.0
        self._more: list[asyncio.Future[None]] = []

    def settings(self) -> OriginSettings:
        return OriginSettings(
            name=self.name,
            type="events",
            url=f"{self.base}stream",
            event=EventMapping("/uri", "/at", "/change", ("gone",)),
            poll=5,
            poll_most=20,
            delay=0.2,
            allow_private_addresses=True,
        )

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/stream", self._stream)

    def show(self, number: int, content: bytes | None, stamp: datetime) -> None:
        super().show(number, content, stamp)
        change = "gone" if content is None else "changed"
        event = {"uri": f"{self.base}r/{number}", "at": format_datetime(stamp), "change": change}
        self.events.append((number, len(self.versions[number]), stamp))
        self.log.append(json.dumps(event | {"version": self._count}).encode())
        waiting, self._more = self._more, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def end_faults(self) -> None:
        """Change everything from time to time: what nobody was sent is never sent again."""
        super().end_faults()
        if self.loop.now > self._touched + _TOUCHED:
            self._touched = self.loop.now
            for number in range(RESOURCES):
                self.change(number, delete=False)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        if self.is_faulty and self.loop.random.random() < self.terms.errors:
            raise web.HTTPServiceUnavailable(headers={"Retry-After": "3"})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        last = request.headers.get("Last-Event-ID")
        sent = int(last) + 1 if last else 0 if self.terms.ids else len(self.log)
        self.begun = sent
        await response.prepare(request)
        await response.write(b"retry: 1000\n\n")
        while True:
            for number in range(sent, len(self.log)):
                head = b"id: %d\n" % number if self.terms.ids else b""
                await response.write(head + b"data: " + self.log[number] + b"\n\n")
            sent = max(sent, len(self.log))
            more: asyncio.Future[None] = self.loop.create_future()
            self._more.append(more)
            try:
                await asyncio.wait_for(more, 20)
            except TimeoutError:
                await response.write(b": still here\n\n")


KINDS = {"oai": Repository, "events": EventStream}
