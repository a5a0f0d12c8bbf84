"""The admin operations that change the hub, without HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from msgspec import Struct

from rsnotify.errors import RsnotifyError
from rsnotify.format.datetimes import Instant
from rsnotify_hub.admin.reports import ConnectionTable, Reports
from rsnotify_hub.admin.schemas import (
    PayloadInfo,
    PayloadQuery,
    SubscriptionDetails,
    SubscriptionInfo,
)
from rsnotify_hub.admin.views import attempts, topic_id
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.store.nodes import NodeCall, NodeList

#: The reasons sent to a subscriber when an admin ends its subscription (`hub.reason`).
DROPPED = "an administrator of the hub ended this subscription"
TOPIC_DROPPED = "an administrator of the hub removed this topic"

#: Maximum number of bytes shown of a payload.
PAYLOAD_BYTES = 16 * 1024


class UnknownId(RsnotifyError):
    """No topic, subscription or connection has this id, or it has ended."""


class SubscriptionCommand(Struct, frozen=True, kw_only=True):
    """A change to one subscription.

    The action is `redeliver`, which delivers everything after `since` again if that is given,
    `suspend`, `resume` or `drop`.
    """

    action: str
    id: str
    since: Instant | None = None


class PayloadRequest(Struct, frozen=True):
    """A request for the payload of a subscription's attempt."""

    id: str
    attempt: PayloadQuery


class CommandOutcome(Struct, frozen=True):
    """The result of a command: the changed subscription, or None if it was dropped."""

    info: SubscriptionInfo | None


DETAILS: NodeCall[str, SubscriptionDetails | None] = NodeCall(
    "admin.details", str, SubscriptionDetails | None
)
COMMAND: NodeCall[SubscriptionCommand, CommandOutcome | None] = NodeCall(
    "admin.change", SubscriptionCommand, CommandOutcome | None
)
PAYLOAD: NodeCall[PayloadRequest, PayloadInfo | None] = NodeCall(
    "admin.payload", PayloadRequest, PayloadInfo | None
)
#: Drops all subscriptions of a topic.
DROP_ALL: NodeCall[str, None] = NodeCall("admin.drop-all", str, None)


@dataclass(eq=False, repr=False)
class AdminService:
    """Changes topics and subscriptions.

    `describe` returns the nodes of the hub, and `leave` hands this node's work over to the others.

    Each operation raises `UnknownId` if there is no such topic or subscription, and `StorageError`
    if the store fails. In both cases nothing has changed, except that `drop_topic` may be
    incomplete.
    """

    reports: Reports
    connections: ConnectionTable
    describe: Callable[[], NodeList]
    leave: Callable[[], Awaitable[None]]

    def __post_init__(self) -> None:
        self._nodes = self.reports.nodes
        self._nodes.serve(DETAILS, self._details_here)
        self._nodes.serve(PAYLOAD, self._payload_here)
        self._nodes.serve(COMMAND, self._run_here)
        self._nodes.serve(DROP_ALL, self._drop_all_here)

    async def nodes(self) -> NodeList:
        return self.describe()

    async def drain(self) -> None:
        """Hand this node's work over to the other nodes, unless none of them could do it."""
        rows = self.describe().rows
        if not any(row.alive and not row.draining for row in rows if not row.this):
            raise Refusal(Code.BAD_REQUEST, "no other node could do its work: just stop it")
        await self.leave()

    async def details(self, id: str) -> SubscriptionDetails:
        found = await self._nodes.find(DETAILS, id)
        if found is None:
            raise _no_subscription()
        return found

    async def _details_here(self, id: str) -> SubscriptionDetails | None:
        delivery = self.reports.callbacks.registry.get(id)
        if delivery is None:
            return None
        (row,) = await self.reports.describe([delivery])
        return SubscriptionDetails(
            subscription=row,
            callback=delivery.subscription.callback,
            attempts=attempts(delivery),
            since=self.reports.started,
        )

    async def payload(self, id: str, attempt: PayloadQuery) -> PayloadInfo:
        found = await self._nodes.find(PAYLOAD, PayloadRequest(id, attempt))
        if found is None:
            raise UnknownId("there is no such subscription, or it has newer attempts only")
        return found

    async def _payload_here(self, request: PayloadRequest) -> PayloadInfo | None:
        delivery = self.reports.callbacks.registry.get(request.id)
        if delivery is None:
            return None
        wanted = request.attempt
        found = [
            each
            for each in (*delivery.failed, *delivery.delivered)
            if wanted.after in (None, each.after) and wanted.through in (None, each.through)
        ]
        if not found:
            return None
        last = max(found, key=lambda each: each.at)
        body = await self.reports.callbacks.notifications.rebuild(delivery.subscription.topic, last)
        text = None if body is None else body[:PAYLOAD_BYTES].decode(errors="replace")
        return PayloadInfo(text=text, size=last.size)

    async def drop(self, id: str) -> None:
        await self._run(SubscriptionCommand(action="drop", id=id))

    async def change(self, action: str, id: str, since: Instant | None = None) -> SubscriptionInfo:
        """Run any action of `SubscriptionCommand` except `drop`."""
        command = SubscriptionCommand(action=action, id=id, since=since)
        info = (await self._run(command)).info
        if info is None:
            raise _no_subscription()
        return info

    async def _run(self, command: SubscriptionCommand) -> CommandOutcome:
        outcome = await self._nodes.find(COMMAND, command)
        if outcome is None:
            raise _no_subscription()
        return outcome

    async def _run_here(self, command: SubscriptionCommand) -> CommandOutcome | None:
        """Run a command if this node has the subscription. Otherwise return None."""
        id, callbacks = command.id, self.reports.callbacks
        match command.action:
            case "redeliver":
                found = await callbacks.redeliver(id, command.since)
            case "suspend":
                found = await callbacks.suspend(id)
            case "resume":
                found = await callbacks.resume(id)
            case "drop":
                return CommandOutcome(None) if await callbacks.drop(id, DROPPED) else None
            case _:
                raise Refusal(Code.BAD_REQUEST, f"this node cannot {command.action}")
        delivery = callbacks.registry.get(id) if found else None
        if delivery is None:
            return None
        (row,) = await self.reports.describe([delivery])
        return CommandOutcome(row)

    async def disconnect(self, id: str) -> None:
        """Close a connection. The client may connect again."""
        if not await self.connections.end(id):
            raise UnknownId("there is no such connection")

    async def drop_topic(self, id: str) -> None:
        """Delete a topic's log and end its subscriptions. Later publications begin a new log."""
        topics = (state.topic for state in self.reports.logs.states())
        topic = next((each for each in topics if topic_id(each) == id), None)
        if topic is None:
            raise UnknownId("there is no such topic")
        await self._nodes.ask_all(DROP_ALL, topic)
        await self.reports.logs.delete(topic)

    async def _drop_all_here(self, topic: str) -> None:
        for each in self.reports.callbacks.registry.all():
            if each.subscription.topic == topic:
                await self.reports.callbacks.drop(each.id, TOPIC_DROPPED)


def _no_subscription() -> UnknownId:
    return UnknownId("there is no such subscription")
