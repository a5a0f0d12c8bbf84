"""All hubs of a Source, fed on both of its channels, and how far each is.

On the one channel is told of changes, on the other of the Source's own documents.
"""

from __future__ import annotations

import asyncio
import logging

from rsnotify.format.vocabulary import Capability
from rsnotify_publisher.framework import FrameworkNotices, framework_hubs, promise_notices
from rsnotify_publisher.hubs import Hub
from rsnotify_publisher.journal import Journal, JournalState, Recorder
from rsnotify_publisher.push.channel_push import ChannelPush
from rsnotify_publisher.push.fragments import FragmentWriter
from rsnotify_publisher.push.hub_feed import HubFeed
from rsnotify_publisher.source_context import SourceContext
from rsnotify_publisher.source_documents import CAPABILITY_LIST

_log = logging.getLogger("rsnotify.publisher")
_LOOK_EVERY = 0.01
# Documents are rare, and so is the proof that none was missed: so many heartbeats between two.
_SELDOM = 30


class HubPush:
    """Feeds the hubs.

    Args:
        source: Whose they are.
        journal: What they are fed from; read in the event loop's thread.
        recorder: Makes promises durable, and how far the hubs are.
    """

    def __init__(self, source: SourceContext, journal: Journal, recorder: Recorder) -> None:
        self._source = source
        self._journal = journal
        self._recorder = recorder
        changes = [(hub, self._feed_of_changes(hub)) for hub in source.hubs]
        self._changes = ChannelPush(source.documents.topic, changes)
        self._notices = self._emitter_of_notices()
        self._noted: tuple[dict[str, int], dict[str, int]] = ({}, {})
        self._left_behind: set[str] = set()

    def _feed_of_changes(self, hub: Hub) -> HubFeed:
        options, contents = self._source.options, self._source.contents
        return HubFeed(
            self._journal,
            self._journal.cursor(hub.uri),
            self._writer(self._source.documents.uri(CAPABILITY_LIST)),
            self._promise,
            None if contents is None else contents.inline,
            heartbeat=options.heartbeat,
            batch=options.fragment_entries,
        )

    def _emitter_of_notices(self) -> ChannelPush:
        channel = self._source.documents.framework
        if channel is None:
            return ChannelPush("", ())
        feeds = [(hub, self._feed_of_notices(hub)) for hub in framework_hubs(self._source.hubs)]
        what = "notices of new documents"
        return ChannelPush(channel.topic, feeds, what=what, beside=self._changes)

    def _feed_of_notices(self, hub: Hub) -> HubFeed:
        options = self._source.options
        up = self._source.documents.description_uri
        return HubFeed(
            FrameworkNotices(self._journal),
            self._journal.told(hub.uri),
            self._writer(up, Capability.FRAMEWORK_NOTIFICATION),
            self._promise_of_notices,
            None,
            heartbeat=options.heartbeat * _SELDOM,
            batch=options.fragment_entries,
        )

    def _writer(self, up: str, capability: str = Capability.CHANGE_NOTIFICATION) -> FragmentWriter:
        options = self._source.options
        return FragmentWriter(
            up,
            max_entries=options.fragment_entries,
            max_bytes=options.fragment_bytes,
            profile=self._source.documents.profile,
            capability=capability,
        )

    async def _promise(self) -> JournalState:
        return await asyncio.wrap_future(self._recorder.submit(Journal.promise))

    async def _promise_of_notices(self) -> JournalState:
        return await asyncio.wrap_future(self._recorder.submit(promise_notices))

    async def run(self) -> None:
        """Feed them all, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._changes.run())
            tasks.create_task(self._notices.run())

    def wake(self) -> None:
        """Say that the journal has new changes."""
        self._changes.wake()

    def tell(self) -> None:
        """Say that documents may have been written."""
        self._notices.wake()

    def show(self, changes: int, notices: int) -> None:
        """Say that the documents show all changes and all notices through two instants (µs)."""
        self._changes.show(changes)
        self._notices.show(notices)

    async def drain(self) -> None:
        """Give hubs that are there a moment to take what is left; the journal keeps the rest."""
        last = self._journal.state().last_change
        clock = asyncio.get_running_loop().time
        until = clock() + self._source.options.grace
        while self._changes.behind(last):
            if clock() >= until:
                break
            await asyncio.sleep(_LOOK_EVERY)

    async def note(self) -> None:
        """Persist how far the hubs are; late is well, since what is sent twice is kept once."""
        cursors, told = noted = (self._changes.cursors, self._notices.cursors)
        through = self._journal.prunable(cursors)
        if through is not None:
            self._leave_behind({hub for hub, cursor in cursors.items() if cursor < through})
        if noted == self._noted and through is None:
            return

        def note(journal: Journal) -> None:
            for hub, cursor in cursors.items():
                journal.move_cursor(hub, cursor)
            for hub, cursor in told.items():
                journal.note_told(hub, cursor)
            if through is not None:
                journal.prune(through)

        await asyncio.wrap_future(self._recorder.submit(note))
        self._noted = noted

    def _leave_behind(self, hubs: set[str]) -> None:
        """Warn once of hubs that lack what is not kept for them any more."""
        for hub in hubs - self._left_behind:
            _log.warning(
                "%s lacks changes that are no longer kept; it will have a gap, which "
                "Destinations fill from the documents",
                hub,
            )
        self._left_behind = hubs
