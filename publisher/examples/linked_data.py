"""A live linked-data Source: small Turtle documents that change several times per second.

    python publisher/examples/linked_data.py --port 8000 --hub http://127.0.0.1:8080

Each station is a named graph in a triple store, and also a resource: the graph as Turtle, one
triple per line, sorted, with canonical names for blank nodes. The same graph therefore always
results in the same document, and a change affects only a few lines. With `--delta`, only these
lines are sent, as an RDF Patch, instead of the whole document.
`subscriber/examples/triple_store.py` follows this Source.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import lzma
import random
import tempfile
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from aiohttp import web
from pyoxigraph import (
    CanonicalizationAlgorithm,
    Dataset,
    Literal,
    NamedNode,
    Quad,
    RdfFormat,
    Store,
    Triple,
    parse,
)

from rsnotify import ChangeType, Link, Rel, Resource
from rsnotify_publisher import Options, Publisher, routes

TURTLE = "text/turtle"
PATCH = "application/rdf-patch"
SOSA = "http://www.w3.org/ns/sosa/"
LABEL = NamedNode("http://www.w3.org/2000/01/rdf-schema#label")
DATETIME = NamedNode("http://www.w3.org/2001/XMLSchema#dateTime")


class ObservationFeed:
    """A triple store that publishes each of its graphs as a resource.

    Args:
        folder: The folder for the publisher's state.
        base: The URL prefix of everything that is served.
        hubs: The URLs of the hubs.
        delta: Whether to publish an update as a patch instead of the whole document.
    """

    def __init__(
        self, folder: str, base: str, hubs: Sequence[str] = (), *, delta: bool = False
    ) -> None:
        self.base = base
        self.store = Store()
        self.documents: dict[str, bytes] = {}
        self._delta = delta
        content = None if delta else self.documents.get
        options = Options(refresh=0.2)
        self.publisher = Publisher(folder, base, hubs=hubs, content=content, options=options)

    async def put(self, name: str, triples: Iterable[Triple]) -> None:
        """Replace the graph of a resource, and record the change."""
        graph = NamedNode(self.base + name)
        quads = [Quad(each.subject, each.predicate, each.object, graph) for each in triples]
        self.store.remove_graph(graph)
        self.store.extend(quads)
        await self._record(graph.value, document_of(quads))

    async def remove(self, name: str) -> None:
        """Remove a resource if it exists, and record the change."""
        self.store.remove_graph(NamedNode(self.base + name))
        if self.documents.pop(self.base + name, None) is not None:
            await self.publisher.adeleted(self.base + name)

    async def _record(self, uri: str, after: bytes) -> None:
        before = self.documents.get(uri)
        if before == after:
            return
        self.documents[uri] = after
        change = ChangeType.CREATED if before is None else ChangeType.UPDATED
        links = (patch_link(before, after),) if self._delta and before is not None else ()
        changed = Resource(
            uri, change=change, length=len(after), hash=digest(after), type=TURTLE, links=links
        )
        await self.publisher.arecord([changed])

    def application(self) -> web.Application:
        """Return the web application that serves the ResourceSync documents and the resources."""

        async def resource(request: web.Request) -> web.Response:
            document = self.documents.get(str(request.url))
            if document is None:
                raise web.HTTPNotFound
            return web.Response(body=document, content_type=TURTLE)

        async def publishing(_: web.Application) -> AsyncIterator[None]:
            async with self.publisher:
                yield

        app = web.Application()
        app.add_routes(routes(self.publisher))
        app.router.add_get("/graphs/{name:.*}", resource)
        app.cleanup_ctx.append(publishing)
        return app


def document_of(quads: Iterable[Quad]) -> bytes:
    """Return a graph as a Turtle document in canonical form."""
    dataset = Dataset(Quad(each.subject, each.predicate, each.object) for each in quads)
    dataset.canonicalize(CanonicalizationAlgorithm.RDFC_1_0)
    lines = {f"{each.subject} {each.predicate} {each.object} .\n".encode() for each in dataset}
    return b"".join(sorted(lines))


def digest(document: bytes) -> str:
    """Return the hash of a document in the form used in ResourceSync documents."""
    return f"sha-256:{hashlib.sha256(document).hexdigest()}"


def patch_link(before: bytes, after: bytes) -> Link:
    """Return a link that contains an RDF Patch with the deleted and added lines."""
    old, new = (set(document.splitlines(keepends=True)) for document in (before, after))
    lines = [b"D " + line for line in sorted(old - new)]
    lines += [b"A " + line for line in sorted(new - old)]
    patch = b"".join(lines)
    href = f"data:{PATCH};base64,{b64encode(patch).decode()}"
    return Link(Rel.PATCH, href, hash=digest(patch), length=len(patch), type=PATCH)


def station(base: str, number: int) -> Iterable[Triple]:
    """Yield the triples of a station with a new observation."""
    uri = NamedNode(f"{base}graphs/station/{number}#it")
    observed = Literal(round(random.gauss(20, 5), 2))
    yield Triple(uri, LABEL, Literal(f"Station {number}", language="en"))
    yield Triple(uri, NamedNode(SOSA + "observes"), NamedNode(base + "graphs/temperature"))
    yield Triple(uri, NamedNode(SOSA + "isHostedBy"), NamedNode(base + "graphs/network"))
    yield Triple(uri, NamedNode(SOSA + "hasSimpleResult"), observed)
    now = datetime.now(UTC).isoformat()
    yield Triple(uri, NamedNode(SOSA + "resultTime"), Literal(now, datatype=DATETIME))


def triples_of(document: bytes, name: str, base: str) -> list[Triple]:
    """Parse an RDF document.

    Raises:
        SyntaxError: The document is not RDF.
    """
    kind = RdfFormat.from_extension(name.rpartition(".")[2]) or RdfFormat.TURTLE
    if document.lstrip()[:1] == b"<" and b"<rdf:RDF" in document:
        kind = RdfFormat.RDF_XML  # regardless of the extension
    return [quad.triple for quad in parse(document, kind, base_iri=base + name)]


async def observe(feed: ObservationFeed, *, count: int, rate: float) -> None:
    """Update random stations until cancelled."""
    while True:
        number = random.randrange(count)
        await feed.put(f"graphs/station/{number}", station(feed.base, number))
        await asyncio.sleep(random.expovariate(rate))


async def replay(feed: ObservationFeed, path: Path, *, rate: float) -> None:
    """Replay a history from a JSON Lines file compressed with xz."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for change in map(json.loads, lines):
            await step(feed, "graphs/" + quote(change["path"]), change.get("content"))
            await asyncio.sleep(random.expovariate(rate))


async def step(feed: ObservationFeed, name: str, content: str | None) -> None:
    """Replay one step of a history: put a document, or remove it."""
    if content is None:
        await feed.remove(name)
        return
    try:
        await feed.put(name, triples_of(content.encode(), name, feed.base))
    except SyntaxError as error:
        print(f"{name} stays unchanged, because this version is not RDF: {error}", flush=True)


async def serve(arguments: argparse.Namespace) -> None:
    """Serve and publish the resources until interrupted."""
    base = f"http://127.0.0.1:{arguments.port}/"
    with tempfile.TemporaryDirectory() as folder:
        feed = ObservationFeed(folder, base, arguments.hub, delta=arguments.delta)
        runner = web.AppRunner(feed.application())
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", arguments.port).start()
            print(f"{arguments.stations} stations at {base}", flush=True)
            if arguments.history is not None:
                await replay(feed, arguments.history, rate=arguments.rate)
            await observe(feed, count=arguments.stations, rate=arguments.rate)
        finally:
            await runner.cleanup()


def main() -> None:
    """Parse the arguments, and run the server."""
    parser = argparse.ArgumentParser(description="Publish linked data that changes constantly.")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on")
    parser.add_argument("--hub", action="append", default=[], help="URL of a hub to push to")
    parser.add_argument("--stations", type=int, default=20, help="number of resources")
    parser.add_argument("--rate", type=float, default=5, help="changes per second")
    parser.add_argument("--delta", action="store_true", help="send only the changed lines")
    parser.add_argument("--history", type=Path, help="a history to replay first")
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
