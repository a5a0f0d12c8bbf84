"""The relay as a library: mirror a Source, and publish the copy below another base URL."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from msgspec.structs import replace

from rsnotify.format.media_types import guess_media_type
from rsnotify_publisher import Hub, Options, Publisher, link_header, routes
from rsnotify_publisher.source_documents import PARTS
from rsnotify_publisher.web import LIVE, respond_with, robots
from rsnotify_publisher.web.application import SharedThreads
from rsnotify_publisher.web.responses import file_representation
from rsnotify_relay.republisher import Republisher
from rsnotify_subscriber import (
    Callbacks,
    FolderMirror,
    FollowOptions,
    Subscriber,
    Via,
    default_state,
)
from rsnotify_subscriber.events import Behind, Event
from rsnotify_subscriber.options import DEFAULT_OPTIONS
from rsnotify_subscriber.storage.destination_state import DestinationState

logger = logging.getLogger("rsnotify.relay")
#: Seconds between checks for `stop` while the first documents are being written.
_STOP_CHECK_INTERVAL = 0.2
_UNKNOWN_TYPE = "application/octet-stream"


def _log_doubts(event: Event) -> None:
    if isinstance(event, Behind) and event.doubts and not event.pending:
        logger.warning("the copy may be wrong: %s", "; ".join(event.doubts))


class Relay:
    """Follows one set of resources of a Source and publishes its copy as another Source.

    Args:
        url: The URL of the Source. See `Subscriber`.
        folder: The folder of the mirror, which holds the copy and nothing else.
        base_url: The URL below which the copy and its documents are served.
        state: The folder for the state. The default is the same as for `rsnotify follow`.
        follow: Options for following the Source. The relay publishes only the selected resources,
            in the preferred representation. With `Via.WEBSUB` and no `callbacks`, the relay serves
            callbacks below its base URL, with `terms`. If `callbacks` are given, the caller serves
            them.
        hubs: The hubs to push the copy's changes to: URLs, or `Hub`s with a token.
        options: Options for publishing the copy.
        described_by: The URL of a document about the copy.

    Raises:
        ConfigurationError: A URL or an option cannot be used.
    """

    def __init__(
        self,
        url: str,
        folder: str | os.PathLike[str],
        base_url: str,
        *,
        state: str | os.PathLike[str] | None = None,
        follow: FollowOptions = DEFAULT_OPTIONS,
        hubs: Sequence[str | Hub] = (),
        options: Options | None = None,
        described_by: str | None = None,
    ) -> None:
        self._stopping = False
        self._mirror = FolderMirror(folder)
        self._state = default_state(folder) if state is None else Path(state)
        self.publisher = Publisher(
            self._state / "source",
            base_url,
            hubs=hubs,
            content=lambda uri: self._republisher.content(uri),
            described_by=described_by,
            options=options,
        )
        self._republisher = Republisher(self._mirror, self.publisher)
        self._callbacks: Callbacks | None = None
        if follow.via is Via.WEBSUB and follow.callbacks is None:
            callback_url = self.publisher.source.base_url + PARTS + "websub/"
            self._callbacks = Callbacks(callback_url, follow.terms)
            follow = replace(follow, callbacks=self._callbacks)
        self.subscriber = Subscriber(
            url, self._republisher, state=self._state, options=follow, on_event=_log_doubts
        )

    def application(self) -> web.Application:
        """Return an application that serves the copy and its documents while `run` is running."""
        base_url = self.publisher.source.base_url
        prefix = urlsplit(base_url).path
        threads = SharedThreads()
        headers = LIVE | {hdrs.LINK: link_header(self.publisher)}

        async def content(request: web.Request) -> web.StreamResponse:
            # Use the raw path with its query: a decoded path might belong to another resource.
            uri = base_url + request.raw_path[len(prefix) :]
            found = await asyncio.to_thread(self._republisher.find, uri)
            if found is None:
                raise web.HTTPNotFound
            resource, path = found
            media_type = resource.type or guess_media_type(uri) or _UNKNOWN_TYPE
            answer_headers = headers | {hdrs.CONTENT_TYPE: media_type}
            load = partial(file_representation, path, is_shared=True)
            return await respond_with(request, load, answer_headers, threads)

        app = web.Application()
        if self._callbacks is not None:
            app.add_routes(self._callbacks.routes())
        app.add_routes(routes(self.publisher))
        app.router.add_get("/robots.txt", robots(self.publisher))
        app.router.add_get(prefix + r"{name:[\s\S]+}", content)
        return app

    async def run(self, on_published: Callable[[], Awaitable[None]] | None = None) -> None:
        """Follow and publish until `stop` is called.

        Args:
            on_published: Called once all documents can be served, before following begins.

        Raises:
            RsnotifyError: The relay cannot start, or cannot continue.
        """
        await asyncio.to_thread(self._prepare)
        async with self.publisher:
            while not await self.publisher.await_published(_STOP_CHECK_INTERVAL):
                if self._stopping:
                    return
            if on_published is not None:
                await on_published()
            await self.subscriber.run()

    def stop(self) -> None:
        """Make `run` finish its work and return."""
        self._stopping = True
        self.subscriber.stop()

    def _prepare(self) -> None:
        """Prepare the copy, so that it can be served before the Source is contacted."""
        with closing(DestinationState(self._state)) as state:
            self._mirror.check(self._state)
            identity = state.identity()
            if identity is not None:
                self._republisher.prepare(identity.base, self._state)
                if state.is_restored:  # the journal, like the mirror, may be ahead of the state
                    state.forget(self._republisher.differing(state))
            if self.publisher.is_empty():
                # Otherwise a mirror made by `rsnotify follow` would never be published.
                state.invalidate()
