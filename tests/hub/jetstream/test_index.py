"""The index of JetStream's logs has the same content as the SQLite store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rsnotify.format.datetimes import to_microseconds
from rsnotify_hub.export_file import NullLogListener
from rsnotify_hub.fragments import Fragment
from rsnotify_hub.intake import whole_content
from rsnotify_hub.store.interface import LogEntry, LogRetention, LogState
from rsnotify_hub.store.sqlite_store import SqliteStore
from rsnotify_hub.topic_log import plan_append
from rsnotify_jetstream.jetstream_log import batches
from rsnotify_jetstream.log_index import LogIndex
from rsnotify_jetstream.log_records import LogRecord, Place, RecordKind, digest_of, records_of
from tests.examples_count import examples
from tests.hub.helpers import Clock, at
from tests.hub.storing import stored_logs

TOPICS = ("one", "two")
RETENTION = LogRetention(size=40, age=timedelta(seconds=30))


class Last(NullLogListener):
    """The last entries that were appended, and the state of their log."""

    entries: Sequence[LogEntry] = ()
    state: LogState | None = None

    def appended(
        self, topic: str, entries: Sequence[LogEntry], state: LogState, replaced: int | None
    ) -> None:
        self.entries, self.state = entries, state


class Stream:
    """A stream in memory, and the index of it beside a SQLite store."""

    def __init__(self, store: SqliteStore, last: Last, clock: Clock) -> None:
        self.store = store
        self.last = last
        self.clock = clock
        self.index = LogIndex(RETENTION)
        self.records: list[LogRecord] = []
        self.places: dict[int, int] = {0: 0}  # positions of SQLite by those of the stream

    def add(self, record: LogRecord) -> int:
        self.records.append(replace(record, position=len(self.records) + 1))
        self.index.apply(self.records[-1])
        return len(self.records)

    async def append(self, topic: str, fragments: Sequence[Fragment]) -> None:
        state = next((one for one in await stored_logs(self.store) if one.topic == topic), None)
        plan = plan_append(state, fragments)
        if not plan.fragments:
            return
        ours = plan_append(self.index.state(topic), fragments)
        assert ours.fragments == plan.fragments
        replacing = ours.replacing
        after = state.position if state else 0
        number = await self.store.append(
            topic, plan.fragments, after=after, replacing=plan.replacing
        )
        assert number == len(self.last.entries)
        new = self.new(topic, plan.fragments)
        if not number:
            self.index.trim(topic, self.clock())
        entries = iter(self.last.entries)
        for batch in batches([entry.fragment for entry in self.last.entries]):
            place = self.index.place(topic, replacing)
            records = records_of(topic, batch, received=self.clock(), place=place)
            replacing = None
            for record, fragment in zip(records, batch, strict=True):
                new.remove(fragment)
                self.places[self.add(record)] = next(entries).position
        assert new == []
        assert self.known(self.index.state(topic)) == self.last.state

    def new(self, topic: str, fragments: Sequence[Fragment]) -> list[Fragment]:
        digests = {digest_of(fragment): fragment for fragment in reversed(fragments)}
        return [
            fragment
            for digest, fragment in digests.items()
            if self.index.find(topic, digest) is None
        ]

    def known(self, state: LogState | None) -> LogState | None:
        """Return a state with the positions of SQLite."""
        if state is None:
            return None
        position = self.places[state.position]
        first = self.places[state.first] if state.kept else position + 1
        return replace(state, first=first, position=position)

    async def compare(self) -> None:
        index, store = self.index, self.store
        by_topic = {one.topic: one for one in await stored_logs(store)}
        assert {one.topic: self.known(one) for one in index.states()} == by_topic
        newest = await store.newest(after=None, limit=1)
        assert [self.known(one) for one in index.newest(None, 1)] == newest
        if newest:
            after = (newest[0].received, newest[0].topic)
            rest = await store.newest(after=after, limit=5)
            assert [self.known(one) for one in index.newest(after, 5)] == rest
        for topic in TOPICS:
            for after, place in self.places.items():
                found = index.read(topic, after=after, since=None)
                assert self.mapped(found) == positions(await store.read(topic, after=place))
            for since in map(at, range(9)):
                found = index.read(topic, after=0, since=since)
                read = await store.read(topic, after=0, since=since)
                assert self.mapped(found) == positions(read)
                changes = await store.changes(topic, since=since)
                assert self.mapped(index.changes(topic, since=since)) == positions(changes)
            every = await store.changes(topic, since=None)
            assert self.mapped(index.changes(topic, since=None)) == positions(every)
            places = list(self.places.values())
            assert index.backlogs(topic, list(self.places)) == await store.backlogs(topic, places)

    def mapped(self, found: Sequence[int]) -> list[int]:
        return [self.places[position] for position in found]


def positions(entries: Sequence[Any]) -> list[int]:
    return [entry.position for entry in entries]


seconds = st.integers(0, 8)


@st.composite
def changes(draw: st.DrawFn) -> Fragment:
    first, last = sorted((draw(seconds), draw(seconds)))
    heartbeat = draw(st.booleans()) and last > first
    from_ = at(first) if heartbeat or draw(st.booleans()) else None
    body = f"{from_ and first} {last} {heartbeat}".encode() + b"x" * draw(st.integers(0, 12))
    begins = from_ or at(first - 0.5)
    return Fragment(body, "text/xml", from_, at(last), begins, heartbeat)


wholes = st.builds(
    lambda body, second: whole_content(body, "text/plain", at(second)),
    st.binary(max_size=60),
    seconds,
)
steps = st.one_of(
    st.tuples(
        st.just("append"),
        st.sampled_from(TOPICS),
        st.lists(changes(), min_size=1, max_size=4) | st.lists(wholes, min_size=1, max_size=2),
    ),
    st.tuples(st.just("forget"), st.sampled_from(TOPICS), st.none()),
    st.tuples(st.just("trim"), st.sampled_from(TOPICS), st.none()),
    st.tuples(st.just("wait"), st.integers(0, 40), st.none()),
)


async def run(history: list[tuple[str, Any, Any]], folder: Path) -> None:
    clock = Clock()
    store = SqliteStore(folder, RETENTION, clock)
    await store.start(last := Last())
    stream = Stream(store, last, clock)
    try:
        for step, what, fragments in history:
            if step == "append":
                await stream.append(what, fragments)
            elif step == "forget":
                for state in await stored_logs(store):
                    if state.topic == what:
                        await store.forget(what, after=state.position)
                after = stream.index.last(what)
                stream.add(LogRecord(0, RecordKind.RESET, what, after=after))
            elif step == "trim":
                state = await store.trim(what)
                stream.index.trim(what, clock())
                assert stream.known(stream.index.state(what)) == state
            else:
                clock.advance(seconds=what)
        await stream.compare()
        await check_loaded(stream)
    finally:
        await store.close()


async def check_loaded(stream: Stream) -> None:
    """A node that loads the stream later has the same index."""
    loaded = LogIndex(RETENTION)
    for record in stream.records:
        loaded.apply(record)
    for topic in TOPICS:
        assert loaded.trim(topic, stream.clock()) >= 0
        stream.index.trim(topic, stream.clock())
    assert loaded.states() == stream.index.states()


@settings(max_examples=examples(100))
@given(st.lists(steps, max_size=14))
def test_the_index_of_any_history_equals_the_sqlite_store(history: list[tuple[str, Any, Any]]):
    with TemporaryDirectory() as folder:
        asyncio.run(run(history, Path(folder)))


#: Batches of several nodes, as they are stored: how many records each has, how many stored batches
#: its node did not know when it planned it, and which record the servers lose of a batch that
#: counts, though they never should.
writes = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 3), st.sampled_from([9, 9, 9, 1, 2])), max_size=8
)


@settings(max_examples=examples(100))
@given(writes, st.data())
def test_a_batch_counts_completely_or_not_at_all(
    history: list[tuple[int, int, int]], data: st.DataObject
):
    index = LogIndex(LogRetention(10**9, timedelta(days=365)))
    stream: list[LogRecord] = []
    counting: list[int] = []  # the positions of the records that count
    ends = [0]
    for size, unknown, lost in history:
        after = ends[max(0, len(ends) - 1 - unknown)]
        fragments = [
            Fragment(b"%d" % (len(stream) + number), "text/xml", None, at(1), at(0), False)
            for number in range(size)
        ]
        place = Place(after, after, through=to_microseconds(at(1)))
        records = records_of("one", fragments, received=at(0), place=place)
        is_last = after == ends[-1]
        for record in records:
            if is_last and record.number == lost:
                continue
            stream.append(replace(record, position=len(stream) + 1))
            counts = is_last and record.number < lost
            assert index.apply(stream[-1]).accepted is counts
            if counts:
                counting.append(len(stream))
        if is_last:
            ends.append(counting[-1])
    assert index.read("one", after=0, since=None) == counting

    # Late records are deleted in their order, and the first ones of a log together.
    late = [record.position for record in stream if record.position not in counting]
    deleted = set(late[: data.draw(st.integers(0, len(late)))])
    first = data.draw(st.sampled_from(counting or [1]))
    if len(deleted) == len(late):
        deleted |= set(range(1, first))
    loaded = LogIndex(LogRetention(10**9, timedelta(days=365)))
    for record in stream:
        if record.position not in deleted:
            loaded.apply(record)
    left = [position for position in counting if position not in deleted]
    assert loaded.read("one", after=0, since=None) == left
