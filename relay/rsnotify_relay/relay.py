"""The library: a Source to follow and a base URL in, a Source of its own out."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path

from aiohttp import web

from rsnotify.selection.selection import Selection
from rsnotify.sync.pace import Pace
from rsnotify_publisher import Hub, Options, Publisher
from rsnotify_publisher.documents import PARTS
from rsnotify_relay.republisher import Republisher
from rsnotify_relay.serve import server
from rsnotify_subscriber import Callbacks, FolderMirror, Subscriber, Via, default_state
from rsnotify_subscriber.events import Behind, Event
from rsnotify_subscriber.fetching.credentials import NO_CREDENTIALS, Credentials
from rsnotify_subscriber.push.mqtt import DEFAULT_MQTT, MqttOptions
from rsnotify_subscriber.push.websub.terms import DEFAULT_TERMS, WebSubTerms
from rsnotify_subscriber.storage.state import DestinationState

_log = logging.getLogger("rsnotify.relay")
_LOOK_EVERY = 0.2


def _note(event: Event) -> None:
    if isinstance(event, Behind) and event.doubts and not event.pending:
        _log.warning("the copy may be wrong: %s", "; ".join(event.doubts))


class Relay:
    """Follows one set of resources of a Source and publishes its copy as another Source.

    Args:
        url: The Source, as for `Subscriber`.
        folder: The mirror, which holds the copy and nothing else.
        base_url: Below which the copy and its documents are served.
        state: The folder of the state; None for the place where `rsnotify follow` keeps it.
        hubs: Where the copy's changes are pushed to.
        token: The bearer token for hubs given as URLs.
        selection: What of the set is followed, and so published.
        prefer: As for `Subscriber`; a representation that is held is what is published.
        exact: As for `Subscriber`.
        via: How changes are heard of.
        callbacks: Where hubs reach the relay, answered by the caller; without them, by WebSub
            hubs reach it below its base URL.
        terms: What is asked of hubs there, and what is taken from them.
        most_ways: To how many ways to hear of changes one listens at once.
        pace: How fast one follows.
        options: Tuning of the publishing half.
        described_by: A document about the copy.
        allow_private_addresses: Whether documents of the Source may name private addresses.
        credentials: What is sent to the origin of `url`, as for `Subscriber`.
        mqtt: As for `Subscriber`: brokers that tell of changes of the Source.

    Raises:
        ConfigurationError: A URL or an option is unusable.
    """

    def __init__(
        self,
        url: str,
        folder: str | os.PathLike[str],
        base_url: str,
        *,
        state: str | os.PathLike[str] | None = None,
        hubs: Sequence[str | Hub] = (),
        token: str | None = None,
        selection: Selection | None = None,
        prefer: str | Sequence[str] = (),
        exact: bool = False,
        via: Via = Via.AUTO,
        callbacks: Callbacks | None = None,
        terms: WebSubTerms = DEFAULT_TERMS,
        most_ways: int = 1,
        pace: Pace | None = None,
        options: Options | None = None,
        described_by: str | None = None,
        allow_private_addresses: bool = False,
        credentials: Credentials = NO_CREDENTIALS,
        mqtt: MqttOptions = DEFAULT_MQTT,
    ) -> None:
        self._stopping = False
        self._mirror = mirror = FolderMirror(folder)
        self._state = default_state(folder) if state is None else Path(state)
        self.publisher = Publisher(
            self._state / "source",
            base_url,
            hubs=hubs,
            token=token,
            content=self._content,
            described_by=described_by,
            options=options,
        )
        self._republisher = Republisher(mirror, self.publisher)
        self._callbacks: Callbacks | None = None
        if via is Via.WEBSUB and callbacks is None:
            own = self.publisher.source.base_url + PARTS + "websub/"
            callbacks = self._callbacks = Callbacks(own, terms)
        self.subscriber = Subscriber(
            url,
            self._republisher,
            state=self._state,
            via=via,
            pace=pace,
            selection=selection,
            prefer=prefer,
            exact=exact,
            allow_private_addresses=allow_private_addresses,
            credentials=credentials,
            callbacks=callbacks,
            mqtt=mqtt,
            hubs=most_ways,
            on_event=_note,
        )

    def application(self) -> web.Application:
        """Make the application that serves the copy and its documents, while `run` runs."""
        return server(self.publisher, self._republisher, self._callbacks)

    async def run(self, on_published: Callable[[], Awaitable[None]] | None = None) -> None:
        """Follow and publish until `stop` is called.

        Args:
            on_published: Called when all documents are there to be served, before anything is
                followed.

        Raises:
            RsnotifyError: It cannot begin, or cannot go on.
        """
        await asyncio.to_thread(self._begin)
        async with self.publisher:
            while not await asyncio.to_thread(self.publisher.wait_published, _LOOK_EVERY):
                if self._stopping:
                    return
            if on_published is not None:
                await on_published()
            await self.subscriber.run()

    def stop(self) -> None:
        """Let `run` end in order."""
        self._stopping = True
        self.subscriber.stop()

    def _begin(self) -> None:
        """Make what is held ready to be served, before the Source is reached."""
        with closing(DestinationState(self._state)) as state:
            self._mirror.check(self._state)
            identity = state.identity()
            if identity is not None:
                self._republisher.prepare(identity.base, self._state)
            if self.publisher.is_empty():
                # Else a mirror that was only followed so far would never be published.
                state.distrust()

    def _content(self, uri: str) -> Path | None:
        return self._republisher.content(uri)
