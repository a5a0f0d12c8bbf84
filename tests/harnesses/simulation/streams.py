"""What a server of NATS JetStream has of a stream: its messages, and the rules for the next one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

#: Errors of JetStream: the HTTP status, and the text.
ERRORS = {
    10008: (503, "JetStream system temporarily unavailable"),
    10037: (404, "no message found"),
    10043: (400, "message not found"),
    10059: (404, "stream not found"),
    10071: (400, "wrong last sequence"),
    10158: (409, "duplicate message id is in process"),
    10164: (400, "wrong last sequence"),
    10057: (500, "stream store EOF"),
    10176: (400, "atomic publish batch is incomplete"),
}
#: What a stream has of its own if its creator does not say.
_DEFAULTS = {
    "retention": "limits",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 0,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "discard": "old",
    "storage": "file",
    "num_replicas": 1,
}


def error(code: int, description: str = "") -> dict[str, Any]:
    """Return the error in an answer of JetStream."""
    status, text = ERRORS[code]
    return {"code": status, "err_code": code, "description": description or text}


@lru_cache(65_536)
def matches(pattern: str, subject: str) -> bool:
    """Return whether a subject is one of those that a pattern with wildcards stands for."""
    if pattern == subject:
        return True
    wanted, found = pattern.split("."), subject.split(".")
    for number, token in enumerate(wanted):
        if token == ">":
            return len(found) > number
        if number == len(found) or token not in ("*", found[number]):
            return False
    return len(wanted) == len(found)


class Message(NamedTuple):
    """A message that was published to a stream.

    Attributes:
        subject: Its subject.
        headers: Its headers.
        raw: The lines of its headers, each with its end.
        body: Its payload.
        time: When the leader has received it, in microseconds since 1970.
    """

    subject: str
    headers: Mapping[str, str]
    raw: bytes
    body: bytes
    time: int


class Store(NamedTuple):
    """Store messages at contiguous positions."""

    messages: tuple[Message, ...]


class Delete(NamedTuple):
    seq: int


class Purge(NamedTuple):
    """Delete the messages of a subject before a position."""

    pattern: str
    before: int


class Create(NamedTuple):
    """Create a stream, or replace its configuration."""

    name: str
    config: dict[str, Any]
    created: int
    first: str


class Nothing(NamedTuple):
    """What a new leader stores first, so that everything before it becomes durable."""


Change = Store | Delete | Purge | Create | Nothing


class Stream:
    """The messages of a stream.

    Attributes:
        config: Its settings.
        created: When it was created, in microseconds since 1970.
        last: The last position.
        messages: The messages by their positions, in this order.
    """

    def __init__(self, config: dict[str, Any], created: int) -> None:
        self.config = _DEFAULTS | config
        self.created = created
        self.last = 0
        self.messages: dict[int, Message] = {}
        self._subjects: dict[str, dict[int, None]] = {}
        self._ids: dict[str, int] = {}

    def apply(self, change: Change) -> int:
        """Apply a change, and return the last position, or how many messages were deleted."""
        match change:
            case Store(messages):
                for message in messages:
                    self._store(message)
                return self.last
            case Delete(seq):
                return self._delete(seq)
            case Purge(pattern, before):
                found = [
                    seq
                    for seq, message in self.messages.items()
                    if seq < before and matches(pattern, message.subject)
                ]
                return sum(map(self._delete, found))
        return 0

    def _store(self, message: Message) -> None:
        self.last += 1
        subject = message.subject
        if message.headers.get("Nats-Rollup") == "sub" or self.config["max_msgs_per_subject"] == 1:
            for seq in list(self._subjects.get(subject, ())):
                self._delete(seq)
        self.messages[self.last] = message
        self._subjects.setdefault(subject, {})[self.last] = None
        if (identifier := message.headers.get("Nats-Msg-Id")) is not None:
            self._ids[identifier] = self.last

    def _delete(self, seq: int) -> int:
        message = self.messages.pop(seq, None)
        if message is None:
            return 0
        del self._subjects[message.subject][seq]
        return 1

    def last_of(self, subject: str) -> int:
        """Return the last position of a subject; 0 without one."""
        return next(reversed(self._subjects.get(subject) or {0: None}))

    def duplicate(self, identifier: str | None) -> int | None:
        """Return the position at which a message with an id was stored, if it was."""
        return None if identifier is None else self._ids.get(identifier)

    def find(self, which: Mapping[str, Any]) -> int | None:
        """Return the position of the message that a request is about, if there is one."""
        if (subject := which.get("last_by_subj")) is not None:
            return self.last_of(subject) or None
        seq, pattern = which["seq"], which.get("next_by_subj")
        if pattern is None:
            return seq if seq in self.messages else None
        return next(self.following(seq, pattern), None)

    def following(self, seq: int, pattern: str | None) -> Iterator[int]:
        """Yield the positions from one on, of the subjects of a pattern."""
        for each, message in self.messages.items():
            if each >= seq and (pattern is None or matches(pattern, message.subject)):
                yield each

    @property
    def facts(self) -> dict[str, int]:
        """The `state` of information on a stream."""
        first = next(iter(self.messages), self.last and self.last + 1)
        size = sum(len(each.raw) + len(each.body) for each in self.messages.values())
        return {
            "messages": len(self.messages),
            "bytes": size,
            "first_seq": first,
            "last_seq": self.last,
        }


class Intake:
    """What the leader of a stream examines before it stores a message, and what it is storing.

    A server alone examines the conditions of a message before its id.

    Attributes:
        batches: The messages of each batch so far.
    """

    def __init__(self, stream: Stream, *, is_alone: bool) -> None:
        self._stream = stream
        self._is_alone = is_alone
        self._ids = dict[str, None]()
        self._subjects = dict[str, int]()
        self.batches: dict[str, list[Message]] = {}

    def refuse(self, message: Message) -> dict[str, Any] | int | None:
        """Return why a message is not stored, or where it was stored before; None if it may be."""
        if self._is_alone:
            return self._unmet(message) or self._repeated(message)
        return self._repeated(message) or self._unmet(message)

    def _repeated(self, message: Message) -> dict[str, Any] | int | None:
        identifier = message.headers.get("Nats-Msg-Id")
        if (duplicate := self._stream.duplicate(identifier)) is not None:
            return duplicate
        return error(10158) if identifier in self._ids else None

    def _unmet(self, message: Message) -> dict[str, Any] | None:
        expected = message.headers.get("Nats-Expected-Last-Subject-Sequence")
        if expected is not None:
            if self._subjects.get(message.subject):
                return error(10164)
            last = self._stream.last_of(message.subject)
            if int(expected) != last:
                return error(10071, f"wrong last sequence: {last}")
        return None

    def add(self, messages: Sequence[Message]) -> None:
        """Note that messages are being stored."""
        for each in messages:
            if (identifier := each.headers.get("Nats-Msg-Id")) is not None:
                self._ids[identifier] = None
            self._subjects[each.subject] = self._subjects.get(each.subject, 0) + 1

    def remove(self, messages: Sequence[Message]) -> None:
        """Note that messages were stored."""
        for each in messages:
            if (identifier := each.headers.get("Nats-Msg-Id")) is not None:
                self._ids.pop(identifier, None)
            self._subjects[each.subject] -= 1

    def batch(self, message: Message) -> list[Message] | dict[str, Any] | None:
        """Add a message to its batch; return the batch once it is complete, or why it never is."""
        headers = message.headers
        identifier = headers["Nats-Batch-Id"]
        number = int(headers["Nats-Batch-Sequence"])
        batch = self.batches.setdefault(identifier, []) if number == 1 else None
        batch = self.batches.get(identifier) if batch is None else batch
        if batch is None or len(batch) != number - 1:
            self.batches.pop(identifier, None)
            return error(10176) if "Nats-Batch-Commit" in headers else None
        batch.append(message)
        return self.batches.pop(identifier) if "Nats-Batch-Commit" in headers else None
