"""The admin operations on open WebSockets and event streams."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rsnotify_hub.admin.hub_operations import (
    NodeRows,
    RowOrder,
    UnknownId,
    merge_rows,
    rows_of_node,
)
from rsnotify_hub.admin.schemas import (
    ClientRole,
    ConnectionInfo,
    ConnectionList,
    ConnectionOrder,
    ConnectionQuery,
    ConnectionState,
)
from rsnotify_hub.live.connections import LiveConnection, LiveConnections, TopicRole
from rsnotify_hub.store.nodes import HubNodes, NodeCall
from rsnotify_hub.topic_log import TopicLogs

#: The reason in the close frame, of at most 123 bytes.
CLOSE_REASON = "an administrator of the hub closed this connection"

#: Maximum number of topics to return of each connection.
_MAX_TOPICS = 10

NODE_CONNECTIONS: NodeCall[ConnectionQuery, NodeRows[ConnectionInfo]] = NodeCall(
    "admin.connections", ConnectionQuery, NodeRows[ConnectionInfo]
)
DISCONNECT: NodeCall[str, bool | None] = NodeCall("admin.disconnect", str, bool | None)

_RANKS = {state: rank for rank, state in enumerate(ConnectionState)}
_ROLES = {
    (False, False): ClientRole.NONE,
    (True, False): ClientRole.SUBSCRIBER,
    (False, True): ClientRole.PUBLISHER,
    (True, True): ClientRole.BOTH,
}


def _roles(connection: LiveConnection) -> Sequence[TopicRole]:
    return () if connection.role is None else tuple(connection.role.topic_roles())


def _role_of(connection: LiveConnection) -> ClientRole:
    role = connection.role
    return ClientRole.NONE if role is None else _ROLES[role.receives(), role.publishes()]


def _state_of(connection: LiveConnection) -> ConnectionState:
    if connection.paused_at is not None and connection.is_slow(asyncio.get_running_loop().time()):
        return ConnectionState.SLOW
    role = connection.role
    replays = role is not None and role.replays()
    return ConnectionState.REPLAYING if replays else ConnectionState.LIVE


CONNECTION_ORDERS: dict[ConnectionOrder, RowOrder[LiveConnection]] = {
    ConnectionOrder.SINCE: RowOrder(
        lambda each: (each.client.since, each.client.id), tuple[datetime, str]
    ),
    ConnectionOrder.TROUBLE: RowOrder(
        lambda each: (_RANKS[_state_of(each)], each.client.since, each.client.id),
        tuple[int, datetime, str],
    ),
}


@dataclass(eq=False, repr=False)
class ConnectionOperations:
    """Lists and closes the WebSockets and event streams of all nodes.

    `brokers` are the brokers that the hub publishes to. Their readers connect to the broker, so the
    hub does not know these connections.
    """

    connections: LiveConnections
    logs: TopicLogs
    brokers: tuple[str, ...]
    nodes: HubNodes

    def __post_init__(self) -> None:
        self.nodes.serve(NODE_CONNECTIONS, self._rows)
        self.nodes.serve(DISCONNECT, self._disconnect)

    async def list(self, query: ConnectionQuery) -> ConnectionList:
        """Return a page of connections, without those of nodes that do not answer."""
        others = await self.nodes.ask_others(NODE_CONNECTIONS, query)
        rows = [await self._rows(query), *others]
        page = merge_rows(rows, CONNECTION_ORDERS[query.sort], query.limit)
        return ConnectionList(tuple(page.rows), page.total, page.next, self.brokers)

    async def _rows(self, query: ConnectionQuery) -> NodeRows[ConnectionInfo]:
        matching = (each for each in self.connections.all() if _matches(each, query))
        own = rows_of_node(matching, CONNECTION_ORDERS[query.sort], query)
        return own.with_rows(self._info(connection) for _, connection in own.rows)

    def _info(self, connection: LiveConnection) -> ConnectionInfo:
        client, roles = connection.client, _roles(connection)
        ends = [(each, self.logs.position(each.topic)) for each in roles]
        replayed = sum(each.remaining(end) for each, end in ends)
        waiting = connection.queue.frames if connection.queue else 0
        return ConnectionInfo(
            id=client.id,
            transport=connection.kind,
            role=_role_of(connection),
            state=_state_of(connection),
            address=client.address,
            agent=client.agent,
            since=client.since,
            topics=tuple(each.topic for each in roles[:_MAX_TOPICS]),
            topic_count=len(roles),
            lag_seconds=connection.stalled(asyncio.get_running_loop().time()),
            behind=waiting + replayed,
            unsent=connection.unsent,
            sent=sum(each.passed for each in roles if not each.publishes()),
            received=sum(each.passed for each in roles if each.publishes()),
        )

    async def disconnect(self, id: str) -> None:
        """Close a connection, on whichever node it is. The client may reconnect."""
        if await self.nodes.find(DISCONNECT, id) is None:
            raise UnknownId("there is no such connection")

    async def _disconnect(self, id: str) -> bool | None:
        return self.connections.end(id, CLOSE_REASON) or None


def _matches(connection: LiveConnection, query: ConnectionQuery) -> bool:
    if query.role is not None and query.role is not (role := _role_of(connection)):
        both = role is ClientRole.BOTH and query.role is not ClientRole.NONE
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
