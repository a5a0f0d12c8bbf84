"""OAI-PMH repositories of two independent implementations, over HTTP: pyoai and oai_repo."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Protocol, Self
from urllib.parse import parse_qs

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from lxml import etree
from msgspec import Struct

BATCH = 3
_DC = "http://purl.org/dc/elements/1.1/"
_OAI_DC = "http://www.openarchives.org/OAI/2.0/oai_dc/"
_EARLIEST = datetime(2020, 1, 1)


class Item(Struct):
    title: str
    datestamp: datetime
    sets: list[str] = []
    deleted: bool = False


class Items:
    """What a repository has; a record that changes is the last, or stays where it is."""

    def __init__(self, deleted_record: str = "persistent") -> None:
        self.deleted_record = deleted_record
        self.granularity = "YYYY-MM-DDThh:mm:ssZ"
        self.items: dict[str, Item] = {}
        self.now: datetime | None = None

    def _now(self) -> datetime:
        return (self.now or datetime.now(UTC)).replace(microsecond=0, tzinfo=None)

    def put(self, name: str, title: str = "", sets: list[str] | None = None) -> None:
        self.items[f"oai:{name}"] = Item(title or name, self._now(), sets or [])

    def delete(self, name: str) -> None:
        if self.deleted_record == "no":
            del self.items[f"oai:{name}"]
        else:
            self.items[f"oai:{name}"] = Item("", self._now(), deleted=True)

    def purge(self, name: str) -> None:
        del self.items[f"oai:{name}"]

    def select(
        self, from_: datetime | None, set_: str | None, until: datetime | None = None
    ) -> Iterator[str]:
        for identifier, item in sorted(self.items.items()):
            is_late = from_ is None or item.datestamp >= from_.replace(tzinfo=None)
            is_early = until is None or item.datestamp <= until.replace(tzinfo=None)
            if is_late and is_early and (set_ is None or set_ in item.sets):
                yield identifier


class Implementation(Protocol):
    """Answers the arguments of a request with the bytes of a response."""

    def __call__(self, arguments: dict[str, str]) -> bytes: ...


def pyoai(items: Items, url: str) -> Implementation:
    """Return a repository of pyoai, whose lists may have deleted records."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it imports cgi and pkg_resources
        common = pytest.importorskip("oaipmh.common", exc_type=ImportError)
        metadata = pytest.importorskip("oaipmh.metadata", exc_type=ImportError)
        server = pytest.importorskip("oaipmh.server", exc_type=ImportError)
        error = pytest.importorskip("oaipmh.error", exc_type=ImportError)
    # Python 3.8 removed this function from cgi, and pyoai still calls it.
    server.cgi.parse_qs = parse_qs

    def header(identifier: str) -> Any:
        item = items.items[identifier]
        return common.Header(None, identifier, item.datestamp, item.sets, item.deleted)

    def record(identifier: str) -> Any:
        fields = {"title": [items.items[identifier].title]}
        return header(identifier), common.Metadata(None, fields), None

    class Repository:
        def identify(self) -> Any:
            return common.Identify(
                "Test",
                url,
                "2.0",
                ["operator@repository.example"],
                _EARLIEST,
                items.deleted_record,
                items.granularity,
                ["identity"],
                toolkit_description=False,
            )

        def getRecord(self, metadataPrefix: str, identifier: str) -> Any:
            if identifier not in items.items:
                raise error.IdDoesNotExistError(identifier)
            return record(identifier)

        def listRecords(self, metadataPrefix: str, **given: Any) -> Any:
            found = list(items.select(given.get("from_"), given.get("set")))
            begin = given["cursor"]
            return [record(one) for one in found[begin:][: given["batch_size"]]]

    registry = metadata.MetadataRegistry()
    registry.registerWriter("oai_dc", server.oai_dc_writer)
    repository = server.BatchingServer(Repository(), registry, resumption_batch_size=BATCH)
    answer: Callable[[dict[str, str]], bytes] = repository.handleRequest
    return lambda arguments: answer(arguments)


def oai_repo(items: Items, url: str) -> Implementation:
    """Return a repository of oai_repo: without deletions, and tokens end with any change."""
    library = pytest.importorskip("oai_repo")

    class Data(library.DataInterface):  # type: ignore[misc]
        limit = BATCH

        def get_identify(self) -> Any:
            return library.Identify(
                repository_name="Test",
                base_url="https://repository.example/oai",
                admin_email=["operator@repository.example"],
                earliest_datestamp="2020-01-01"[: len(items.granularity)]
                if items.granularity == "YYYY-MM-DD"
                else "2020-01-01T00:00:00Z",
                deleted_record=items.deleted_record,
                granularity=items.granularity,
                compression=[],
                description=[],
            )

        def is_valid_identifier(self, identifier: str) -> bool:
            return identifier in items.items

        def get_metadata_formats(self, identifier: str | None = None) -> Any:
            schema = "http://www.openarchives.org/OAI/2.0/oai_dc.xsd"
            return [library.MetadataFormat("oai_dc", schema, _OAI_DC)]

        def get_record_header(self, identifier: str) -> Any:
            item = items.items[identifier]
            at = item.datestamp.replace(tzinfo=UTC)
            return library.RecordHeader(identifier, at, item.sets)

        def get_record_metadata(self, identifier: str, metadataprefix: str) -> Any:
            root = etree.Element(f"{{{_OAI_DC}}}dc")
            etree.SubElement(root, f"{{{_DC}}}title").text = items.items[identifier].title
            return root

        def get_record_abouts(self, identifier: str) -> Any:
            return []

        def list_set_specs(self, identifier: str | None = None, cursor: int = 0) -> Any:
            found = {one for item in items.items.values() for one in item.sets}
            return sorted(found), len(found), None

        def list_identifiers(
            self,
            metadataprefix: str,
            filter_from: Any = None,
            filter_until: Any = None,
            filter_set: str | None = None,
            cursor: int = 0,
        ) -> Any:
            found = list(items.select(filter_from, filter_set, filter_until))
            state = [(one, items.items[one].title) for one in found]
            return found[cursor:][: self.limit], len(found), state

    repository = library.OAIRepository(Data())
    return lambda arguments: bytes(repository.process(arguments))


class RepositoryServer:
    """Serves a repository over HTTP.

    Attributes:
        before: Called with the arguments of a request before it is answered; may return another
            response.
        verbs: How often each verb was requested; continued lists count as "resumed".
        error_status: The HTTP status of errors; by the specification it is 200.
    """

    def __init__(self, items: Items, make: Callable[[Items, str], Implementation]) -> None:
        self.items = items
        self._make = make
        self.before: Callable[[dict[str, str]], web.Response | None] = lambda arguments: None
        self.verbs: Counter[str] = Counter()
        self.error_status = 200
        app = web.Application()
        app.router.add_get("/oai", self._answer)
        self._server = TestServer(app)

    async def __aenter__(self) -> Self:
        await self._server.start_server()
        self.url = str(self._server.make_url("/oai"))
        self.process = self._make(self.items, self.url)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()

    async def _answer(self, request: web.Request) -> web.Response:
        arguments = dict(request.query)
        self.verbs["resumed" if "resumptionToken" in arguments else arguments["verb"]] += 1
        other = self.before(arguments)
        if other is not None:
            return other
        body = self.process(arguments)
        status = self.error_status if b"<error " in body else 200
        return web.Response(status=status, body=body, content_type="text/xml")
