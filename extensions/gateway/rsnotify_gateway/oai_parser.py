"""Parses responses of OAI-PMH 2.0: bytes in, values out."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from lxml import etree
from msgspec import Struct

from rsnotify.errors import InvalidDocument, MalformedDocument, TooLarge, WrongDocument
from rsnotify.format.datetimes import Instant, parse_datetime
from rsnotify.format.xml_parser import safe_parser

_OAI = "{http://www.openarchives.org/OAI/2.0/}"
_ROOT = _OAI + "OAI-PMH"
#: The most bytes of a response, its records, the elements of a record, and their depth.
MOST_BYTES = 100_000_000
_MOST_RECORDS = 100_000
_MOST_TEXT = 8_192
_DEPTH = 200
_SLICE = 65_536


class OaiRecord(Struct, frozen=True):
    """A record of a list, without its metadata.

    Args:
        datestamp: As the repository writes it.
        digest: A text that differs whenever the metadata does; empty if there is none.
    """

    identifier: str
    datestamp: str
    modified: Instant
    deleted: bool = False
    sets: tuple[str, ...] = ()
    digest: str = ""


class OaiError(Struct, frozen=True):
    """An error that a repository answers (OAI-PMH §3.6)."""

    code: str
    text: str


class OaiResponse(Struct):
    """A response to any verb.

    Args:
        date: When it was made, by the clock of the repository.
        token: The resumption token; "" if the list ends here, None if it has none.
        fields: The texts of the elements of `Identify`.
    """

    date: Instant
    records: tuple[OaiRecord, ...] = ()
    token: str | None = None
    errors: tuple[OaiError, ...] = ()
    fields: dict[str, str] = {}


if TYPE_CHECKING:
    _ParserTarget = etree.ParserTarget[OaiResponse | None]
else:
    _ParserTarget = object


class OaiParser:
    """Parses one response: call `feed` with every piece, then `close`. An error ends its use."""

    def __init__(self) -> None:
        self._bytes = 0
        self._parser = safe_parser(_OaiBuilder())

    def feed(self, chunk: bytes) -> None:
        """Parse the next piece; raise `DocumentError` if the response cannot be accepted."""
        self._bytes += len(chunk)
        if self._bytes > MOST_BYTES:
            raise TooLarge(f"it is larger than {MOST_BYTES} bytes")
        try:
            for start in range(0, len(chunk), _SLICE):
                self._parser.feed(chunk[start : start + _SLICE])
        except etree.XMLSyntaxError as error:
            raise MalformedDocument(f"not well-formed XML: {error}") from None

    def close(self) -> OaiResponse:
        """Return the response; raise `DocumentError` if it is not complete."""
        try:
            response = self._parser.close()
        except etree.XMLSyntaxError as error:
            raise MalformedDocument(f"it ended too early: {error}") from None
        if response is None:
            raise InvalidDocument("it has no responseDate (OAI-PMH §3.2)")
        return response


def parse_response(data: bytes) -> OaiResponse:
    """Parse a whole response; raise `DocumentError` if it cannot be accepted."""
    parser = OaiParser()
    parser.feed(data)
    return parser.close()


class _OaiBuilder(_ParserTarget):
    """The target of the parser: follows the path of elements, and hashes what is in `metadata`."""

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
        raise MalformedDocument("it has a DOCTYPE, which is refused")

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if not self._path and tag != _ROOT:
            raise WrongDocument(f"its root element is {tag}, not that of OAI-PMH 2.0")
        self._path.append(tag)
        if len(self._path) > _DEPTH:
            raise TooLarge(f"it is nested deeper than {_DEPTH} elements")
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
            if self._text_length > _MOST_TEXT:
                raise TooLarge(f"it has a text of more than {_MOST_TEXT} characters")

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
        if len(self._records) == _MOST_RECORDS:
            raise TooLarge(f"it has more than {_MOST_RECORDS} records")
        self._records.append(
            OaiRecord(
                identifier,
                datestamp,
                _instant(datestamp, "datestamp"),
                self._deleted,
                tuple(self._sets),
                self._digest.hexdigest() if self._has_metadata else "",
            )
        )
        self._start_record()

    def _hash(self, text: str) -> None:
        # The parser may divide a text anywhere, so nothing stands between two of its parts.
        self._digest.update(text.encode("utf-8", "surrogatepass"))

    def close(self) -> OaiResponse | None:
        """Return the response; None without its date. An error here would hide an earlier one."""
        if self._date is None:
            return None
        return OaiResponse(
            self._date,
            tuple(self._records),
            self._token,
            tuple(self._errors),
            self._fields,
        )


def _instant(text: str, element: str) -> Instant:
    try:
        return parse_datetime(text)
    except ValueError as error:
        raise InvalidDocument(f"{element}: {error}") from None
