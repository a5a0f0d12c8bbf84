"""The JSON of the admin API about the nodes of the hub, and the NATS servers that they share."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from rsnotify.format.datetimes import Instant


class NodeInfo(Struct, frozen=True, kw_only=True):
    """A node of the hub.

    Args:
        name: The name of its machine.
        url: Its URL.
        version: The version of its software.
        started: When it started.
        alive: Whether it has renewed its record lately; null if the node that answers cannot know,
            since it is fenced itself. A dead node is listed for a minute.
        draining: Whether it gives up its work.
        shards: How many shards of the subscriptions it owns.
        behind: How many records of the stream it did not have yet, some seconds ago; null if that
            is unknown, or the hub is on one machine.
        server: The NATS server that it is connected to; null if there is none, or it is unknown.
        this: Whether it has answered this request.
    """

    name: str
    url: str
    version: str
    started: Annotated[Instant, Meta(tz=True)]
    alive: bool | None = True
    draining: bool
    shards: int
    behind: int | None = None
    server: str | None = None
    this: bool


class CopyInfo(Struct, frozen=True, kw_only=True):
    """A NATS server with a copy of the stream, as its leader knows it.

    Args:
        name: Its name.
        leader: Whether it leads the others.
        online: Whether it answers.
        current: Whether its copy is in step.
        behind: How many operations its copy is behind.
    """

    name: str
    leader: bool
    online: bool
    current: bool
    behind: int


class StreamInfo(Struct, frozen=True, kw_only=True):
    """The stream of NATS that all nodes follow.

    Args:
        name: Its name.
        connected: Whether this node is connected to NATS. If not, all that this node says of the
            other nodes and of NATS is out of date.
        trouble: Why this node does not follow the stream at the moment; null if it does.
        records: The number of records in it.
        bytes: Their bytes.
        copies: The servers that have a copy.
        warnings: What the last check of the servers has found, with what to do.
    """

    name: str
    connected: bool
    trouble: str | None
    records: int
    bytes: int
    copies: tuple[CopyInfo, ...]
    warnings: tuple[str, ...]


class NodeList(Struct, frozen=True, kw_only=True):
    """The nodes of the hub.

    Args:
        rows: The nodes.
        shards: The number of shards of the subscriptions; 0 on one machine.
        free: How many of them no living node owns: their subscriptions receive nothing now. It is
            null if the node that answers cannot know, since it is fenced.
        stream: The stream that all nodes follow; null on one machine.
    """

    rows: tuple[NodeInfo, ...]
    shards: int = 0
    free: int | None = 0
    stream: StreamInfo | None = None
