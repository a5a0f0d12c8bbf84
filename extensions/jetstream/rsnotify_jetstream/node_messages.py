"""Calls between nodes, as requests and replies over NATS.

Each node subscribes to its own subject. A request about subscriptions names their shard. If the
node does not own the shard, it replies so, and the caller retries with its updated view of the
cluster.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

import msgspec
from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from rsnotify.errors import StorageError
from rsnotify.runtime.tasks import cancel
from rsnotify_hub.refusals import Code, Refusal
from rsnotify_hub.store.interface import NotOwner
from rsnotify_hub.store.nodes import A, Handler, NodeCall, R
from rsnotify_jetstream.cluster_node import ClusterNode
from rsnotify_jetstream.cluster_records import BaseRecord, decode
from rsnotify_jetstream.shard_ownership import BRIDGE

logger = logging.getLogger("rsnotify.hub.cluster")

#: Seconds to wait until a shard has an owner, or until the answers cover all subscriptions.
OWNER_SECONDS = 6.0
#: Timeouts for an answer in seconds: normally, and in `ask_others`.
ANSWER_SECONDS = 5.0
SOON_SECONDS = 1.0
_RETRY_SECONDS = 0.1


class CallRequest(BaseRecord, frozen=True, kw_only=True):
    """The name of a call, its argument, and the shard that it concerns, if any."""

    what = "a request to another node of this hub"
    name: str
    shard: str | None
    argument: bytes


class CallReply(BaseRecord, frozen=True, kw_only=True):
    """A reply: an answer, the code and reason of a refusal, or the reason for a store failure.

    `shards` are the shards that the node owned both before and after it computed the answer.
    """

    what = "the reply of another node of this hub"
    answer: bytes | None = None
    shards: tuple[str, ...] = ()
    not_owner: bool = False
    code: str | None = None
    reason: str = ""


class NodeMessages:
    """The `HubNodes` of a cluster. Its subjects begin with `prefix`."""

    def __init__(self, client: Client, prefix: str, node: ClusterNode) -> None:
        self._client = client
        self._prefix = prefix
        self._node = node
        self._calls: dict[str, tuple[NodeCall, Handler]] = {}  # type: ignore[type-arg]
        self._tasks: set[asyncio.Task[None]] = set()
        self._subscription: NatsSubscription | None = None

    async def start(self) -> None:
        """Start answering requests of other nodes."""
        self._subscription = await self._client.subscribe(
            self._subject(self._node.id), cb=self._requested
        )

    def _subject(self, node: str) -> str:
        return f"{self._prefix}.node.{node}"

    def count(self) -> int:
        return len({self._node.id, *self._node.living()})

    def serve(self, call: NodeCall[A, R], handler: Callable[[A], Awaitable[R]]) -> None:
        self._calls[call.name] = call, handler

    # The calling node.

    async def ask_owner(self, authority: str, call: NodeCall[A, R], argument: A) -> R:
        shard = self._node.sharding.shard_of(authority)
        request = CallRequest(name=call.name, shard=shard, argument=_encoded(argument))
        end = asyncio.get_running_loop().time() + OWNER_SECONDS
        while True:
            owner = self._node.membership.owner(shard)
            with suppress(NotOwner):
                if owner is not None and owner in self._node.living():
                    reply = await self._ask(owner, request)
                    answer: R = msgspec.msgpack.decode(reply.answer or b"", type=call.answer)
                    return answer
            if asyncio.get_running_loop().time() > end:
                raise Refusal(Code.UNAVAILABLE, "no node owns these subscriptions at the moment")
            await asyncio.sleep(_RETRY_SECONDS)

    async def find(self, call: NodeCall[A, R | None], argument: A) -> R | None:
        answers = await self._ask_all(call, argument, lambda each: each is not None)
        return next((each for each in answers if each is not None), None)

    async def ask_all(self, call: NodeCall[A, R], argument: A) -> list[R]:
        return await self._ask_all(call, argument, lambda each: False)

    async def _ask_all(
        self, call: NodeCall[A, R], argument: A, is_sufficient: Callable[[R], bool]
    ) -> list[R]:
        """Ask all nodes until the answers cover all subscriptions, or one of them is sufficient."""
        request = CallRequest(name=call.name, shard=None, argument=_encoded(argument))
        end = asyncio.get_running_loop().time() + OWNER_SECONDS
        while True:
            asked = (self._ask(node, request) for node in self._node.living())
            found = await asyncio.gather(*asked, return_exceptions=True)
            replies = [reply for reply in found if isinstance(reply, CallReply)]
            answers: list[R] = [
                msgspec.msgpack.decode(reply.answer or b"", type=call.answer) for reply in replies
            ]
            if any(map(is_sufficient, answers)):
                return answers
            failures = [reply for reply in found if isinstance(reply, BaseException)]
            for failure in failures:
                if not isinstance(failure, NotOwner):
                    raise failure
            if not failures and self._is_complete(replies):
                return answers
            if asyncio.get_running_loop().time() > end:
                raise StorageError("some subscriptions have no owner at the moment; try again")
            await asyncio.sleep(_RETRY_SECONDS)

    async def ask_others(self, call: NodeCall[A, R], argument: A) -> list[R]:
        request = CallRequest(name=call.name, shard=None, argument=_encoded(argument))
        others = [node for node in self._node.living() if node != self._node.id]
        asked = (self._ask(node, request, SOON_SECONDS) for node in others)
        answers: list[R] = []
        for reply in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(reply, CallReply):
                with suppress(msgspec.DecodeError):  # from a node with another version
                    answers.append(msgspec.msgpack.decode(reply.answer or b"", type=call.answer))
        return answers

    def _is_complete(self, replies: Iterable[CallReply]) -> bool:
        """Return whether the replies cover each shard of subscriptions exactly once."""
        shards = [shard for reply in replies for shard in reply.shards if shard != BRIDGE]
        return len(shards) == len(set(shards)) == self._node.sharding.count

    async def _ask(
        self, node: str, request: CallRequest, seconds: float = ANSWER_SECONDS
    ) -> CallReply:
        """Send a request to a node, and return its reply.

        Raises:
            NotOwner: The node is gone, or does not own the shard.
            Refusal: The node refuses the request.
            StorageError: The node does not answer, or its store fails.
        """
        if node == self._node.id:
            return _read_reply(await self._answer(request))
        try:
            message = await self._client.request(
                self._subject(node), msgspec.msgpack.encode(request), seconds
            )
        except errors.NoRespondersError:
            raise NotOwner("this node is gone") from None
        except (errors.Error, TimeoutError, OSError):
            name = self._node.nodes[node].name if node in self._node.nodes else node
            raise StorageError(f"the node {name or node} of this hub does not answer") from None
        return _read_reply(decode(message.data, CallReply))

    # The answering node.

    async def _requested(self, message: Msg) -> None:
        task = asyncio.create_task(self._reply(message))  # a slow call must not delay others
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reply(self, message: Msg) -> None:
        try:
            reply = await self._answer(decode(message.data, CallRequest))
        except StorageError as error:
            reply = CallReply(reason=str(error))
        with suppress(errors.Error, OSError):  # the caller times out
            await message.respond(msgspec.msgpack.encode(reply))

    async def _answer(self, request: CallRequest) -> CallReply:
        known = self._calls.get(request.name)
        if known is None:
            return CallReply(reason=f"this node does not support {request.name}: upgrade its hub")
        if request.shard is not None and not self._node.owns(request.shard):
            return CallReply(not_owner=True)
        call, handler = known
        before = set(self._node.working())
        try:
            argument = msgspec.msgpack.decode(request.argument, type=call.argument)
            answer = _encoded(await handler(argument))
        except NotOwner:
            return CallReply(not_owner=True)
        except Refusal as refusal:
            return CallReply(code=refusal.code, reason=refusal.reason)
        except StorageError as error:
            return CallReply(reason=str(error))
        except Exception:
            logger.exception("the call %s of another node failed", request.name)
            return CallReply(reason="internal error on a node of this hub")
        shards = tuple(before & set(self._node.working()))
        return CallReply(answer=answer, shards=shards)

    async def close(self) -> None:
        if self._subscription is not None:
            with suppress(Exception):  # the connection may be closed
                await self._subscription.unsubscribe()
        await cancel(self._tasks)


def _encoded(value: object) -> bytes:
    return msgspec.msgpack.encode(value)


def _read_reply(reply: CallReply) -> CallReply:
    if reply.not_owner:
        raise NotOwner("this node does not own the subscription")
    if reply.code is not None:
        raise Refusal(Code(reply.code), reply.reason)
    if reply.answer is None:
        raise StorageError(reply.reason)
    return reply
