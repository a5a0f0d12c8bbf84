"""Intent verification (WebSub §5.3): nobody can subscribe a callback that is not theirs.

Theory of operation. Each request gets its own random challenge, which exists only in the task that
verifies the request. The hub verifies the requests for a topic and callback one at a time. While it
verifies one, it keeps only the newest of the others. The last request therefore wins, and a
stranger's request, which is never confirmed, cannot block the subscriber's own. Quotas limit the
subscriptions, and the requests that are being verified.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from rsnotify.errors import StorageError
from rsnotify.format.datetimes import Instant
from rsnotify.runtime.tasks import cancel
from rsnotify_hub.access.client_addresses import client_network, is_loopback
from rsnotify_hub.config.configuration import WebSubConfig
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.store.interface import NotOwner
from rsnotify_hub.store.nodes import HubNodes, NodeCall
from rsnotify_hub.topic_log import TopicLogs
from rsnotify_hub.urls import authority_of, host_of
from rsnotify_hub.websub.forms import SubscriptionRequest, denial_url, verification_url
from rsnotify_hub.websub.intent_requests import IntentRequests
from rsnotify_hub.websub.registry import SubscriptionRegistry
from rsnotify_hub.websub.websub_channel import WebSubChannel
from rsnotify_hub.websub_subscription import granted_lease, new_or_renewed

logger = logging.getLogger("rsnotify.hub.websub")

#: Maximum number of pending requests: in total, and per callback host or client.
MAX_PENDING = 2000
MAX_PENDING_SHARE = 200


def client_of(address: str | None) -> str:
    """Return the client that a request counts towards; empty for this machine, without a quota."""
    return "" if address is None or is_loopback(address) else client_network(address)


#: The names of the counters that a pending request has incremented.
Reservation = tuple[tuple[str, str], ...]


class QuotaQuestion(Struct, frozen=True):
    """Asks for the subscriptions that count towards the quotas of this host and client."""

    host: str
    client: str


class QuotaCounts(Struct, frozen=True):
    """The number of a node's subscriptions, including those that are being verified."""

    total: int = msgspec.field(default=0, name="in_all")  # as in earlier versions
    of_host: int = 0
    of_client: int = 0


QUOTA_COUNTS: NodeCall[QuotaQuestion, QuotaCounts] = NodeCall(
    "websub.quota", QuotaQuestion, QuotaCounts
)


class SubscriptionQuota:
    """Counts pending requests, and decides whether to accept another one."""

    def __init__(self, registry: SubscriptionRegistry, configuration: WebSubConfig) -> None:
        self._registry = registry
        self._total = configuration.max_subscriptions
        self._per_host = configuration.subscriptions_per_host
        self._per_client = configuration.subscriptions_per_client
        self._pending: Counter[tuple[str, str]] = Counter()

    def refusal(
        self, request: SubscriptionRequest, client: str, others: Sequence[QuotaCounts] = ()
    ) -> str | None:
        """Return the reason to refuse a request; None if it is within the quotas.

        The request counts towards the quota of `client`. `others` are the counts of other nodes.
        """
        host = host_of(request.callback)
        hosts, clients = self._pending["host", host], self._pending["client", client]
        if self._pending["", ""] >= MAX_PENDING:
            return "too many requests are being verified"
        if hosts >= MAX_PENDING_SHARE or (client and clients >= MAX_PENDING_SHARE):
            return (
                "too many requests for this callback's host or from your network are being verified"
            )
        if not self.is_new(request):
            return None
        counts = [self.counts(QuotaQuestion(host, client)), *others]
        if sum(each.total for each in counts) >= self._total:
            return "this hub has too many subscriptions"
        if sum(each.of_host for each in counts) >= self._per_host:
            return "this callback's host has too many subscriptions"
        if client and sum(each.of_client for each in counts) >= self._per_client:
            return "you have too many subscriptions"
        return None

    def counts(self, question: QuotaQuestion) -> QuotaCounts:
        host, client = question.host, question.client
        return QuotaCounts(
            len(self._registry) + self._pending["new", ""],
            self._registry.hosts[host] + self._pending["new host", host],
            self._registry.clients[client] + self._pending["new client", client],
        )

    def is_new(self, request: SubscriptionRequest) -> bool:
        known = self._registry.find(request.topic, request.callback) is not None
        return request.mode == "subscribe" and not known

    def reserve(self, request: SubscriptionRequest, client: str) -> Reservation:
        """Count a request as pending until `release`."""
        host = host_of(request.callback)
        reservation: Reservation = ("", ""), ("host", host), ("client", client)
        if self.is_new(request):
            reservation += ("new", ""), ("new host", host), ("new client", client)
        self._pending.update(reservation)
        return reservation

    def release(self, reservation: Reservation) -> None:
        for name in reservation:
            self._pending[name] -= 1
            if not self._pending[name]:
                del self._pending[name]


class ForwardedRequest(Struct, frozen=True):
    """A subscription request and its client, sent to the node that owns the subscription."""

    request: SubscriptionRequest
    client: str


#: Asks the owner to accept a request.
ACCEPT: NodeCall[ForwardedRequest, None] = NodeCall("websub.accept", ForwardedRequest, type(None))


class _Accepted(Struct, frozen=True):
    """A request to verify, or to deny if `denial` has the reason."""

    request: SubscriptionRequest
    client: str
    denial: str | None
    reservation: Reservation


class _Pending:
    """The request for a topic and callback that is being verified, and the next one."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task
        self.next: _Accepted | None = None


@dataclass(eq=False, repr=False)
class IntentVerification:
    """Verifies requests on the node that owns them, and then subscribes or unsubscribes.

    `is_served` returns whether any client may publish on a topic.
    """

    channel: WebSubChannel
    topics: TopicLogs
    intent_requests: IntentRequests
    configuration: WebSubConfig
    clock: Callable[[], Instant]
    nodes: HubNodes
    is_served: Callable[[str], bool]

    def __post_init__(self) -> None:
        self.quota = SubscriptionQuota(self.channel.registry, self.configuration)
        self._pending: dict[tuple[str, str], _Pending] = {}
        self.nodes.serve(QUOTA_COUNTS, self._quota_counts)
        self.nodes.serve(ACCEPT, self._accept)

    async def _quota_counts(self, question: QuotaQuestion) -> QuotaCounts:
        return self.quota.counts(question)

    async def forward(self, request: SubscriptionRequest, client: str) -> None:
        """Forward a request to the node that owns the subscription.

        Raise `Refusal` if that node refuses it, or if there is currently no owner.
        """
        authority = authority_of(request.callback)
        await self.nodes.ask_owner(authority, ACCEPT, ForwardedRequest(request, client))

    async def _accept(self, forwarded: ForwardedRequest) -> None:
        """Accept a request that this or another node has received."""
        request, client = forwarded.request, forwarded.client
        await self._check_quota(request, client)
        unknown = self.topics.state(request.topic) is None
        if request.mode == "subscribe" and unknown and not self.is_served(request.topic):
            self.verify(request, client, denial="this hub does not serve the topic")
        else:
            self.verify(request, client)

    async def _check_quota(self, request: SubscriptionRequest, client: str) -> None:
        """Refuse a request that would exceed a quota. The quotas apply to all nodes together."""
        refusal = self.quota.refusal(request, client)
        if refusal is None and self.quota.is_new(request):
            question = QuotaQuestion(host_of(request.callback), client)
            others = await self.nodes.ask_others(QUOTA_COUNTS, question)
            refusal = self.quota.refusal(request, client, others)
        if refusal is not None:
            raise Refusal(Code.TOO_MANY, refusal)

    def verify(
        self, request: SubscriptionRequest, client: str, *, denial: str | None = None
    ) -> None:
        """Verify a request in the background, or deny it (WebSub §5.2)."""
        accepted = _Accepted(request, client, denial, self.quota.reserve(request, client))
        key = (request.topic, request.callback)
        pending = self._pending.get(key)
        if pending is None:
            self._begin(key, accepted)
        else:
            dropped, pending.next = pending.next, accepted
            if dropped is not None:
                self.quota.release(dropped.reservation)

    def _begin(self, key: tuple[str, str], accepted: _Accepted) -> None:
        task = asyncio.create_task(self._process(accepted))
        self._pending[key] = _Pending(task)
        task.add_done_callback(lambda done: self._on_processed(key, accepted, done))

    def _on_processed(
        self, key: tuple[str, str], accepted: _Accepted, task: asyncio.Task[None]
    ) -> None:
        self.quota.release(accepted.reservation)
        pending = self._pending.pop(key)
        if task.cancelled():
            return
        if isinstance(error := task.exception(), StorageError):
            logger.warning("cannot change a subscription to %s: %s", key[0], error)
        elif error is not None:
            logger.error("cannot change a subscription to %s", key[0], exc_info=error)
        if pending.next is not None:
            self._begin(key, pending.next)

    async def _process(self, accepted: _Accepted) -> None:
        request = accepted.request
        try:
            if accepted.denial is not None:
                url = denial_url(request.topic, request.callback, reason=accepted.denial)
                await self.intent_requests.get(url, limit=0)
            elif request.mode == "subscribe":
                await self._subscribe(request, accepted.client)
            elif await self._is_confirmed(request, lease=0):
                await self.channel.remove(request.topic, request.callback)
        except NotOwner:
            # The owner changed during the verification.
            await self.forward(request, accepted.client)

    async def _subscribe(self, request: SubscriptionRequest, client: str) -> None:
        lease = granted_lease(
            request.lease,
            default=self.configuration.lease_seconds,
            minimum=self.configuration.min_lease_seconds,
            maximum=self.configuration.max_lease_seconds,
        )
        requested_at = self.clock()
        if not await self._is_confirmed(request, lease=lease):
            return
        await self.channel.put(
            new_or_renewed(
                self.channel.find(request.topic, request.callback),
                topic=request.topic,
                callback=request.callback,
                secret=request.secret,
                lease=lease,
                now=requested_at,
                position=self.topics.position(request.topic),
                client=client,
            )
        )

    async def _is_confirmed(self, request: SubscriptionRequest, *, lease: int) -> bool:
        challenge = secrets.token_urlsafe(32)
        url = verification_url(request, challenge=challenge, lease=lease)
        answer = await self.intent_requests.get(url, limit=len(challenge))
        if answer.succeeded and hmac.compare_digest(answer.excerpt, challenge.encode()):
            return True
        logger.warning(
            "the callback at %s did not confirm the %s request for %s: it %s",
            host_of(request.callback),
            request.mode,
            request.topic,
            "did not return the challenge" if answer.succeeded else answer.reason,
        )
        return False

    async def close(self) -> None:
        """Cancel pending verifications. The subscribers will repeat their requests."""
        await cancel(pending.task for pending in self._pending.values())
