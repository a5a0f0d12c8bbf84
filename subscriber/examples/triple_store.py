"""A linked-data aggregator: a triple store that follows a Source and answers queries.

    python subscriber/examples/triple_store.py http://127.0.0.1:8000/ store --port 8010
    curl -G http://127.0.0.1:8010/sparql --data-urlencode 'query=SELECT * { ?s ?p ?o } LIMIT 9'

Each resource becomes a graph named by its URI. The documents themselves are kept beside the store,
so that patches can be applied to them (here, RDF Patches).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from aiohttp import web
from pyoxigraph import (
    NamedNode,
    Quad,
    QueryResultsFormat,
    QueryTriples,
    RdfFormat,
    Store,
    parse,
)

from rsnotify_subscriber import FolderMirror, FollowOptions, Received, Subscriber

log = logging.getLogger(__name__)


class TripleStore:
    """A handler that keeps a graph for each resource.

    Args:
        folder: The folder for the store and the documents.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.store = Store(str(folder / "store"))
        self._mirror = FolderMirror(folder / "documents")

    def prepare(self, base: str, temporary: Path) -> None:
        """Prepare the mirror that holds the documents."""
        self._mirror.prepare(base, temporary)

    def held_content(self, uri: str) -> Path | None:
        """Return the path of a resource's document, to which a patch can be applied."""
        return self._mirror.held_content(uri)

    def apply(self, changes: Sequence[Received]) -> None:
        """Apply changes to the store durably. Applying them again does no harm."""
        for change in changes:
            self._replace(NamedNode(change.uri), set(quads_of(change)))
        self.store.flush()
        self._mirror.apply(changes)

    def _replace(self, graph: NamedNode, new: set[Quad]) -> None:
        """Replace the triples of a graph. Unchanged triples are left in place."""
        old = set(self.store.quads_for_pattern(None, None, None, graph))
        for quad in old - new:
            self.store.remove(quad)
        # Add last: a removed triple may be another spelling of a new one, as 1.50 is of 1.5.
        self.store.extend(new - old)


def quads_of(change: Received) -> list[Quad]:
    """Return the triples of a resource. The list is empty if it was deleted or is not RDF."""
    if change.content is None:
        return []
    document, graph = change.content.read_bytes(), NamedNode(change.uri)
    kind = RdfFormat.from_media_type(change.resource.type or "") or RdfFormat.TURTLE
    try:
        # Blank nodes of different documents are different nodes.
        read = parse(document, kind, base_iri=change.uri, rename_blank_nodes=True)
        return [Quad(quad.subject, quad.predicate, quad.object, graph) for quad in read]
    except (SyntaxError, ValueError) as error:
        log.warning("%s is left out, as it cannot be read: %s", change.uri, error)
        return []


def patched(before: bytes, patch: bytes) -> bytes:
    """Apply an RDF Patch to a document with one triple per line, sorted."""
    lines = set(before.splitlines(keepends=True))
    for line in patch.splitlines(keepends=True):
        (lines.add if line.startswith(b"A ") else lines.discard)(line[2:])
    return b"".join(sorted(lines))


STORE = web.AppKey("store", Store)
PATCHES = {"application/rdf-patch": patched}


async def answer(request: web.Request) -> web.Response:
    """Answer a SPARQL query over all graphs."""
    try:
        query = request.query["query"]
        body, kind = await asyncio.to_thread(found, request.app[STORE], query)
    except (KeyError, SyntaxError) as error:
        raise web.HTTPBadRequest(text=f"give ?query=… in SPARQL: {error}\n") from error
    return web.Response(body=body, content_type=kind)


def found(store: Store, query: str) -> tuple[bytes, str]:
    """Return the results of a query and their media type."""
    results = store.query(query, use_default_graph_as_union=True)
    if isinstance(results, QueryTriples):
        return results.serialize(None, RdfFormat.TURTLE), "text/turtle"
    return results.serialize(None, QueryResultsFormat.JSON), "application/sparql-results+json"


async def follow(arguments: argparse.Namespace) -> None:
    """Follow the Source and answer queries until interrupted."""
    triples = TripleStore(arguments.folder)
    app = web.Application()
    app[STORE] = triples.store
    app.router.add_get("/sparql", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", arguments.port).start()
        print(f"queries are answered at http://127.0.0.1:{arguments.port}/sparql", flush=True)
        state = arguments.folder / "state"
        await Subscriber(
            arguments.url, triples, state=state, options=FollowOptions(patches=PATCHES)
        ).run()
    finally:
        await runner.cleanup()


def main() -> None:
    """Parse the arguments, and follow the Source."""
    parser = argparse.ArgumentParser(description="Keep a triple store in step with a Source.")
    parser.add_argument("url", help="the Source")
    parser.add_argument("folder", type=Path, help="the folder of the store")
    parser.add_argument("--port", type=int, default=8010, help="the port for queries")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with suppress(KeyboardInterrupt):
        asyncio.run(follow(parser.parse_args()))


if __name__ == "__main__":
    main()
