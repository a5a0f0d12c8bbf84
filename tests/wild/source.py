"""A Source that serves exactly what a test puts there, byte for byte and header for header."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from typing import Any

from aiohttp import web

from tests.subscriber.source import Server
from tests.wild.documents import (
    Time,
    capability_list,
    change_list,
    description,
    entry,
    resource_list,
    sha256,
)

FOLDER = "/set/"


@dataclass
class Answer:
    """What is answered at a path.

    Args:
        body: The bytes; or a function that returns pieces, perhaps without end.
        status: The status.
        headers: Header fields; one that is None is not sent (also `Date`).
        etag: The ETag as it is sent, with its quotes.
        modified: The Last-Modified.
        date: The Date; None for that of the Source's clock.
        age: The Age, in seconds, as a cache sends it.
        conditional: Whether If-None-Match and If-Modified-Since are honoured, as nginx does.
        gate: What an answer waits for.
        delay: Seconds that it waits.
    """

    body: bytes | Callable[[], Iterable[bytes] | AsyncIterable[bytes]] = b""
    status: int = 200
    headers: dict[str, str | None] = field(default_factory=dict)
    etag: str | None = None
    modified: datetime | None = None
    date: datetime | None = None
    age: int | None = None
    conditional: bool = True
    gate: asyncio.Event | None = None
    delay: float = 0.0


@dataclass(frozen=True)
class Request:
    """A request, and the status that it was answered with (0 while it is not)."""

    method: str
    path: str
    headers: dict[str, str]
    status: int = 0

    @property
    def conditional(self) -> bool:
        return bool({"If-None-Match", "If-Modified-Since"} & self.headers.keys())

    @property
    def past_caches(self) -> bool:
        """Whether caches on the way are told to ask the Source itself (RFC 9111 §5.2.1)."""
        control = self.headers.get("Cache-Control", "")
        return "no-cache" in control or "no-store" in control or "max-age=0" in control


#: An answer, or its bytes; or a function of the request that returns one, now or later.
Given = Answer | bytes | str | Callable[[Request], Any]


def nginx_etag(content: bytes, modified: datetime) -> str:
    """Return the ETag that nginx gives a file: the second in which it was written, and its size."""
    return f'"{int(modified.timestamp()):x}-{len(content):x}"'


def moved(to: str, status: int = 301) -> Answer:
    return Answer(status=status, headers={"Location": to})


class Source:
    """A scripted Source. Nothing is there but what `put`, `file` and `offer` put there.

    Documents and resources lie in one folder, `base`. `resources` is the truth: what a right copy
    holds, by name below `base`. `file` and `remove` keep it; `put` does not touch it.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Given] = {}
        self.resources: dict[str, bytes] = {}
        #: Entries that a test wants to list again.
        self.told: list[str] = []
        self.log: list[Request] = []
        #: What the Source's clock shows, for the Date of its answers; None for the present.
        self.clock: datetime | None = None
        #: A whole second a day ago, from which tests count (`t`), so that nothing is in the future.
        self.start = datetime.now(UTC).replace(microsecond=0) - timedelta(days=1)
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        application.on_response_prepare.append(_leave_out)
        self.server = Server(application)

    # Where and when

    @property
    def site(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    @property
    def base(self) -> str:
        return self.site + FOLDER

    @property
    def url(self) -> str:
        return self.uri("capabilitylist.xml")

    def uri(self, name: str) -> str:
        """Return the URI of what lies in the folder; of what begins with `/`, on the site."""
        return self.site + self._path(name)

    def _path(self, name: str) -> str:
        return name if name.startswith("/") else FOLDER + name

    def t(self, offset: float) -> datetime:
        """Return an instant of the test's history: so many seconds after its start."""
        return self.start + timedelta(seconds=offset)

    def _instant(self, moment: Time | float | None) -> Time | None:
        return self.t(moment) if isinstance(moment, int | float) else moment

    @property
    def now(self) -> datetime:
        return self.clock or datetime.now(UTC)

    # What is there

    def put(self, name: str, answer: Given, *then: Given, **options: Any) -> None:
        """Answer so at a path; given several, with one after the other, and on with the last."""
        answers = [_given(one, options) for one in (answer, *then)]
        self.answers[self._path(name)] = _one_after_another(answers) if then else answers[0]

    def file(
        self, name: str, content: bytes, modified: datetime | float | None = None, **options: Any
    ) -> bytes:
        """Serve a resource as a static server like nginx does; return its content.

        Args:
            name: Its name in the folder.
            content: Its content.
            modified: When it was written, an instant or seconds after `start`; None for `start`.
            options: Other fields of `Answer`.
        """
        modified = self._instant(self.start if modified is None else modified)
        assert isinstance(modified, datetime)
        etag = options.pop("etag", nginx_etag(content, modified))
        self.put(name, Answer(content, etag=etag, modified=modified, **options))
        self.resources[name] = content
        return content

    def files(self, *names: str) -> None:
        """Serve resources that were written long ago, with their names as content."""
        for name in names:
            self.file(name, name.encode(), -1000)

    def remove(self, name: str) -> None:
        """Stop serving a resource."""
        del self.resources[name]
        del self.answers[self._path(name)]

    def begin(self, *names: str) -> None:
        """Offer a Resource List of such files, and a Change List that is empty yet."""
        self.offer()
        self.files(*names)
        self.list_resources()
        self.list_changes()

    def offer(self, **documents: str | None) -> None:
        """Put a Source Description and a Capability List."""
        documents = {
            "resourcelist": "resourcelist.xml",
            "changelist": "changelist.xml",
            **documents,
        }
        offered = {one: self.uri(name) for one, name in documents.items() if name is not None}
        self.put("capabilitylist.xml", capability_list(offered))
        self.put("/.well-known/resourcesync", description([self.url]))

    def hash(self, name: str) -> str:
        return sha256(self.resources[name])

    # Lists of what is there, where nothing but their times is of interest. A time may be given as
    # seconds after `start`.

    def listed(
        self, names: Iterable[str], *, hashed: bool = True, dated: bool = False, **more: Any
    ) -> list[str]:
        """Return the entries of resources, with what is announced of them as they are now."""
        if dated:
            more["lastmod"] = self.start
        return [
            entry(self.uri(one), content=self.resources[one] if hashed else None, **more)
            for one in names
        ]

    def list_resources(
        self,
        at: Time | float | None = 10,
        *,
        hashed: bool = True,
        dated: bool = False,
        links: Iterable[str] = (),
        **options: Any,
    ) -> None:
        """Put a Resource List of all resources as they are now."""
        entries = self.listed(self.resources, hashed=hashed, dated=dated)
        listing = resource_list(entries, at=self._instant(at), links=links)
        self.put("resourcelist.xml", listing, **options)

    def list_entries(self, *entries: str, at: Time | float | None = 10) -> None:
        """Put a Resource List of these entries (see `documents.entry`)."""
        self.put("resourcelist.xml", resource_list(entries, at=self._instant(at)))

    def list_changes(
        self,
        *entries: str,
        from_: Time | float | None = 5,
        until: Time | float | None = None,
        name: str = "changelist.xml",
        links: Iterable[str] = (),
        **options: Any,
    ) -> None:
        """Put a Change List of these entries (see `changed`)."""
        bounds = self._instant(from_), self._instant(until)
        self.put(name, change_list(entries, *bounds, links=links), **options)

    def changed(
        self,
        name: str,
        change: str,
        at: Time | float | None = None,
        *,
        hashed: bool = True,
        **more: Any,
    ) -> str:
        """Return the entry of a change, with what is announced of the resource as it is now."""
        content = self.resources.get(name) if hashed and change != "deleted" else None
        moment = self._instant(at)
        return entry(self.uri(name), change, datetime=moment, content=content, **more)

    def create(self, name: str, at: float, content: bytes, **more: Any) -> str:
        """Create a resource, and return the entry that says so."""
        self.file(name, content, at)
        return self.changed(name, "created", at, **more)

    def update(self, name: str, at: float, content: bytes = b"changed", **more: Any) -> str:
        """Change a resource, and return the entry that says so."""
        self.file(name, content, at)
        return self.changed(name, "updated", at, **more)

    def delete(self, name: str, at: float) -> str:
        """Remove a resource, and return the entry that says so."""
        self.remove(name)
        return self.changed(name, "deleted", at)

    # What was asked

    def requests(self, name: str) -> list[Request]:
        """Return the requests of one path, in order."""
        return [one for one in self.log if one.path == self._path(name)]

    def forget(self) -> None:
        self.log.clear()

    # Answers

    async def _answer(self, http: web.Request) -> web.StreamResponse:
        headers = {key.title(): value for key, value in http.headers.items()}
        request = Request(http.method, http.rel_url.raw_path_qs, headers)
        number = len(self.log)
        self.log.append(request)
        given = self.answers.get(request.path, Answer(status=404))
        while callable(given):
            given = given(request)
            if asyncio.iscoroutine(given):
                given = await given
        answer = _given(given, {})
        if number < len(self.log):
            self.log[number] = replace(request, status=_status(request, answer))
        return await self._send(http, request, answer)

    async def _send(
        self, http: web.Request, request: Request, answer: Answer
    ) -> web.StreamResponse:
        if answer.gate is not None:
            await answer.gate.wait()
        await asyncio.sleep(answer.delay)
        status = _status(request, answer)
        response = web.StreamResponse(status=status)
        date = self.now if answer.date is None else answer.date
        fields: dict[str, str | None] = {
            "Date": format_datetime(date.astimezone(UTC), usegmt=True),
            "Server": "wild",
            "Content-Type": "application/xml",
            "ETag": answer.etag,
            "Last-Modified": answer.modified
            and format_datetime(answer.modified.astimezone(UTC), usegmt=True),
            "Age": None if answer.age is None else str(answer.age),
            **answer.headers,
        }
        response.headers.update({key: value or "" for key, value in fields.items()})
        body = b"" if status == 304 else answer.body
        if isinstance(body, bytes) and status != 304:
            response.content_length = len(body)
        return await _stream(http, response, body)


async def _leave_out(_: web.Request, response: web.StreamResponse) -> None:
    """Remove the header fields that are not to be sent: aiohttp adds some that are not there."""
    for name in [name for name, value in response.headers.items() if not value]:
        del response.headers[name]


async def _stream(
    http: web.Request,
    response: web.StreamResponse,
    body: bytes | Callable[[], Iterable[bytes] | AsyncIterable[bytes]],
) -> web.StreamResponse:
    await response.prepare(http)
    try:
        if isinstance(body, bytes):
            await response.write(body)
        else:
            pieces = body()
            if isinstance(pieces, AsyncIterable):
                async for piece in pieces:
                    await response.write(piece)
            else:
                for piece in pieces:
                    await response.write(piece)
                    await asyncio.sleep(0)
        await response.write_eof()
    except ConnectionError:
        pass  # whoever asked has had enough
    return response


def _given(given: Any, options: dict[str, Any]) -> Any:
    if isinstance(given, str):
        given = given.encode()
    return Answer(given, **options) if isinstance(given, bytes) else given


def _one_after_another(answers: list[Any]) -> Callable[[Request], Any]:
    left = list(answers)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


def _status(request: Request, answer: Answer) -> int:
    """Return the status: 304 where the condition holds, which nginx decides like this."""
    if answer.status != 200 or not answer.conditional:
        return answer.status
    match = request.headers.get("If-None-Match")
    if match is not None:
        tags = {one.strip().removeprefix("W/") for one in match.split(",")}
        return 304 if answer.etag and answer.etag.removeprefix("W/") in tags else 200
    since = request.headers.get("If-Modified-Since")
    if since is not None and answer.modified is not None:
        # "if_modified_since exact": the very same second, neither earlier nor later
        same = parsedate_to_datetime(since) == answer.modified.replace(microsecond=0)
        return 304 if same else 200
    return 200
