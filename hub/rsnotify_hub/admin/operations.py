"""The operations of the admin API: one table that defines the routes, the client and OpenAPI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from msgspec import Struct

from rsnotify_hub.admin import schemas
from rsnotify_hub.admin.service import AdminService
from rsnotify_hub.refusals import parse_since
from rsnotify_hub.store.nodes import NodeList

#: The path prefix of the API.
PREFIX = "/admin"
#: The pattern of an id.
ID = "[0-9a-f]{32}"


class OperationRequest(Struct, frozen=True):
    """A parsed request. `query` and `body` are instances of the operation's schemas."""

    id: str
    query: Any
    body: Any


class Operation(Struct, frozen=True, kw_only=True):
    """One operation of the API, whose path is below the prefix.

    `query`, `body` and `answer` are schemas. A body may always be omitted.
    """

    name: str
    method: str
    path: str
    summary: str
    run: Callable[[AdminService, OperationRequest], Awaitable[Struct | None]]
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
        summary="The hub as a whole",
        run=lambda service, request: service.reports.status(),
        answer=schemas.StatusInfo,
    ),
    _get(
        name="history",
        path="/history",
        summary="What the hub did in each minute of a day, and each quarter of an hour of a week",
        run=lambda service, request: service.reports.minutes(),
        answer=schemas.HistoryInfo,
    ),
    _get(
        name="nodes",
        path="/nodes",
        summary="The nodes of the hub, who owns the shards, and the NATS servers",
        run=lambda service, request: service.nodes(),
        answer=NodeList,
    ),
    _post(
        name="drain",
        path="/drain",
        summary="Give the work of this node to the others, and close its WebSockets",
        run=lambda service, request: service.drain(),
    ),
    _get(
        name="topics",
        path="/topics",
        summary="The topics and their subscribers",
        run=lambda service, request: service.reports.topics(request.query),
        query=schemas.TopicQuery,
        answer=schemas.TopicList,
    ),
    _delete(
        name="dropTopic",
        path="/topics/{id}",
        summary="Delete a topic's log, and end its WebSub subscriptions",
        run=lambda service, request: service.drop_topic(request.id),
    ),
    _get(
        name="subscriptions",
        path="/subscriptions",
        summary="The WebSub subscriptions and the state of their deliveries",
        run=lambda service, request: service.reports.subscriptions(request.query),
        query=schemas.SubscriptionQuery,
        answer=schemas.SubscriptionList,
    ),
    _get(
        name="subscription",
        path="/subscriptions/{id}",
        summary="One subscription, with its callback and its last attempts",
        run=lambda service, request: service.details(request.id),
        answer=schemas.SubscriptionDetails,
    ),
    _get(
        name="payload",
        path="/subscriptions/{id}/payload",
        summary="The beginning of what one of its last attempts has sent",
        run=lambda service, request: service.payload(request.id, request.query),
        query=schemas.PayloadQuery,
        answer=schemas.PayloadInfo,
    ),
    _delete(
        name="drop",
        path="/subscriptions/{id}",
        summary="End a subscription, and send its callback the reason",
        run=lambda service, request: service.drop(request.id),
    ),
    _post(
        name="redeliver",
        path="/subscriptions/{id}/redeliver",
        summary="Deliver pending fragments now, or all after an instant again",
        run=lambda service, request: service.change(
            "redeliver", request.id, parse_since(request.body.since)
        ),
        body=schemas.Redelivery,
        answer=schemas.SubscriptionInfo,
    ),
    _post(
        name="suspend",
        path="/subscriptions/{id}/suspend",
        summary="Suspend the deliveries of a subscription, which keeps its position",
        run=lambda service, request: service.change("suspend", request.id),
        answer=schemas.SubscriptionInfo,
    ),
    _post(
        name="resume",
        path="/subscriptions/{id}/resume",
        summary="Continue the deliveries of a suspended subscription",
        run=lambda service, request: service.change("resume", request.id),
        answer=schemas.SubscriptionInfo,
    ),
    _get(
        name="connections",
        path="/connections",
        summary="The open WebSockets and event streams",
        run=lambda service, request: service.connections.page(request.query),
        query=schemas.ConnectionQuery,
        answer=schemas.ConnectionList,
    ),
    _delete(
        name="disconnect",
        path="/connections/{id}",
        summary="Close a connection; its client may connect again",
        run=lambda service, request: service.disconnect(request.id),
    ),
    _get(
        name="failures",
        path="/failures",
        summary="The last deliveries that failed, newest first",
        run=lambda service, request: service.reports.failures(),
        answer=schemas.FailureList,
    ),
    _get(
        name="deadLetters",
        path="/dead-letters",
        summary="Fragments that are not delivered until their topic changes",
        run=lambda service, request: service.reports.dead_letters(request.query),
        query=schemas.PageQuery,
        answer=schemas.DeadLetterList,
    ),
)
