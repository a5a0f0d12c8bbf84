"""What an admin may do, without HTTP."""

from __future__ import annotations

from rsnotify.errors import RsnotifyError
from rsnotify.format.datetimes import Instant, parse_datetime
from rsnotify_hub.admin import schemas as shapes
from rsnotify_hub.admin.questions import Redelivery
from rsnotify_hub.admin.reports import Reports
from rsnotify_hub.admin.views import topic_id
from rsnotify_hub.log.topic_logs import TopicLogs
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.websub.channel import WebSubChannel

#: What a subscriber is told whose subscription an admin ends (`hub.reason`).
DROPPED = "an administrator of the hub ended this subscription"
TOPIC_DROPPED = "an administrator of the hub removed this topic"


class UnknownId(RsnotifyError):
    """There is no such topic or subscription, or it has ended."""


class AdminService:
    """Acts on the hub.

    Args:
        topics: The logs.
        callbacks: The WebSub subscriptions.
        reports: Looks into the hub.

    Attributes:
        reports: The same.
    """

    def __init__(self, topics: TopicLogs, callbacks: WebSubChannel, reports: Reports) -> None:
        self.reports = reports
        self._topics = topics
        self._callbacks = callbacks

    async def redeliver(self, id: str, what: Redelivery) -> shapes.SubscriptionInfo:
        """Deliver now what waits, or again from an instant on.

        Raises:
            NotHere: There is no such subscription.
            Refusal: `since` is not an instant.
            StorageError: It could not be noted, and nothing has changed.
        """
        done = await self._callbacks.redeliver(id, _instant(what.since))
        return await self._after(id, done)

    async def suspend(self, id: str) -> shapes.SubscriptionInfo:
        """Hold back deliveries until `resume`.

        Raises:
            NotHere: There is no such subscription.
            StorageError: It could not be noted, and nothing has changed.
        """
        return await self._after(id, await self._callbacks.suspend(id))

    async def resume(self, id: str) -> shapes.SubscriptionInfo:
        """Deliver again after `suspend`, from where it stopped.

        Raises:
            NotHere: There is no such subscription.
            StorageError: It could not be noted, and nothing has changed.
        """
        return await self._after(id, await self._callbacks.resume(id))

    async def drop(self, id: str) -> None:
        """End a subscription; its callback is told why.

        Raises:
            NotHere: There is no such subscription.
            StorageError: It could not be forgotten, and goes on.
        """
        if not await self._callbacks.drop(id, DROPPED):
            raise _no_subscription()

    async def drop_topic(self, id: str) -> None:
        """Forget a topic's log, and end its subscriptions. Who publishes again begins anew.

        Raises:
            NotHere: There is no such topic.
            StorageError: Not all could be forgotten; ask again.
        """
        topics = (state.topic for state in self._topics.states())
        topic = next((each for each in topics if topic_id(each) == id), None)
        if topic is None:
            raise UnknownId("there is no such topic")
        for each in self._callbacks.all():
            if each.subscription.topic == topic:
                await self._callbacks.drop(each.id, TOPIC_DROPPED)
        await self._topics.delete(topic)

    async def _after(self, id: str, done: bool) -> shapes.SubscriptionInfo:
        """Tell of a subscription after something was done to it."""
        delivery = self._callbacks.get(id) if done else None
        if delivery is None:
            raise _no_subscription()
        (row,) = await self.reports.tell([delivery])
        return row


def _no_subscription() -> UnknownId:
    return UnknownId("there is no such subscription")


def _instant(text: str | None) -> Instant | None:
    try:
        return None if text is None else parse_datetime(text)
    except ValueError as error:
        raise Refusal(Code.BAD_REQUEST, f"since: {error}") from None
