"""All hubs of a Source, fed on both of its channels, and their cursors.

One channel carries changes, the other notices of the Source's own documents.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import Executor

from rsnotify.format.vocabulary import Capability
from rsnotify_publisher.framework import FrameworkNotices, allows_second_channel, promise_notices
from rsnotify_publisher.hubs import Hub
from rsnotify_publisher.journal import Journal, Recorder
from rsnotify_publisher.push.change_stream import Call, ChangeStream
from rsnotify_publisher.push.channel_news import ChannelNews
from rsnotify_publisher.push.channel_push import ChannelPush
from rsnotify_publisher.push.fragments import FragmentWriter
from rsnotify_publisher.push.hub_feed import HubFeed
from rsnotify_publisher.push.transports import HubConnections
from rsnotify_publisher.source_context import SourceContext
from rsnotify_publisher.source_documents import CAPABILITY_LIST

_log = logging.getLogger("rsnotify.publisher")
_POLL_CURSORS_EVERY = 0.01
# Documents are rare, and so is the proof that no notice was missed: one in so many heartbeats.
_HEARTBEATS_PER_NOTICE_HEARTBEAT = 30


class HubPush:
    """Feeds the hubs; the journal is read in the event loop's thread.

    Attributes:
        changes: What the feeds of the channel for changes read.
        notices: Resumes the feeds of the channel for notices of documents.
    """

    def __init__(
        self,
        source: SourceContext,
        journal: Journal,
        recorder: Recorder,
        call: Call,
        readers: Executor,
        websockets: HubConnections,
    ) -> None:
        self._source = source
        self._journal = journal
        self._recorder = recorder
        contents = None if source.contents is None else source.contents.inline
        self.changes = ChangeStream(journal, contents, call, readers, self._sent)
        self.notices = ChannelNews()
        channel = source.documents.framework
        self._change_push = ChannelPush(
            source.documents.topic,
            [(hub, self._change_feed(hub)) for hub in source.hubs],
            websockets,
        )
        self._notice_push = ChannelPush(
            "" if channel is None else channel.topic,
            [
                (hub, self._notice_feed(hub))
                for hub in source.hubs
                if channel is not None and all(map(allows_second_channel, hub.nodes))
            ],
            websockets,
            what="notices of new documents",
            beside=self._change_push,
        )
        self._saved: tuple[dict[str, int], dict[str, int]] = ({}, {})
        self._left_behind: set[str] = set()

    def _change_feed(self, hub: Hub) -> HubFeed:
        options = self._source.options
        return HubFeed(
            self.changes,
            self._journal.cursor(hub.uri),
            self._writer(self._source.documents.uri(CAPABILITY_LIST)),
            self._recorder.promise_with_digest,
            self.changes.news,
            heartbeat=options.heartbeat,
            batch=options.fragment_entries,
        )

    def _notice_feed(self, hub: Hub) -> HubFeed:
        options, documents = self._source.options, self._source.documents
        return HubFeed(
            FrameworkNotices(self._journal),
            self._journal.notice_cursor(hub.uri),
            self._writer(documents.description_uri, Capability.FRAMEWORK_NOTIFICATION),
            lambda: self._recorder.arun(promise_notices),
            self.notices,
            heartbeat=options.heartbeat * _HEARTBEATS_PER_NOTICE_HEARTBEAT,
            batch=options.fragment_entries,
        )

    def _writer(self, up: str, capability: str = Capability.CHANGE_NOTIFICATION) -> FragmentWriter:
        options, profile = self._source.options, self._source.documents.profile
        return FragmentWriter(
            up, options.fragment_entries, options.fragment_bytes, profile, capability
        )

    def _sent(self) -> Iterator[int]:
        return (feed.sent for _, feed in self._change_push.feeds)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._change_push.run())
            tasks.create_task(self._notice_push.run())

    async def drain(self) -> None:
        """Wait up to `Options.grace` until the hubs have every change."""
        last = self._journal.state().last_change
        clock = asyncio.get_running_loop().time
        until = clock() + self._source.options.grace
        while any(cursor < last for cursor in self._change_push.cursors.values()):
            if clock() >= until:
                break
            await asyncio.sleep(_POLL_CURSORS_EVERY)

    async def save_cursors(self) -> None:
        """Save the cursors, and prune the journal.

        The hubs may be ahead of what is saved: changes that are sent twice are kept once.
        """
        cursors, notices = current = (self._change_push.cursors, self._notice_push.cursors)
        through = self._journal.prunable(cursors)
        if through is not None:
            self._warn_of_gaps({hub for hub, cursor in cursors.items() if cursor < through})
        state = self._journal.state()
        # With hubs, all are applied, so that the next digest takes little time.
        wanted = state.last_change if self._source.hubs else through
        if state.tracked and wanted is not None and state.applied < wanted:
            await self._recorder.aapply_changes(wanted)
        if current == self._saved and through is None:
            return

        def save(journal: Journal) -> None:
            for hub, cursor in cursors.items():
                journal.move_cursor(hub, cursor)
            for hub, cursor in notices.items():
                journal.move_notice_cursor(hub, cursor)
            if through is not None:
                journal.prune(through)

        await self._recorder.arun(save)
        self._saved = current

    def _warn_of_gaps(self, hubs: set[str]) -> None:
        """Warn once of each hub that lacks changes that are no longer kept for it."""
        for hub in hubs - self._left_behind:
            _log.warning(
                "%s lacks changes that are no longer kept; it will have a gap, which "
                "Destinations fill from the documents",
                hub,
            )
        self._left_behind = hubs
