"""The operations of the admin API: one table that defines the routes, the client and OpenAPI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from msgspec import Struct

from rsnotify_hub.admin import schemas
from rsnotify_hub.admin.connection_operations import ConnectionOperations
from rsnotify_hub.admin.hub_operations import ChangeOperations, ReadOperations
from rsnotify_hub.refusals import parse_since
from rsnotify_hub.store.nodes import NodeList

#: The path prefix of the API.
PREFIX = "/admin"
#: The regular expression for an id.
ID = "[0-9a-f]{32}"


class AdminOperations(Struct, frozen=True):
    """The implementations of the operations."""

    read: ReadOperations
    change: ChangeOperations
    connections: ConnectionOperations


class OperationRequest(Struct, frozen=True):
    """A parsed request. `query` and `body` are instances of the operation's schemas."""

    id: str
    query: Any
    body: Any


class Operation(Struct, frozen=True, kw_only=True):
    """An operation of the API. `path` does not include the prefix.

    `query`, `body` and `answer` are schemas. A request may always omit the body.
    """

    name: str
    method: str
    path: str
    summary: str
    run: Callable[[AdminOperations, OperationRequest], Awaitable[Struct | None]]
    query: type[Struct] = schemas.NoParameters
    body: type[Struct] | None = None
    answer: type[Struct] | None = None


_get = partial(Operation, method="GET")
_post = partial(Operation, method="POST")
_delete = partial(Operation, method="DELETE")

OPERATIONS = (
    _get(
        name="status",
        path="/status",
        summary="The state of the hub",
        run=lambda admin, request: admin.read.status(),
        answer=schemas.StatusInfo,
    ),
    _get(
        name="history",
        path="/history",
        summary="The activity of the hub, by minutes for a day and by quarter-hours for a week",
        run=lambda admin, request: admin.read.history(),
        answer=schemas.HistoryInfo,
    ),
    _get(
        name="nodes",
        path="/nodes",
        summary="The nodes of the hub, the owners of the shards, and the NATS servers",
        run=lambda admin, request: admin.read.list_nodes(),
        answer=NodeList,
    ),
    _post(
        name="drain",
        path="/drain",
        summary="Hand the work of this node over to the others, and close its WebSockets",
        run=lambda admin, request: admin.change.drain(),
    ),
    _get(
        name="topics",
        path="/topics",
        summary="The topics and their subscribers",
        run=lambda admin, request: admin.read.topics(request.query),
        query=schemas.TopicQuery,
        answer=schemas.TopicList,
    ),
    _delete(
        name="dropTopic",
        path="/topics/{id}",
        summary="Delete the log of a topic, and end its WebSub subscriptions",
        run=lambda admin, request: admin.change.drop_topic(request.id),
    ),
    _get(
        name="subscriptions",
        path="/subscriptions",
        summary="The WebSub subscriptions and the state of their deliveries",
        run=lambda admin, request: admin.read.subscriptions(request.query),
        query=schemas.SubscriptionQuery,
        answer=schemas.SubscriptionList,
    ),
    _get(
        name="subscription",
        path="/subscriptions/{id}",
        summary="A subscription, with its callback and its last delivery attempts",
        run=lambda admin, request: admin.read.details(request.id),
        answer=schemas.SubscriptionDetails,
    ),
    _get(
        name="payload",
        path="/subscriptions/{id}/payload",
        summary="The beginning of the payload of one of its last delivery attempts",
        run=lambda admin, request: admin.read.payload(request.id, request.query),
        query=schemas.PayloadQuery,
        answer=schemas.PayloadInfo,
    ),
    _delete(
        name="drop",
        path="/subscriptions/{id}",
        summary="End a subscription, and send its callback the reason",
        run=lambda admin, request: admin.change.drop(request.id),
    ),
    _post(
        name="redeliver",
        path="/subscriptions/{id}/redeliver",
        summary="Deliver the pending fragments now, or redeliver all fragments after an instant",
        run=lambda admin, request: admin.change.change(
            "redeliver", request.id, parse_since(request.body.since)
        ),
        body=schemas.Redelivery,
        answer=schemas.SubscriptionInfo,
    ),
    _post(
        name="suspend",
        path="/subscriptions/{id}/suspend",
        summary="Suspend the deliveries to a subscription, which keeps its position",
        run=lambda admin, request: admin.change.change("suspend", request.id),
        answer=schemas.SubscriptionInfo,
    ),
    _post(
        name="resume",
        path="/subscriptions/{id}/resume",
        summary="Resume the deliveries to a suspended subscription",
        run=lambda admin, request: admin.change.change("resume", request.id),
        answer=schemas.SubscriptionInfo,
    ),
    _get(
        name="connections",
        path="/connections",
        summary="The open WebSockets and event streams",
        run=lambda admin, request: admin.connections.list(request.query),
        query=schemas.ConnectionQuery,
        answer=schemas.ConnectionList,
    ),
    _delete(
        name="disconnect",
        path="/connections/{id}",
        summary="Close a connection; the client may reconnect",
        run=lambda admin, request: admin.connections.disconnect(request.id),
    ),
    _get(
        name="failures",
        path="/failures",
        summary="The last deliveries that failed, newest first",
        run=lambda admin, request: admin.read.failures(),
        answer=schemas.FailureList,
    ),
    _get(
        name="deadLetters",
        path="/dead-letters",
        summary="Fragments that are not delivered until their topic changes",
        run=lambda admin, request: admin.read.dead_letters(request.query),
        query=schemas.PageQuery,
        answer=schemas.DeadLetterList,
    ),
)
