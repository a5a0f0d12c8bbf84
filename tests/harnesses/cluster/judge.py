"""What was promised and what it cost: lateness, repeats, and what the hubs logged."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.harnesses.cluster.deployment import NODES, Deployment
from tests.harnesses.cluster.faults import Happened
from tests.harnesses.cluster.receivers import Receiver
from tests.harnesses.cluster.traffic import Attempt, Ledger

#: Seconds in which a publication is answered without a majority of the NATS servers, and how much
#: longer it may take on a busy machine.
ANSWER_SECONDS, _BUSY = 2.0, 0.5
#: How often a hub may log one sentence for one fault.
_OFTEN = 10
_VARIABLE = re.compile(
    r"https?://\S+|nats://\S+|'[^']*'|\"[^\"]*\"|\b[0-9a-f]{8,}\b|\d{4}-\d\d-\d\dT\S+|\d+(\.\d+)?"
)
_LINE = re.compile(r"^\S+ (WARNING|ERROR|CRITICAL) \S+: (.*)$")


class Logs:
    """The warnings and errors of the hubs, counted by sentence from fault to fault."""

    def __init__(self, deployment: Deployment) -> None:
        self._paths = {name: deployment.parts[name].log for name in NODES}
        self._read = dict.fromkeys(NODES, 0)
        self.sentences = Counter[str]()
        self.often: list[str] = []
        self.tracebacks = 0

    def since(self, cause: str) -> None:
        """Count what was logged since the last call, for one cause."""
        for name, path in self._paths.items():
            found = Counter(self._sentences(path, name))
            self.sentences += found
            for sentence, number in found.items():
                if number > _OFTEN:
                    self.often.append(f"{name} logged {number} times after {cause!r}: {sentence}")

    def _sentences(self, path: Path, name: str) -> Iterator[str]:
        with path.open("rb") as log:
            log.seek(self._read[name])
            lines = log.read()
            self._read[name] += len(lines)
        for line in lines.decode(errors="replace").splitlines():
            if match := _LINE.match(line):
                yield f"{match[1]} {_VARIABLE.sub('…', match[2])}"[:300]
            elif "Traceback" in line:
                self.tracebacks += 1


class Judge:
    """Compares what was published, what was received and what had happened.

    Attributes:
        broken: The promises that were broken, in sentences.
        answers: Whether all hubs promise an answer without a majority of the NATS servers.
    """

    def __init__(self, deployment: Deployment, ledger: Ledger, receivers: list[Receiver]) -> None:
        self._deployment = deployment
        self._ledger = ledger
        self._receivers = receivers
        self.faults: list[Happened] = []
        self.broken: list[str] = []
        self.answers = True
        self._latest: dict[str, float] = {}

    # While it runs

    def missing(self, due: dict[str, int]) -> list[str]:
        """Return what was due and is not acknowledged, or not delivered to all."""
        unacknowledged = [
            f"fragment {number} of {topic} is not acknowledged"
            for topic, fragments in self._ledger.topics.items()
            for number, each in enumerate(fragments[: due[topic]])
            if each.acknowledged is None
        ]
        return unacknowledged + [
            f"{each.name} lacks fragments from {each.received}"
            for each in self._receivers
            if each.lacks(due)
        ]

    def lateness(self, fault: Happened) -> str:
        """Return how long after a fault what was due before its end came."""
        topics = self._ledger.topics
        answers = [
            each.acknowledged
            for fragments in topics.values()
            for each in fragments
            if each.due <= fault.ended and each.acknowledged is not None
        ]
        found = {"202": _after(answers, fault.ended)}
        for transport in self._transports():
            times = [
                delivery.at
                for receiver in self._of(transport)
                for delivery in receiver.deliveries
                if not delivery.is_repeat
                and topics[delivery.topic][delivery.number].due <= fault.ended
            ]
            found[transport] = _after(times, fault.ended)
        for what, seconds in found.items():
            self._latest[what] = max(seconds, self._latest.get(what, 0.0))
        return "latest after its end: " + _in_seconds(found)

    def _transports(self) -> list[str]:
        return list(dict.fromkeys(each.transport for each in self._receivers))

    def _of(self, transport: str) -> list[Receiver]:
        return [each for each in self._receivers if each.transport == transport]

    # At the end

    def check(self) -> None:
        """Note the promises to subscribers and publishers that were broken."""
        for each in self._receivers:
            self.broken += [f"{each.name}: {fault}" for fault in each.faults[:3]]
        for fault in self.faults:
            if fault.lost is not None and self.answers:
                self.broken += self._wrong_answers(fault)
        every = [part for name in NODES for part in self._deployment.parts[name].ended]
        self.broken += [each for each in every if "cannot connect to NATS" not in each]

    def without_leader(self, fault: Happened) -> list[Attempt]:
        """Return the publications that began after the majority was lost and before an election."""
        assert fault.lost is not None
        assert fault.elected is not None
        return [
            each
            for each in self._ledger.attempts
            if fault.lost <= each.began <= fault.elected and not self._was_down(each)
        ]

    def _was_down(self, attempt: Attempt) -> bool:
        return any(
            began <= attempt.began + attempt.seconds and attempt.began <= ended
            for began, ended in self._deployment.down[attempt.hub]
        )

    def _wrong_answers(self, fault: Happened) -> Iterator[str]:
        for each in self.without_leader(fault):
            is_stored = each.status == 202 and each.began + each.seconds >= fault.ended
            if not is_stored and (each.status != 503 or not each.retry_after):
                answer = f"{each.status or each.trouble}, Retry-After {each.retry_after}"
                yield f"{fault.what}: answered {answer}"
            if each.seconds > ANSWER_SECONDS + _BUSY:
                yield f"{fault.what}: answered {each.status} after {each.seconds:.1f} s"

    def returns(self, limit: float) -> Iterator[str]:
        """Yield when publishing worked after each majority returned; note those beyond a limit."""
        for fault in self.faults:
            if fault.lost is None or fault.elected is None:
                continue
            slowest = max((each.seconds for each in self.without_leader(fault)), default=0.0)
            firsts = [
                min(
                    each.began + each.seconds
                    for each in self._ledger.attempts
                    if each.topic == topic and each.status == 202 and each.began >= fault.ended
                )
                for topic in self._ledger.topics
            ]
            returned = max(firsts) - fault.elected
            if returned > limit:
                self.broken.append(f"{fault.what}: published {returned:.1f} s after the election")
            yield (
                f"{fault.what}: {len(self.without_leader(fault))} publications answered within "
                f"{slowest:.2f} s; a leader {fault.elected - fault.ended:.1f} s after its end; "
                f"202 {min(firsts) - fault.elected:+.1f} to {returned:+.1f} s after the election"
            )

    def report(self) -> Iterator[str]:
        """Yield the figures."""
        attempts = Counter(str(each.status or each.trouble) for each in self._ledger.attempts)
        yield f"publications: {_listed(attempts)}"
        accepted = [each for each in self._ledger.attempts if each.status == 202]
        slowest = max(accepted, key=lambda each: each.seconds)
        yield (
            f"{self._ledger.acknowledged()} fragments acknowledged; the slowest 202 took "
            f"{slowest.seconds:.1f} s: {self._cause(slowest.began)}"
        )
        yield f"latest after the end of any fault: {_in_seconds(self._latest)}"
        for transport in self._transports():
            receivers = self._of(transport)
            deliveries = [each for one in receivers for each in one.deliveries]
            repeats = Counter(self._cause(each.at) for each in deliveries if each.is_repeat)
            share = 100 * repeats.total() / max(1, len(deliveries))
            yield (
                f"{transport}: {len(receivers)} subscribers, {len(deliveries)} deliveries, "
                f"{repeats.total()} of them repeated ({share:.2f} %)"
                + (f": {_listed(repeats)}; {_oldest(receivers)}" if repeats else "")
            )

    def _cause(self, instant: float) -> str:
        """Return the kind of the last fault that had begun."""
        begun = [fault for fault in self.faults if fault.began <= instant]
        return begun[-1].kind if begun else "none"


def _after(instants: Sequence[float], end: float) -> float:
    return max(0.0, max(instants, default=end) - end)


def _in_seconds(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in values.items())


def _oldest(receivers: list[Receiver]) -> str:
    """Return how long ago a repeated fragment had been delivered before, at most."""
    age = 0.0
    for receiver in receivers:
        first: dict[tuple[str, int], float] = {}
        for each in receiver.deliveries:
            age = max(age, each.at - first.setdefault((each.topic, each.number), each.at))
    return f"{age:.1f} s after the first time, at most"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in counts.most_common())


def in_words(sentences: Iterable[tuple[str, int]]) -> Iterator[str]:
    for sentence, number in sentences:
        yield f"  {number:5} {sentence}"
