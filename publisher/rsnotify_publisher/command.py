"""`rsnotify source`: publish a folder, serve it, watch it, and push what changes."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer
from aiohttp import web
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from rsnotify.commands import run
from rsnotify.errors import ConfigurationError
from rsnotify.vocabulary import INLINE_LIMIT
from rsnotify_publisher.folder.names import Names
from rsnotify_publisher.folder.scan import Scanner
from rsnotify_publisher.folder.serve import server
from rsnotify_publisher.folder.watch import Watcher
from rsnotify_publisher.options import Options
from rsnotify_publisher.publisher import Publisher
from rsnotify_publisher.source import normalize_base_url


def source(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to publish.")],
    base_url: Annotated[
        str | None,
        typer.Option(help="URL of the folder for others; http://HOST:PORT/ if not given."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    hub: Annotated[
        list[str] | None, typer.Option(help="URL of a hub to push to; may be repeated.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder for the state; DIR.rsnotify/source if not given.")
    ] = None,
    token: Annotated[str | None, typer.Option(help="Bearer token for the hubs.")] = None,
    heartbeat: Annotated[
        float, typer.Option(help="Seconds of quiet before a heartbeat.", min=0.1)
    ] = 10.0,
    resource_list_every: Annotated[
        float, typer.Option(help="Seconds between refreshes of the Resource List.", min=0.1)
    ] = 900.0,
    allow_private_addresses: Annotated[
        bool,
        typer.Option(help="Dial any address. A hub named here may be anywhere even without."),
    ] = False,
) -> None:
    """Publish a folder: serve it and its ResourceSync documents, watch it, push changes."""
    with _listen(host, port) as listening:
        address = f"http://{_authority(host)}:{listening.getsockname()[1]}/"
        names = Names(folder, normalize_base_url(base_url or address))
        names.check()
        publisher = Publisher(
            _state_folder(names.root, data),
            names.base_url,
            hubs=hub or (),
            token=token,
            content=lambda uri: _small_content(names, uri),
            options=Options(heartbeat=heartbeat, resource_list_every=resource_list_every),
        )
        _load(names, publisher)
        run(lambda stop: _serve(names, publisher, listening, stop))


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=512)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(
            f"cannot listen on {host} port {port}: {reason}; choose another --host or --port"
        ) from None


def _authority(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _state_folder(root: Path, data: Path | None) -> Path:
    folder = (data or root.with_name(root.name + ".rsnotify") / "source").resolve()
    if folder.is_relative_to(root):
        raise ConfigurationError(f"the state in {folder} would be published; choose another --data")
    return folder


def _small_content(names: Names, uri: str) -> bytes | None:
    path = names.path(uri)
    if path is None or not names.is_published(path):
        return None
    with open(path, "rb") as file:
        content = file.read(INLINE_LIMIT + 1)
    return content if len(content) <= INLINE_LIMIT else None


def _load(names: Names, publisher: Publisher) -> None:
    """Take what the folder holds at the first start as the baseline."""
    if not publisher.is_empty():
        return
    with publisher.source.open_journal() as journal:
        scanner = Scanner(names, journal)
        total = sum(1 for _ in scanner.files(names.root))
        progress = Progress(
            TextColumn("scanning"),
            BarColumn(),
            MofNCompleteColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        with progress:
            task = progress.add_task("scanning", total=total)
            count = publisher.load(scanner.baseline(lambda: progress.advance(task)))
    if not sys.stderr.isatty():
        typer.echo(f"rsnotify source scanned {names.root} ({count} files)", err=True)


async def _serve(
    names: Names, publisher: Publisher, listening: socket.socket, stop: asyncio.Event
) -> None:
    runner = web.AppRunner(server(names, publisher), access_log=None, shutdown_timeout=2)
    async with publisher:
        await runner.setup()
        try:
            # Whoever comes before all documents are there waits, rather than misses one.
            if await _published(publisher, stop):
                await web.SockSite(runner, listening).start()
                await _watch(names, publisher, stop)
        finally:
            await runner.cleanup()


async def _published(publisher: Publisher, stop: asyncio.Event) -> bool:
    while not stop.is_set():
        if await asyncio.to_thread(publisher.wait_published, 0.2):
            return True
    return False


async def _watch(names: Names, publisher: Publisher, stop: asyncio.Event) -> None:
    compared = asyncio.Event()
    watching = asyncio.create_task(Watcher(names, publisher).run(compared.set))
    stopped = asyncio.create_task(stop.wait())
    announcing = asyncio.create_task(_announce(names, publisher, compared))
    try:
        await asyncio.wait({watching, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (watching, stopped, announcing):
            task.cancel()
        await asyncio.gather(watching, stopped, announcing, return_exceptions=True)
    if not watching.cancelled() and (error := watching.exception()):
        raise error


async def _announce(names: Names, publisher: Publisher, compared: asyncio.Event) -> None:
    await compared.wait()
    with publisher.source.open_journal() as journal:
        count = journal.count()
    typer.echo(f"rsnotify source serving {names.base_url} ({count} resources)")
