"""The operations of the admin API: the one table that routes, answers and OpenAPI come from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from rsnotify_hub.admin import questions
from rsnotify_hub.admin import schemas as shapes
from rsnotify_hub.admin.service import AdminService

#: Where the API is.
PREFIX = "/admin"
#: What an id looks like.
ID = "[0-9a-f]{32}"


class OperationRequest(Struct, frozen=True):
    """What a request asks for.

    Args:
        id: The topic or subscription that its path names, if it does.
        query: An instance of the operation's `query`.
        body: An instance of the operation's `body`, where it has one.
    """

    id: str
    query: Any
    body: Any


class Operation(Struct, frozen=True, kw_only=True):
    """One operation.

    Args:
        name: What it is called, in OpenAPI and in the command line.
        method: The HTTP method.
        path: The path below the prefix.
        summary: What it does, in a line.
        run: Does it.
        query: The shape of its query.
        body: The shape of its body; None when it takes none. A body may always be left out.
        answer: The shape of its answer; None when it has none.
    """

    name: str
    method: str
    path: str
    summary: str
    run: Callable[[AdminService, OperationRequest], Awaitable[Struct | None]]
    query: type[Struct] = questions.NoParameters
    body: type[Struct] | None = None
    answer: type[Struct] | None = None


OPERATIONS = (
    Operation(
        name="status",
        method="GET",
        path="/status",
        summary="The hub as a whole",
        run=lambda office, asked: office.reports.status(),
        answer=shapes.StatusInfo,
    ),
    Operation(
        name="topics",
        method="GET",
        path="/topics",
        summary="The topics, and who listens to them",
        run=lambda office, asked: office.reports.topics(asked.query),
        query=questions.TopicQuery,
        answer=shapes.TopicList,
    ),
    Operation(
        name="dropTopic",
        method="DELETE",
        path="/topics/{id}",
        summary="Forget a topic's log, and end its WebSub subscriptions",
        run=lambda office, asked: office.drop_topic(asked.id),
    ),
    Operation(
        name="subscriptions",
        method="GET",
        path="/subscriptions",
        summary="The WebSub subscriptions, and how their deliveries go",
        run=lambda office, asked: office.reports.subscriptions(asked.query),
        query=questions.SubscriptionQuery,
        answer=shapes.SubscriptionList,
    ),
    Operation(
        name="drop",
        method="DELETE",
        path="/subscriptions/{id}",
        summary="End a subscription, and tell its callback why",
        run=lambda office, asked: office.drop(asked.id),
    ),
    Operation(
        name="redeliver",
        method="POST",
        path="/subscriptions/{id}/redeliver",
        summary="Deliver now what waits, or again from an instant on",
        run=lambda office, asked: office.redeliver(asked.id, asked.body),
        body=questions.Redelivery,
        answer=shapes.SubscriptionInfo,
    ),
    Operation(
        name="suspend",
        method="POST",
        path="/subscriptions/{id}/suspend",
        summary="Hold back the deliveries of a subscription; its place in the log stays",
        run=lambda office, asked: office.suspend(asked.id),
        answer=shapes.SubscriptionInfo,
    ),
    Operation(
        name="resume",
        method="POST",
        path="/subscriptions/{id}/resume",
        summary="Deliver again to a suspended subscription, from where it stopped",
        run=lambda office, asked: office.resume(asked.id),
        answer=shapes.SubscriptionInfo,
    ),
    Operation(
        name="failures",
        method="GET",
        path="/failures",
        summary="The last deliveries that failed, newest first",
        run=lambda office, asked: office.reports.failures(),
        answer=shapes.FailureList,
    ),
    Operation(
        name="deadLetters",
        method="GET",
        path="/dead-letters",
        summary="What is not delivered any more until its topic changes",
        run=lambda office, asked: office.reports.dead_letters(asked.query),
        query=questions.PageQuery,
        answer=shapes.DeadLetterList,
    ),
)
