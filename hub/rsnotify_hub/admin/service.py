"""The operations of an admin that change the hub, without HTTP."""

from __future__ import annotations

from rsnotify.errors import RsnotifyError
from rsnotify_hub.admin.reports import Reports
from rsnotify_hub.admin.schemas import Redelivery, SubscriptionInfo
from rsnotify_hub.admin.views import topic_id
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.refusals import parse_since
from rsnotify_hub.websub.channel import WebSubChannel

#: The reasons that a subscriber receives when an admin ends its subscription (`hub.reason`).
DROPPED = "an administrator of the hub ended this subscription"
TOPIC_DROPPED = "an administrator of the hub removed this topic"


class UnknownId(RsnotifyError):
    """There is no topic or subscription with this id, or it has ended."""


class AdminService:
    """Changes topics and subscriptions.

    Each operation raises `UnknownId` if there is no such topic or subscription, and `StorageError`
    if the store fails; nothing has changed then, except that `drop_topic` may be incomplete.
    """

    def __init__(self, topics: TopicLogs, callbacks: WebSubChannel, reports: Reports) -> None:
        self.reports = reports
        self._topics = topics
        self._callbacks = callbacks

    async def redeliver(self, id: str, request: Redelivery) -> SubscriptionInfo:
        found = await self._callbacks.redeliver(id, parse_since(request.since))
        return await self._info(id, found)

    async def suspend(self, id: str) -> SubscriptionInfo:
        return await self._info(id, await self._callbacks.suspend(id))

    async def resume(self, id: str) -> SubscriptionInfo:
        return await self._info(id, await self._callbacks.resume(id))

    async def drop(self, id: str) -> None:
        if not await self._callbacks.drop(id, DROPPED):
            raise _no_subscription()

    async def drop_topic(self, id: str) -> None:
        """Delete a topic's log, and end its subscriptions. Publishing begins a new log."""
        topics = (state.topic for state in self._topics.states())
        topic = next((each for each in topics if topic_id(each) == id), None)
        if topic is None:
            raise UnknownId("there is no such topic")
        for each in self._callbacks.registry.all():
            if each.subscription.topic == topic:
                await self._callbacks.drop(each.id, TOPIC_DROPPED)
        await self._topics.delete(topic)

    async def _info(self, id: str, found: bool) -> SubscriptionInfo:
        delivery = self._callbacks.registry.get(id) if found else None
        if delivery is None:
            raise _no_subscription()
        (row,) = await self.reports.describe([delivery])
        return row


def _no_subscription() -> UnknownId:
    return UnknownId("there is no such subscription")
