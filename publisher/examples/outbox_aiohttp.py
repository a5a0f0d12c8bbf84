"""aiohttp: a document and its change are committed together, and published immediately.

    python publisher/examples/outbox_aiohttp.py postgresql://localhost/example 8000

PUT a document at /data/NAME, and its change appears in /data/changelist.xml.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import AsyncIterator

import psycopg
from aiohttp import web

from rsnotify_publisher import Forwarder, Options, Outbox, PostgreSQLQueue, Publisher, application

DATABASE, PORT = sys.argv[1], int(sys.argv[2])
BASE = f"http://127.0.0.1:{PORT}/data/"
TABLE = "CREATE TABLE IF NOT EXISTS documents (name text PRIMARY KEY, body text CHECK (body <> ''))"
KEEP = "INSERT INTO documents VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET body = excluded.body"

outbox = Outbox()


async def put(request: web.Request) -> web.Response:
    """Store a document, and record the change in the same transaction."""
    name, body = request.match_info["name"], await request.text()
    async with await psycopg.AsyncConnection.connect(DATABASE) as connection:
        await connection.execute(KEEP, (name, body))
        await outbox.aupdated(connection, BASE + name, content=body.encode(), type="text/plain")
    return web.Response(status=204)


async def get(request: web.Request) -> web.Response:
    """Return a document."""
    query = "SELECT body FROM documents WHERE name = %s"
    async with await psycopg.AsyncConnection.connect(DATABASE) as connection:
        found = await (await connection.execute(query, (request.match_info["name"],))).fetchone()
    if found is None:
        raise web.HTTPNotFound
    return web.Response(text=found[0])


def main() -> None:
    """Create the tables, and start the server."""
    with psycopg.connect(DATABASE) as connection:
        connection.execute(TABLE)
        connection.execute(outbox.ddl.encode())
    publisher = Publisher(tempfile.mkdtemp(), BASE, options=Options(refresh=0.1))

    async def forwarding(_: web.Application) -> AsyncIterator[None]:
        async with Forwarder(publisher, PostgreSQLQueue(DATABASE, outbox)):
            yield

    app = web.Application()
    application(publisher, app)
    app.add_routes([web.put("/data/{name}", put), web.get("/data/{name}", get)])
    app.cleanup_ctx.append(forwarding)
    web.run_app(app, host="127.0.0.1", port=PORT, print=None)


if __name__ == "__main__":
    main()
