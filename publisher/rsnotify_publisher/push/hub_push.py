"""Feeds all hubs of a Source on both of its channels, and saves their cursors.

One channel carries changes, the other notices of the Source's own documents. On each channel, every
hub is fed in a separate task, so that no hub waits for another. If a hub has several nodes, one of
them is fed, and the next one when that node fails (`NodeRotation`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

import aiohttp
from websockets.exceptions import InvalidStatus, WebSocketException

from rsnotify.errors import RsnotifyError
from rsnotify.format.model import Capability
from rsnotify.runtime.addresses import Dialer
from rsnotify.runtime.mqtt_broker import is_broker_url
from rsnotify.runtime.reasons import reason_of
from rsnotify.runtime.tasks import first_cause
from rsnotify.runtime.transport_extensions import PushTransport, offered_transport
from rsnotify.sync.retry import LONGEST_RETRY_AFTER, Alternatives, Retry
from rsnotify_publisher.hubs import Hub, HubFailure
from rsnotify_publisher.journal import Journal, Recorder
from rsnotify_publisher.push.change_stream import ChangeStream, NoticeStream, promise_notices
from rsnotify_publisher.push.http_post import (
    TOO_MANY_REQUESTS,
    feed_by_post,
    remedy,
    seconds_to_wait,
)
from rsnotify_publisher.push.hub_feed import FragmentFeed, FragmentWriter, HubFeed
from rsnotify_publisher.push.mqtt import feed_by_mqtt
from rsnotify_publisher.push.websocket import HubConnections, feed_by_websocket
from rsnotify_publisher.source_context import SourceContext
from rsnotify_publisher.source_documents import CAPABILITY_LIST, allows_second_channel

logger = logging.getLogger("rsnotify.publisher")
_RETRY = Retry(first=0.1, most=30.0)
#: Seconds between two checks whether the hubs have every change, while the Publisher closes.
_DRAIN_POLL_INTERVAL = 0.01
#: Number of heartbeats for changes per heartbeat for notices. Documents are rarely written, so the
#: proof that no notice was missed can also be rare.
_HEARTBEATS_PER_NOTICE_HEARTBEAT = 30
_NETWORK_ERRORS = (OSError, aiohttp.ClientError, WebSocketException)


class SourceTransport(PushTransport, Protocol):
    """A transport over which a Source can publish."""

    async def feed(self, hub: Hub, topic: str, feed: FragmentFeed, dialer: Dialer, /) -> None:
        """Send the fragments that a hub lacks, and confirm accepted ones, until an error occurs.

        Args:
            hub: The hub, with its login.
            topic: The URI of the channel.
            feed: Yields fragments, and records which ones the hub has accepted.
            dialer: Opens connections to allowed addresses.

        Raises:
            Unavailable: The hub cannot be reached, or it refuses the connection or a fragment.
        """


async def feed_hub(
    hub: Hub, topic: str, feed: HubFeed, dialer: Dialer, websockets: HubConnections
) -> None:
    """Feed a hub over the transport for its URL. Always raises HubFailure or Unavailable."""
    transport: SourceTransport | None
    try:
        if is_broker_url(hub.uri):
            await feed_by_mqtt(hub, topic, feed, dialer)
        elif hub.uri.startswith("http"):
            await feed_by_post(hub, topic, feed, dialer)
        elif (transport := offered_transport(hub.uri)) is not None:
            await transport.feed(hub, topic, feed, dialer)
        else:
            await feed_by_websocket(hub, topic, feed, dialer, websockets)
    except (*_NETWORK_ERRORS, ExceptionGroup) as error:
        cause = first_cause(error)
        if isinstance(cause, InvalidStatus):
            answer = cause.response
            location = answer.headers.get("Location", "")
            raise HubFailure(
                hub.uri,
                f"it answered {answer.status_code} {answer.reason_phrase}",
                seconds_to_wait(answer.headers),
                remedy=remedy(hub, topic, answer.status_code, location),
                everywhere=answer.status_code == TOO_MANY_REQUESTS,
            ) from error
        if isinstance(cause, _NETWORK_ERRORS):
            raise HubFailure(hub.uri, reason_of(cause, str(cause))) from error
        raise cause from None


class HubPush:
    """Feeds the hubs on both channels, reading `journal` in the event loop's thread."""

    def __init__(
        self,
        source: SourceContext,
        journal: Journal,
        recorder: Recorder,
        changes: ChangeStream,
        websockets: HubConnections,
    ) -> None:
        self._source = source
        self._journal = journal
        self._recorder = recorder
        self.changes = changes
        self.notices = NoticeStream(journal)
        if source.hubs:
            changes.open(journal)
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
            items="notices of new documents",
            change_push=self._change_push,
        )
        changes.feeds = [feed for _, feed in self._change_push.feeds]
        self._saved: tuple[dict[str, int], dict[str, int]] = ({}, {})
        #: The cursors and `Journal.write_version` when nothing was left to save, apply or prune.
        self._idle: object = None
        self._left_behind: set[str] = set()

    def _change_feed(self, hub: Hub) -> HubFeed:
        options = self._source.options
        return HubFeed(
            self.changes,
            self._journal.cursor(hub.uri),
            self._writer(self._source.documents.uri(CAPABILITY_LIST)),
            self._recorder.promise_with_digest,
            heartbeat=options.heartbeat,
            batch=options.fragment_entries,
            counters=self._source.counters.hubs[hub.uri],
        )

    def _notice_feed(self, hub: Hub) -> HubFeed:
        options, documents = self._source.options, self._source.documents
        return HubFeed(
            self.notices,
            self._journal.notice_cursor(hub.uri),
            self._writer(documents.description_uri, Capability.FRAMEWORK_NOTIFICATION),
            lambda: self._recorder.arun(promise_notices),
            heartbeat=options.heartbeat * _HEARTBEATS_PER_NOTICE_HEARTBEAT,
            batch=options.fragment_entries,
        )

    def _writer(self, up: str, capability: str = Capability.CHANGE_NOTIFICATION) -> FragmentWriter:
        options, profile = self._source.options, self._source.documents.profile
        return FragmentWriter(
            up, options.fragment_entries, options.fragment_bytes, profile, capability
        )

    async def run(self) -> None:
        """Feed every hub on both channels until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for channel in (self._change_push, self._notice_push):
                for hub, feed in channel.feeds:
                    tasks.create_task(channel.keep_feeding(hub, feed))

    async def drain(self) -> None:
        """Wait until the hubs have every change, for at most `Options.grace` seconds."""
        last = self._journal.state().last_change
        clock = asyncio.get_running_loop().time
        until = clock() + self._source.options.grace
        while any(cursor < last for cursor in self._change_push.cursors.values()):
            if clock() >= until:
                break
            await asyncio.sleep(_DRAIN_POLL_INTERVAL)

    async def save_cursors(self) -> None:
        """Save the cursors, and prune the journal.

        The hubs may be ahead of the saved cursors. That is harmless, because a hub stores a change
        only once even if it receives it twice.
        """
        cursors, notices = current = (self._change_push.cursors, self._notice_push.cursors)
        known = current, self._journal.write_version()
        if known == self._idle:
            return
        through = self._journal.prunable(cursors)
        if through is not None:
            self._warn_of_gaps({hub for hub, cursor in cursors.items() if cursor < through})
        state = self._journal.state()
        # If there are hubs, all changes are applied, so that the next digest takes little time.
        apply_through = state.last_change if self._source.hubs else through
        if state.tracked and apply_through is not None and state.applied < apply_through:
            while await self._recorder.arun(lambda journal: journal.apply_changes(apply_through)):
                pass  # each transaction is short, so that other writers do not wait long
        if current == self._saved and through is None:
            self._idle = known
            return

        def save(journal: Journal) -> None:
            journal.move_cursors(cursors, notices)
            if through is not None:
                journal.prune(through)

        await self._recorder.arun(save)
        self._saved = current

    def _warn_of_gaps(self, hubs: set[str]) -> None:
        """Warn, once for each hub, that it lacks changes that are no longer kept for it."""
        for hub in hubs - self._left_behind:
            logger.warning(
                "%s lacks changes that are no longer kept; it will have a gap, which "
                "Destinations fill by reading the documents",
                hub,
            )
        self._left_behind = hubs


@dataclass(eq=False)
class ChannelPush:
    """Feeds the hubs on one channel.

    Log messages use `items` for what waits in the journal while a hub does not accept it. The push
    of notices has the push of changes to the same hubs as `change_push`, and leaves it to that to
    warn when a hub fails.
    """

    topic: str
    feeds: Sequence[tuple[Hub, HubFeed]]
    websockets: HubConnections
    items: str = "changes"
    change_push: ChannelPush | None = None

    def __post_init__(self) -> None:
        self._failed: dict[str, float] = {}
        #: The remedy last reported for each hub.
        self._remedies: dict[str, str] = {}
        self._random = Random()

    @property
    def cursors(self) -> dict[str, int]:
        """The instant (µs) through which each hub has everything, keyed by the hub's URI."""
        return {hub.uri: feed.cursor for hub, feed in self.feeds}

    def failed_recently(self, hub: Hub) -> bool:
        failed = self._failed.get(hub.uri)
        now = asyncio.get_running_loop().time()
        return failed is not None and now < failed + 2 * _RETRY.most

    async def keep_feeding(self, hub: Hub, feed: HubFeed) -> None:
        """Feed one hub until cancelled, reconnecting after each failure."""
        nodes = NodeRotation(hub.nodes, self._random)
        while True:
            before, node = feed.cursor, nodes.current
            failure: RsnotifyError | None = None
            dialer = Dialer(self.websockets.memory)
            try:
                await _run_in_task(
                    feed_hub(hub.at(node), self.topic, feed, dialer, self.websockets)
                )
            except RsnotifyError as error:
                failure = error
            except Exception:  # a bug in this program must not stop feeding the hub for good
                logger.exception("feeding %s failed; retrying", node)
            feed.counters.failures += 1
            dialer.failed()
            progressed = feed.cursor > before
            rounds = 0 if progressed else nodes.rounds
            wait = nodes.select_next(
                asyncio.get_running_loop().time(),
                progressed=progressed,
                retry_after=(failure and failure.retry_after) or 0.0,
                everywhere=_concerns_every_node(failure),
            )
            if failure is not None and wait:
                self._report(hub, failure, rounds)
            elif failure is not None:
                is_new = rounds == 0 and self.change_push is None
                level = logging.WARNING if is_new else logging.INFO
                logger.log(level, "%s; sending %s to %s", failure, self.items, nodes.current)
            await asyncio.sleep(wait)

    def _report(self, hub: Hub, error: RsnotifyError, failures: int) -> None:
        """Log a warning for the first failure, and for a refusal that the user has to resolve.

        A hub may first be unreachable, and later refuse the Source. Repeated failures are logged at
        INFO.
        """
        self._failed[hub.uri] = asyncio.get_running_loop().time()
        remedy = error.remedy
        # Before notices fail for the second time, the push of changes to that hub fails.
        is_new = failures == (0 if self.change_push is None else 1)
        if is_new:
            self._remedies.pop(hub.uri, None)
        if remedy is not None and remedy != self._remedies.get(hub.uri):
            self._remedies[hub.uri] = remedy
            is_new = is_new or failures > 0
        if self.change_push is not None and self.change_push.failed_recently(hub):
            is_new = False
        level = logging.WARNING if is_new else logging.INFO
        logger.log(level, "%s; %s wait in the journal until it accepts them", error, self.items)


def _concerns_every_node(failure: RsnotifyError | None) -> bool:
    if failure is None or failure.remedy is not None:
        return failure is not None
    return isinstance(failure, HubFailure) and failure.everywhere


async def _run_in_task(feeding: Coroutine[None, None, None]) -> None:
    """Run a coroutine in a task. Raise CancelledError if it fails while it is being cancelled.

    Before Python 3.13, a task group in the coroutine that fails during the cancellation hides it.
    The calling task, which has no task group itself, still knows that it is being cancelled.
    """
    try:
        await asyncio.create_task(feeding)
    finally:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError


class NodeRotation:
    """Selects the next node when one fails, and waits when all have failed.

    Attributes:
        current: The node to feed now.
        rounds: The number of times in a row that all nodes have failed.
    """

    def __init__(self, nodes: Sequence[str], random: Random) -> None:
        self.current = nodes[0]
        self.rounds = 0
        self._nodes = nodes
        self._random = random
        self._order: Alternatives[str] = Alternatives()
        self._tried: set[str] = set()
        #: The earliest time at which each node may be tried again, as the node requested.
        self._not_before = dict.fromkeys(nodes, float("-inf"))

    def select_next(
        self, now: float, *, progressed: bool, retry_after: float = 0.0, everywhere: bool = False
    ) -> float:
        """Select the next node after a failure, and return the seconds to wait before feeding it.

        Args:
            now: The current time, in seconds.
            progressed: Whether the node accepted anything since it was selected.
            retry_after: The delay that the node requested, in seconds.
            everywhere: Whether every node would give the same answer.
        """
        if progressed:
            self.rounds = 0
            self._tried.clear()
        self._tried.add(self.current)
        self._order.failed(self.current)
        for node in self._nodes if everywhere else [self.current]:
            self._not_before[node] = now + min(retry_after, LONGEST_RETRY_AFTER)
        order = self._order.order(self._nodes)
        if not everywhere:
            for node in order:
                if node not in self._tried and self._not_before[node] <= now:
                    self.current = node
                    return 0.0
        self._tried.clear()
        self.rounds += 1
        due = now + _RETRY.delay(self.rounds, self._random)
        self.current = min(order, key=lambda node: max(due, self._not_before[node]))
        return max(due, self._not_before[self.current]) - now
