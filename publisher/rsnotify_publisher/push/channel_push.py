"""One channel of a Source: each hub is fed in a task of its own, so that none waits for another.

A hub of several nodes is fed at one of them, and at the next when that fails (`node_rotation`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from random import Random

from rsnotify.errors import RsnotifyError
from rsnotify.runtime.dialing import Dialer
from rsnotify.sync.retry import Retry
from rsnotify_publisher.hubs import Hub, HubFailure
from rsnotify_publisher.push.hub_feed import HubFeed
from rsnotify_publisher.push.node_rotation import NodeRotation
from rsnotify_publisher.push.transports import HubConnections, feed_hub

_log = logging.getLogger("rsnotify.publisher")
_RETRY = Retry(first=0.1, most=30.0)


@dataclass(eq=False)
class ChannelPush:
    """Feeds the hubs on one channel until it is cancelled.

    It shares `websockets` with other channels. `what` names what waits in the journal while a hub
    is away, for messages. The push on the other channel, `beside` this one, feeds the same hubs,
    and warns when a hub is away.
    """

    topic: str
    feeds: Sequence[tuple[Hub, HubFeed]]
    websockets: HubConnections = field(default_factory=HubConnections)
    what: str = "changes"
    beside: ChannelPush | None = None

    def __post_init__(self) -> None:
        self._failed: dict[str, float] = {}
        #: The last remedy that was reported, by hub.
        self._remedies: dict[str, str] = {}
        self._random = Random()

    @property
    def cursors(self) -> dict[str, int]:
        """Through which instant (µs) each hub, by its URI, has everything."""
        return {hub.uri: feed.cursor for hub, feed in self.feeds}

    def failed_recently(self, hub: Hub) -> bool:
        failed = self._failed.get(hub.uri)
        now = asyncio.get_running_loop().time()
        return failed is not None and now < failed + 2 * _RETRY.most

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for hub, feed in self.feeds:
                tasks.create_task(self._keep_feeding(hub, feed))

    async def _keep_feeding(self, hub: Hub, feed: HubFeed) -> None:
        nodes = NodeRotation(hub.nodes, _RETRY, self._random)
        while True:
            before, node = feed.cursor, nodes.current
            failure: RsnotifyError | None = None
            dialer = Dialer(self.websockets.memory)
            try:
                await _in_a_task(feed_hub(hub.at(node), self.topic, feed, dialer, self.websockets))
            except RsnotifyError as error:
                failure = error
            except Exception:  # an error of our own must not end the feeding of a hub for good
                _log.exception("feeding %s failed; it is tried again", node)
            dialer.failed()
            progressed = feed.cursor > before
            rounds = 0 if progressed else nodes.rounds
            wait = nodes.failed(
                asyncio.get_running_loop().time(),
                progressed=progressed,
                retry_after=(failure and failure.retry_after) or 0.0,
                everywhere=_is_of_every_node(failure),
            )
            if failure is not None and wait:
                self._report(hub, failure, rounds)
            elif failure is not None:
                is_new = rounds == 0 and self.beside is None
                level = logging.WARNING if is_new else logging.INFO
                _log.log(level, "%s; %s go to %s", failure, self.what, nodes.current)
            await asyncio.sleep(wait)

    def _report(self, hub: Hub, error: RsnotifyError, failures: int) -> None:
        """Log a warning for the first failure, and for a refusal that the user has to resolve.

        A hub may be away first and refuse the Source when it is back. What repeats is only INFO.
        """
        self._failed[hub.uri] = asyncio.get_running_loop().time()
        remedy = error.remedy
        is_new = failures == 0
        if self.beside is not None:  # the other channel has failed before this one fails again
            is_new = failures == 1
        if is_new:
            self._remedies.pop(hub.uri, None)
        if remedy is not None and remedy != self._remedies.get(hub.uri):
            self._remedies[hub.uri] = remedy
            is_new = is_new or failures > 0
        if self.beside is not None and self.beside.failed_recently(hub):
            is_new = False
        level = logging.WARNING if is_new else logging.INFO
        _log.log(level, "%s; %s wait in the journal until it accepts them", error, self.what)


def _is_of_every_node(failure: RsnotifyError | None) -> bool:
    if failure is None or failure.remedy is not None:
        return failure is not None
    return isinstance(failure, HubFailure) and failure.everywhere


async def _in_a_task(feeding: Coroutine[None, None, None]) -> None:
    """Run a coroutine; end as cancelled if it fails at the moment of being cancelled.

    Before Python 3.13 a task group inside it that fails then hides that it was cancelled. The task
    around it still knows: it has no group, so it is not being cancelled for any other reason.
    """
    try:
        await asyncio.create_task(feeding)
    finally:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError
