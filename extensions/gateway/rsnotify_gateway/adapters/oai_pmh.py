"""OAI-PMH 2.0: selective harvesting by datestamp.

Each record is a resource. Its URI is the URL of a `GetRecord` request, or a template that contains
its identifier. Records are listed with their metadata, which is hashed but not stored.

- A change is detected by a different datestamp or different metadata. A harvest begins at the
  `responseDate` of the previous harvest, minus an overlap, because a record may become visible only
  after its datestamp. Two changes within the granularity (a second or a day) are therefore both
  detected.
- Deletions depend on the repository (OAI-PMH §2.5.1). With `persistent`, each deletion is detected.
  With `transient` and `no`, or if `compare` is set, the whole list is read every `compare` seconds.
  A record missing from the list is deleted only if `GetRecord` confirms the deletion, because lists
  shift during reading. A comparison fails if the whole repository lists no records.
- A record that leaves the harvested set without a deletion, or that becomes visible more than
  `overlap` seconds after its datestamp, is detected only by such a comparison.
- If the repository's clock was set back to before the start of a harvest, all records are
  harvested.
- A check resumes the list of a failed check, and then harvests the changes since that list began.
- If a resumption token has expired, the harvest starts over. A check fails if a list returns to an
  earlier token, keeps repeating pages, or never ends.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import aclosing, closing, suppress
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from urllib.parse import quote, unquote, urlencode, urlsplit

from lxml import etree
from msgspec import Struct

from rsnotify.errors import (
    DocumentError,
    InvalidDocument,
    MalformedDocument,
    RsnotifyError,
    TooLarge,
    Unavailable,
    WrongDocument,
)
from rsnotify.format.datetimes import Instant, format_datetime, parse_datetime
from rsnotify.format.model import Resource
from rsnotify.format.xml_parser import ParserTarget, safe_parser
from rsnotify.runtime.temporary_sets import TemporarySet
from rsnotify_gateway.adapter import (
    KnownEntries,
    MissingEntry,
    OriginBatch,
    OriginCursor,
    OriginTerms,
    OriginType,
    SeenEntry,
    is_due,
)
from rsnotify_gateway.change_detection import usable_uri
from rsnotify_gateway.client import OriginClient
from rsnotify_subscriber.fetching.credentials import without_login

_OAI = "{http://www.openarchives.org/OAI/2.0/}"
_ROOT = _OAI + "OAI-PMH"
#: Limits for a response: bytes, records, characters in an element's text, and nesting depth.
MAX_BYTES = 100_000_000
_MAX_RECORDS = 100_000
_MAX_TEXT = 8_192
_MAX_DEPTH = 200
_SLICE_BYTES = 65_536


class OaiRecord(Struct, frozen=True):
    """A record in a list. `modified` is the instant of its datestamp.

    `digest` is a hash of its metadata, or empty if it has none.
    """

    identifier: str
    datestamp: str
    modified: Instant
    deleted: bool
    sets: tuple[str, ...]
    digest: str


class OaiError(Struct, frozen=True):
    """An error reported by a repository (OAI-PMH §3.6)."""

    code: str
    text: str


class OaiResponse(Struct):
    """A response to any verb.

    Args:
        date: The `responseDate`, by the repository's clock.
        token: The resumption token; "" at the end of a list, None if the response has none.
        fields: The text of each element in `Identify`, by name.
    """

    date: Instant
    records: tuple[OaiRecord, ...]
    token: str | None
    errors: tuple[OaiError, ...]
    fields: dict[str, str]


class OaiParser:
    """Parses one response. Call `feed` with each chunk, then `close`."""

    def __init__(self) -> None:
        self._bytes = 0
        self._parser = safe_parser(_OaiBuilder())

    def feed(self, chunk: bytes) -> None:
        """Parse the next chunk. Raise `DocumentError` if the response is invalid."""
        self._bytes += len(chunk)
        if self._bytes > MAX_BYTES:
            raise TooLarge(f"it is larger than {MAX_BYTES} bytes")
        try:
            for start in range(0, len(chunk), _SLICE_BYTES):
                self._parser.feed(chunk[start : start + _SLICE_BYTES])
        except etree.XMLSyntaxError as error:
            raise MalformedDocument(f"not well-formed XML: {error}") from None

    def close(self) -> OaiResponse:
        """Return the response. Raise `DocumentError` if it is incomplete."""
        try:
            response = self._parser.close()
        except etree.XMLSyntaxError as error:
            raise MalformedDocument(f"it is truncated: {error}") from None
        if response is None:
            raise InvalidDocument("it has no responseDate (OAI-PMH §3.2)")
        return response


class _OaiBuilder(ParserTarget[OaiResponse | None]):
    """Builds a response from the parser's events, and hashes the content of `metadata`."""

    def __init__(self) -> None:
        self._path: list[str] = []
        self._date: Instant | None = None
        self._records: list[OaiRecord] = []
        self._token: str | None = None
        self._errors: list[OaiError] = []
        self._fields: dict[str, str] = {}
        self._text: list[str] | None = None
        self._text_length = 0
        self._error_code = ""
        self._start_record()

    def _start_record(self) -> None:
        self._header: dict[str, str] = {}
        self._sets: list[str] = []
        self._deleted = False
        self._digest = blake2b(digest_size=16)
        self._has_metadata = False
        self._metadata_depth = 0

    # Called by the parser

    def doctype(self, name: str | None, public: str | None, system: str | None) -> None:
        raise MalformedDocument("it has a DOCTYPE, which is not accepted")

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if not self._path and tag != _ROOT:
            raise WrongDocument(f"its root element is {tag}, not OAI-PMH 2.0")
        self._path.append(tag)
        if len(self._path) > _MAX_DEPTH:
            raise TooLarge(f"it is nested deeper than {_MAX_DEPTH} elements")
        if self._metadata_depth:
            pairs = sorted(attributes.items())
            self._hash("\0<".join(["", tag, *(part for pair in pairs for part in pair)]) + "\0")
            return
        name = tag.removeprefix(_OAI)
        if name == "metadata":
            self._metadata_depth = len(self._path)
            self._has_metadata = True
        elif name == "header":
            self._start_record()
            self._deleted = attributes.get("status") == "deleted"
        elif name == "error":
            self._error_code = attributes.get("code", "")
        self._text, self._text_length = [], 0

    def data(self, text: str) -> None:
        if self._metadata_depth:
            self._hash(text)
        elif self._text is not None:
            self._text.append(text)
            self._text_length += len(text)
            if self._text_length > _MAX_TEXT:
                raise TooLarge(f"an element has more than {_MAX_TEXT} characters of text")

    def end(self, tag: str) -> None:
        depth = len(self._path)
        self._path.pop()
        if self._metadata_depth:
            if depth == self._metadata_depth:
                self._metadata_depth = 0
            else:
                self._hash("\0>")
            return
        text = "".join(self._text or ()).strip()
        self._text = None
        self._end_element(tag.removeprefix(_OAI), text, depth)

    def _end_element(self, name: str, text: str, depth: int) -> None:
        parent = self._path[-1].removeprefix(_OAI) if self._path else ""
        match parent, name:
            case _, "responseDate" if depth == 2:
                self._date = _instant(text, name)
            case _, "error" if depth == 2:
                self._errors.append(OaiError(self._error_code, text))
            case "header", "setSpec":
                self._sets.append(text)
            case "header", ("identifier" | "datestamp"):
                self._header[name] = text
            case ("ListIdentifiers", "header") | (_, "record"):
                self._end_record()
            case _, "resumptionToken":
                self._token = text
            case "Identify", _:
                self._fields[name] = text

    def _end_record(self) -> None:
        identifier, datestamp = (self._header.get(name) for name in ("identifier", "datestamp"))
        if not identifier or not datestamp:
            raise InvalidDocument("a record has no identifier or datestamp")
        if len(self._records) == _MAX_RECORDS:
            raise TooLarge(f"it has more than {_MAX_RECORDS} records")
        modified = _instant(datestamp, "datestamp")
        digest = self._digest.hexdigest() if self._has_metadata else ""
        sets = tuple(self._sets)
        self._records.append(
            OaiRecord(identifier, datestamp, modified, self._deleted, sets, digest)
        )
        self._start_record()

    def _hash(self, text: str) -> None:
        # Without a separator, because the parser may split text anywhere.
        self._digest.update(text.encode("utf-8", "surrogatepass"))

    def close(self) -> OaiResponse | None:
        """Return the response; None if it has no date. An exception would hide earlier errors."""
        if self._date is None:
            return None
        records, errors = tuple(self._records), tuple(self._errors)
        return OaiResponse(self._date, records, self._token, errors, self._fields)


def _instant(text: str, element: str) -> Instant:
    try:
        return parse_datetime(text)
    except ValueError as error:
        raise InvalidDocument(f"{element}: {error}") from None


#: Maximum number of times a harvest starts over because its resumption token was refused.
_MAX_RESTARTS = 3
#: The number of consecutive failed requests after which the token counts as refused.
_MAX_TRIES = 10
_IDENTIFIER, _LOCAL = "{identifier}", "{local}"
_GRANULARITY_SECONDS = "YYYY-MM-DDThh:mm:ssZ"
#: Maximum number of pages in a harvest, of pages that repeat an earlier one, and of hashes kept to
#: detect repetitions.
_MAX_PAGES, _MAX_REPEATED, _MAX_KNOWN = 1_000_000, 1_000, 200_000
#: The plausible range of a `responseDate`: since OAI-PMH exists, and not more than a day ahead,
#: because a repository's clock may be in the wrong time zone.
_FIRST_DATE, _MAX_AHEAD = datetime(2001, 1, 1, tzinfo=UTC), timedelta(days=1)
_COMPARISON_INTERVAL = 7 * 86_400.0
_NO_RECORDS = {"noRecordsMatch"}
_BAD_TOKEN = {"badResumptionToken"}
#: Error codes for a record that no longer exists, or is no longer available in this format.
_NOT_THERE = {"idDoesNotExist", "cannotDisseminateFormat"}


class OaiCursor(OriginCursor, omit_defaults=True):
    """The progress in harvesting a repository.

    Args:
        since: The start datestamp of the current or next harvest; None for all records.
        next_since: The start datestamp of the following harvest, if one is in progress.
        token: The resumption token of the harvest in progress.
        compared: When the whole list was last compared, as a Unix timestamp.
        pages: The number of pages read in the harvest in progress.
        namespaces: The parts before the local parts of identifiers, such as
            `oai:repository.example:`, if the URI template contains local parts.
        late: When a comparison last found a record that no harvest could find.
    """

    since: str | None = None
    next_since: str | None = None
    token: str | None = None
    compared: float | None = None
    pages: int = 0
    namespaces: tuple[str, ...] = ()
    late: str | None = None


class OaiHarvest(Struct, frozen=True, kw_only=True):
    """The settings for harvesting a repository.

    Args:
        prefix: The metadata format.
        set: The set; None for all records.
        overlap: The overlap of successive harvests, in seconds.
        compare: Seconds between comparisons with the whole list. None means a week, or never if the
            repository declares that it keeps records of all deletions.
        uri: A template for the URIs of resources, with `{identifier}`, or with `{local}`, which is
            `123` for `oai:repository.example:123`. None for the URLs of `GetRecord` requests.
    """

    prefix: str = "oai_dc"
    set: str | None = None
    overlap: float = 60.0
    compare: float | None = None
    uri: str | None = None


class _Restart(Exception):
    """The resumption token was refused."""


class OaiAdapter:
    """Harvests the repository at a base URL."""

    def __init__(self, url: str, client: OriginClient, harvest: OaiHarvest) -> None:
        self._url = url
        self._client = client
        self._harvest = harvest
        self._compare = harvest.compare or _COMPARISON_INTERVAL
        #: The template for record URIs.
        self._template = None if harvest.uri is None else without_login(harvest.uri)
        #: The parts before the local part, of all identifiers ever listed.
        self._namespaces: set[str] = set()
        self._late: str | None = None
        #: The resumption token of the last failed request, and how often it failed.
        self._failed_token: str | None = None
        self._tries = 0
        #: The response to `Identify`, requested at the start and before each comparison.
        self._identity: dict[str, str] = {}

    # Properties of the repository

    @property
    def _has_seconds(self) -> bool:
        return self._identity.get("granularity") == _GRANULARITY_SECONDS

    @property
    def _is_compared(self) -> bool:
        is_set = self._harvest.compare is not None
        return is_set or self._identity.get("deletedRecord") != "persistent"

    def terms(self) -> OriginTerms:
        policy = self._identity.get("deletedRecord", "unknown")
        compared = f"by comparing the whole list every {self._compare:g} seconds."
        if not self._is_compared:
            deletions = "All deletions are detected."
        elif policy in ("persistent", "transient"):
            deletions = "Deletions are detected while the repository lists them, or " + compared
        else:
            deletions = "Deletions are detected " + compared
        limits = []
        if self._harvest.set is not None:
            how = compared if self._is_compared else "only if the repository lists them as deleted."
            limits.append(f"Records that leave the set {self._harvest.set} are detected {how}")
        if self._late is not None:
            limits.append(
                "Some records became visible more than the overlap, "
                f"{self._harvest.overlap:g} seconds, after their datestamp, so changes may have "
                f"been missed until {self._late}. Set a longer overlap."
            )
        return OriginTerms(
            f"OAI-PMH 2.0, deleted records: {policy}",
            "second" if self._has_seconds else "day",
            deletions,
            tuple(limits),
        )

    # Checks

    async def changes(self, cursor: str | None, known: KnownEntries) -> AsyncIterator[OriginBatch]:
        """Harvest the changes, or compare the whole list if that is due."""
        state = OaiCursor.decoded(cursor)
        self._namespaces.update(state.namespaces)
        self._late = state.late
        began = time.time()
        due = state.compared is None or is_due(state.compared, self._compare)
        if due or not self._identity:
            response = await self._request({"verb": "Identify"})
            _check_errors(self._url, response, set())
            self._identity = response.fields
        compares = state.since is not None and due and self._is_compared
        if compares:
            state = OaiCursor(state.since, compared=state.compared)
        with closing(TemporarySet()) as seen, closing(TemporarySet()) as recorded:

            def record(uri: str, _: frozenset[str]) -> bool:
                recorded.update((uri,))
                return False

            if compares:
                await known.select(record)
            harvest: OaiCursor | None = state
            while harvest is not None:
                is_continued = harvest.token is not None
                batches = self._harvested(
                    harvest, known, began, seen if compares else None, recorded
                )
                async with aclosing(batches):
                    async for batch in batches:
                        yield batch
                # A list that an earlier check began lacks the changes since then.
                lacks_changes = is_continued and batch.cursor
                harvest = OaiCursor.decoded(batch.cursor) if lacks_changes else None

    async def _harvested(
        self,
        state: OaiCursor,
        known: KnownEntries,
        began: float,
        seen: TemporarySet | None,
        recorded: TemporarySet,
    ) -> AsyncGenerator[OriginBatch, None]:
        """Yield the harvested records. If `seen` is given, compare the whole list."""
        is_empty, is_late, is_known = True, False, False
        for _ in range(_MAX_RESTARTS + 1):
            try:
                async for batch in self._list(state, seen):
                    is_empty = is_empty and not batch.entries
                    if seen is not None:
                        uris = _seen_uris(batch.entries)
                        is_known = is_known or any(uri in recorded for uri in uris)
                        is_late = is_late or _has_late(batch, recorded, state.since)
                    yield batch
                break
            except _Restart:
                state = OaiCursor(state.since, compared=state.compared)
                if seen is not None:
                    seen.clear()
        else:
            raise Unavailable(self._url, "it rejects its own resumption tokens")
        missing: list[MissingEntry] = []
        if seen is not None:
            if is_empty and recorded and self._harvest.set is None:
                # While the repository rebuilds its index, GetRecord would confirm the deletions.
                raise Unavailable(self._url, "it lists no records, which may be temporary")
            missing = await self._missing(seen, known)
            if is_late and is_known:  # if no URI is known, all URIs have changed
                self._late = format_datetime(datetime.fromtimestamp(began, UTC))
        compared = began if seen is not None or state.compared is None else state.compared
        done = OaiCursor(state.next_since or state.since, compared=compared)
        yield OriginBatch(tuple(missing), self._encode(done))

    def _encode(self, cursor: OaiCursor) -> str:
        if _LOCAL in (self._template or ""):
            cursor.namespaces = tuple(sorted(self._namespaces))
        cursor.late = self._late
        return cursor.encoded()

    async def _list(
        self, state: OaiCursor, seen: TemporarySet | None
    ) -> AsyncIterator[OriginBatch]:
        """Yield the records page by page. The cursor of each batch resumes after its page."""
        endless = _EndlessListCheck()
        while True:
            response = await self._page(state, whole=seen is not None)
            if state.next_since is None:
                since = None if state.since is None else parse_datetime(state.since)
                if since is not None and response.date < since and seen is None:
                    # The repository's clock was set back, so new datestamps may be earlier.
                    state.since = None
                    continue
                state.next_since = self._next_since(response.date)
            entries = [self._entry(record) for record in response.records]
            if seen is not None:
                seen.update(_seen_uris(entries))
            token = response.token or None
            state.pages += 1
            if token is not None and (problem := endless.problem(state, response, token)):
                # The next check begins where this one did, without the token.
                begin = OaiCursor(state.since, compared=state.compared)
                yield OriginBatch(tuple(entries), None if seen is not None else self._encode(begin))
                raise Unavailable(self._url, problem)
            state.token = token
            # Another process cannot resume a comparison.
            yield OriginBatch(tuple(entries), None if seen is not None else self._encode(state))
            if token is None:
                return

    async def _page(self, state: OaiCursor, *, whole: bool) -> OaiResponse:
        if state.token is not None:
            return await self._next_page(state.token)
        arguments = {"verb": "ListRecords", "metadataPrefix": self._harvest.prefix}
        if self._harvest.set is not None:
            arguments["set"] = self._harvest.set
        if state.since is not None and not whole:
            arguments["from"] = state.since
        response = await self._request(arguments)
        _check_errors(self._url, response, _NO_RECORDS)
        return response

    async def _next_page(self, token: str) -> OaiResponse:
        try:
            response = await self._request({"verb": "ListRecords", "resumptionToken": token})
            if any(error.code in _BAD_TOKEN for error in response.errors):
                raise _Restart
            _check_errors(self._url, response, _NO_RECORDS)
        except RsnotifyError:
            # Some repositories respond with 500 to a token that they have lost.
            self._tries = self._tries + 1 if token == self._failed_token else 1
            self._failed_token = token
            if self._tries < _MAX_TRIES:
                raise
            self._failed_token = None
            raise _Restart from None
        return response

    def _next_since(self, date: Instant) -> str:
        """Return the start datestamp of the next harvest, given the date of this one."""
        begin = self._datestamp(date - timedelta(seconds=self._harvest.overlap))
        earliest = self._identity.get("earliestDatestamp", "")
        return min(max(begin, earliest[: len(begin)]), self._datestamp(date))

    def _datestamp(self, instant: Instant) -> str:
        return instant.strftime("%Y-%m-%dT%H:%M:%SZ" if self._has_seconds else "%Y-%m-%d")

    def _entry(self, record: OaiRecord) -> SeenEntry | MissingEntry:
        uri = self._uri(record.identifier)
        if record.deleted:
            return MissingEntry(uri)
        state = f"{record.datestamp} {record.digest}"
        return SeenEntry(Resource(uri, lastmod=record.modified), state)

    def _uri(self, identifier: str) -> str:
        template = self._template
        if template is None:
            return self._request_url(self._record_arguments(identifier))
        namespace, local = _split(identifier)
        self._namespaces.add(namespace)
        named = template.replace(_IDENTIFIER, quote(identifier, safe="/:"))
        uri = usable_uri(named.replace(_LOCAL, quote(local, safe="/:")))
        if uri is None:
            reason = f"the template {template} does not result in a URI for {identifier!r}"
            raise Unavailable(self._url, reason)
        return uri

    def _record_arguments(self, identifier: str) -> dict[str, str]:
        prefix = self._harvest.prefix
        return {"verb": "GetRecord", "metadataPrefix": prefix, "identifier": identifier}

    # Deletions that lists do not show

    async def _missing(self, seen: TemporarySet, known: KnownEntries) -> list[MissingEntry]:
        """Return the records missing from the whole list that `GetRecord` confirms as deleted."""
        found = []
        for uri, _ in await known.select(lambda uri, _: uri not in seen):
            for identifier in self._identifiers(uri):
                if not await self._is_deleted(identifier):
                    break
            else:
                found.append(MissingEntry(uri))
        return found

    def _identifiers(self, uri: str) -> list[str]:
        """Return the identifiers that a URI may stand for; none if it is from another template."""
        template = self._template
        if template is None:
            before, after = self._request_url(self._record_arguments("")), ""
        else:
            placeholder = _LOCAL if _LOCAL in template else _IDENTIFIER
            before, _, after = template.partition(placeholder)
        if not (uri.startswith(before) and uri.endswith(after)):
            return []
        name = unquote(uri[len(before) : len(uri) - len(after)])
        if template is None or _LOCAL not in template:
            return [name]
        whole = (namespace + name for namespace in sorted(self._namespaces))
        return [one for one in whole if _split(one)[1] == name]

    async def _is_deleted(self, identifier: str) -> bool:
        response = await self._request(self._record_arguments(identifier))
        if any(error.code in _NOT_THERE for error in response.errors):
            return True
        _check_errors(self._url, response, set())
        wanted = self._harvest.set
        for record in response.records:
            # A set contains the sets below it (OAI-PMH §2.6).
            is_in = wanted is None or any(f"{one}:".startswith(f"{wanted}:") for one in record.sets)
            return record.deleted or not is_in
        raise Unavailable(self._url, f"GetRecord has no record for {identifier}")

    # Requests

    def _request_url(self, arguments: dict[str, str]) -> str:
        separator = "&" if urlsplit(self._url).query else "?"
        return self._url + separator + urlencode(arguments, quote_via=quote)

    async def _request(self, arguments: dict[str, str]) -> OaiResponse:
        uri = self._request_url(arguments)
        parser = OaiParser()
        response: OaiResponse | None = None

        def is_error() -> bool:
            nonlocal response
            with suppress(DocumentError):
                response = parser.close()
            return response is not None and bool(response.errors)

        try:
            # Invenio sends all errors with status 422, even "no records match".
            await self._client.get(uri, parser.feed, is_error=is_error)
            response = response or parser.close()
        except DocumentError as error:
            raise error.at(uri) from None
        latest = datetime.fromtimestamp(time.time(), UTC) + _MAX_AHEAD
        if not _FIRST_DATE <= response.date <= latest:
            # The next harvest begins at this date. If the date is too late, changes are missed.
            reason = f"its responseDate {format_datetime(response.date)} is not the current time"
            raise InvalidDocument(reason, source=uri)
        return response


class _EndlessListCheck:
    """Detects lists that never end."""

    def __init__(self) -> None:
        #: Hashes of tokens and pages.
        self._known: set[int] = set()
        self._repeated = 0

    def problem(self, state: OaiCursor, response: OaiResponse, token: str) -> str | None:
        """Return why the list must not continue with `token`; None if it may."""
        is_repeated = hash(token) in self._known or token == state.token
        self._repeated += hash(response.records) in self._known
        if len(self._known) < _MAX_KNOWN:
            self._known |= {hash(token), hash(response.records)}
        if is_repeated:
            return "its list repeats an earlier resumption token"
        if self._repeated >= _MAX_REPEATED:
            return f"its list has {_MAX_REPEATED:,} pages that are empty or repeat earlier pages"
        if state.pages >= _MAX_PAGES:
            return f"its list has more than {_MAX_PAGES:,} pages"
        return None


def _seen_uris(entries: Iterable[SeenEntry | MissingEntry]) -> Iterator[str]:
    return (one.resource.uri for one in entries if isinstance(one, SeenEntry))


def _has_late(batch: OriginBatch, recorded: TemporarySet, since: str | None) -> bool:
    """Return whether a batch has a new record that a harvest from `since` would miss."""
    if since is None:
        return False
    begin = parse_datetime(since)
    return any(
        isinstance(entry, SeenEntry)
        and entry.resource.lastmod is not None
        and entry.resource.lastmod < begin
        and entry.resource.uri not in recorded
        for entry in batch.entries
    )


def _split(identifier: str) -> tuple[str, str]:
    """Split an identifier into namespace and local part (OAI Identifier Format §2)."""
    scheme, _, rest = identifier.partition(":")
    namespace, colon, local = rest.partition(":")
    if scheme == "oai" and colon:
        return f"{scheme}:{namespace}:", local
    return "", identifier


def _check_errors(url: str, response: OaiResponse, expected: set[str]) -> None:
    for error in response.errors:
        if error.code not in expected:
            raise Unavailable(url, f"the repository reports {error.code}: {error.text}")


OAI_PMH = OriginType(
    lambda origin, client, _: OaiAdapter(without_login(origin.url), client, origin.harvest)
)
