"""The open WebSockets and event streams of all nodes: lists them for an admin, and closes them.

The hub only publishes to a broker, and the broker's readers connect to the broker. The table
therefore names the brokers, but has no rows for their readers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rsnotify_hub.admin.reports import PagePart, RowOrder, merged_page, part_of
from rsnotify_hub.admin.schemas import (
    ConnectionInfo,
    ConnectionList,
    ConnectionOrder,
    ConnectionQuery,
    ConnectionRoles,
    ConnectionState,
)
from rsnotify_hub.live.connections import LiveConnection, LiveConnections, TopicRole
from rsnotify_hub.log.topic_log import TopicLogs
from rsnotify_hub.store.nodes import HubNodes, NodeCall

#: The reason in the close frame. The maximum length is 123 bytes.
CLOSED = "an administrator of the hub closed this connection"

_SHOWN_TOPICS = 10

CONNECTION_PART: NodeCall[ConnectionQuery, PagePart[ConnectionInfo]] = NodeCall(
    "admin.connections", ConnectionQuery, PagePart[ConnectionInfo]
)
DISCONNECT: NodeCall[str, bool | None] = NodeCall("admin.disconnect", str, bool | None)

_LIVE, _REPLAYING = ConnectionState.LIVE, ConnectionState.REPLAYING
_RANKS = {state: rank for rank, state in enumerate(ConnectionState)}
_ROLES = {
    (False, False): ConnectionRoles.NONE,
    (True, False): ConnectionRoles.SUBSCRIBER,
    (False, True): ConnectionRoles.PUBLISHER,
    (True, True): ConnectionRoles.BOTH,
}


def _roles(connection: LiveConnection) -> Sequence[TopicRole]:
    return () if connection.role is None else tuple(connection.role.topic_roles())


def _role(connection: LiveConnection) -> ConnectionRoles:
    role = connection.role
    return ConnectionRoles.NONE if role is None else _ROLES[role.receives(), role.publishes()]


def _state(connection: LiveConnection) -> ConnectionState:
    if connection.paused_at is not None and connection.is_slow(asyncio.get_running_loop().time()):
        return ConnectionState.SLOW
    role = connection.role
    return _REPLAYING if role is not None and role.replays() else _LIVE


ORDERS: dict[ConnectionOrder, RowOrder[LiveConnection]] = {
    ConnectionOrder.SINCE: RowOrder(
        lambda each: (each.client.since, each.client.id), tuple[datetime, str]
    ),
    ConnectionOrder.TROUBLE: RowOrder(
        lambda each: (_RANKS[_state(each)], each.client.since, each.client.id),
        tuple[int, datetime, str],
    ),
}


@dataclass(eq=False, repr=False)
class ConnectionTable:
    """The connections of a hub. `brokers` names the brokers that the hub publishes to."""

    connections: LiveConnections
    logs: TopicLogs
    brokers: tuple[str, ...]
    nodes: HubNodes

    def __post_init__(self) -> None:
        self.nodes.serve(CONNECTION_PART, self._part)
        self.nodes.serve(DISCONNECT, self._end_here)

    async def page(self, query: ConnectionQuery) -> ConnectionList:
        # The connections of a node that does not answer are left out.
        others = await self.nodes.ask_others(CONNECTION_PART, query)
        parts = [await self._part(query), *others]
        page = merged_page(parts, ORDERS[query.sort], query.limit)
        return ConnectionList(tuple(page.rows), page.total, page.next, self.brokers)

    async def _part(self, query: ConnectionQuery) -> PagePart[ConnectionInfo]:
        selected = (each for each in self.connections.all() if _is_selected(each, query))
        part = part_of(selected, ORDERS[query.sort], query)
        return part.converted(self._row(connection) for _, connection in part.rows)

    def _row(self, connection: LiveConnection) -> ConnectionInfo:
        client, roles = connection.client, _roles(connection)
        ends = [(each, self.logs.position(each.topic)) for each in roles]
        replayed = sum(each.remaining(end) for each, end in ends)
        waiting = connection.queue.frames if connection.queue else 0
        return ConnectionInfo(
            id=client.id,
            transport=connection.kind,
            role=_role(connection),
            state=_state(connection),
            address=client.address,
            agent=client.agent,
            since=client.since,
            topics=tuple(each.topic for each in roles[:_SHOWN_TOPICS]),
            topic_count=len(roles),
            lag_seconds=connection.stalled(asyncio.get_running_loop().time()),
            behind=waiting + replayed,
            unsent=connection.unsent,
            sent=sum(each.passed for each in roles if not each.publishes()),
            received=sum(each.passed for each in roles if each.publishes()),
        )

    async def end(self, id: str) -> bool:
        """Close a connection at any node. Return False if no node has it."""
        found: bool | None = await self.nodes.find(DISCONNECT, id)
        return found is not None

    async def _end_here(self, id: str) -> bool | None:
        return self.connections.end(id, CLOSED) or None


def _is_selected(connection: LiveConnection, query: ConnectionQuery) -> bool:
    if query.role is not None and query.role is not (role := _role(connection)):
        both = role is ConnectionRoles.BOTH and query.role is not ConnectionRoles.NONE
        if not both:
            return False
    if query.topic is None and not query.search:
        return True
    topics = [each.topic for each in _roles(connection)]
    if query.topic is not None and query.topic not in topics:
        return False
    client = connection.client
    texts = (client.id, client.address, client.agent, *topics)
    return any(query.search.lower() in text.lower() for text in texts)
