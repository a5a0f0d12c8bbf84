"""The admin operations that change topics and subscriptions, and drain a node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from msgspec import Struct

from rsnotify.format.datetimes import Instant
from rsnotify_hub.admin.read_operations import ReadOperations, UnknownId, unknown_subscription
from rsnotify_hub.admin.schema_conversion import topic_id
from rsnotify_hub.admin.schemas import SubscriptionInfo
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.store.nodes import NodeCall

#: The reasons sent to a subscriber when an admin ends its subscription (`hub.reason`).
DROPPED = "an administrator of the hub ended this subscription"
TOPIC_DROPPED = "an administrator of the hub removed this topic"


class SubscriptionCommand(Struct, frozen=True, kw_only=True):
    """A change to one subscription: `redeliver`, `suspend`, `resume` or `drop`.

    With `since`, the action `redeliver` repeats all deliveries after that instant.
    """

    action: str
    id: str
    since: Instant | None = None


class CommandOutcome(Struct, frozen=True):
    """The result of a command: the changed subscription, or None if it was dropped."""

    info: SubscriptionInfo | None


COMMAND: NodeCall[SubscriptionCommand, CommandOutcome | None] = NodeCall(
    "admin.change", SubscriptionCommand, CommandOutcome | None
)
#: Drops all subscriptions of a topic.
DROP_ALL: NodeCall[str, None] = NodeCall("admin.drop-all", str, None)


@dataclass(eq=False, repr=False)
class ChangeOperations:
    """Changes topics and subscriptions, on all nodes of the hub, and drains this node.

    `leave` hands this node's work over to the other nodes.

    Each operation raises `UnknownId` if there is no such topic or subscription, and `StorageError`
    if the store fails. In both cases nothing has changed, except that `drop_topic` may be
    incomplete.
    """

    reads: ReadOperations
    leave: Callable[[], Awaitable[None]]

    def __post_init__(self) -> None:
        self.reads.nodes.serve(COMMAND, self._run)
        self.reads.nodes.serve(DROP_ALL, self._drop_all)

    async def drain(self) -> None:
        """Hand this node's work over to the other nodes. Refuse this if no other node can work."""
        rows = self.reads.describe_nodes().rows
        if not any(row.alive and not row.draining for row in rows if not row.this):
            raise Refusal(Code.BAD_REQUEST, "no other node can take over; just stop this one")
        await self.leave()

    async def drop(self, id: str) -> None:
        await self._find_and_run(SubscriptionCommand(action="drop", id=id))

    async def change(self, action: str, id: str, since: Instant | None = None) -> SubscriptionInfo:
        """Run any action of `SubscriptionCommand` except `drop`."""
        command = SubscriptionCommand(action=action, id=id, since=since)
        info = (await self._find_and_run(command)).info
        if info is None:
            raise unknown_subscription()
        return info

    async def _find_and_run(self, command: SubscriptionCommand) -> CommandOutcome:
        outcome = await self.reads.nodes.find(COMMAND, command)
        if outcome is None:
            raise unknown_subscription()
        return outcome

    async def _run(self, command: SubscriptionCommand) -> CommandOutcome | None:
        """Run a command. Return None if this node does not have the subscription."""
        id, callbacks = command.id, self.reads.callbacks
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
        (row,) = await self.reads.describe([delivery])
        return CommandOutcome(row)

    async def drop_topic(self, id: str) -> None:
        """Delete a topic's log and end its subscriptions. Later publications begin a new log."""
        topics = (state.topic for state in self.reads.logs.states())
        topic = next((each for each in topics if topic_id(each) == id), None)
        if topic is None:
            raise UnknownId("there is no such topic")
        await self.reads.nodes.ask_all(DROP_ALL, topic)
        await self.reads.logs.delete(topic)

    async def _drop_all(self, topic: str) -> None:
        for each in self.reads.callbacks.registry.all():
            if each.subscription.topic == topic:
                await self.reads.callbacks.drop(each.id, TOPIC_DROPPED)
