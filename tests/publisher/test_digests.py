"""The sum of the set in the journal, and the digest in fragments."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rsnotify.format.hashes import SetDigest, SetSum, set_digest
from rsnotify.format.model import Capability, ChangeType, Resource
from rsnotify_publisher import Options, Publisher, Record
from rsnotify_publisher.journal import Journal, Recorder
from rsnotify_publisher.push.change_stream import NoticeStream
from tests.publisher.helpers import BASE, PATIENCE, FakeHub, quick_publisher

HASH = "sha-256:" + "ab" * 32
NAMES = st.sampled_from("abcd")
HASHES = st.sampled_from([None, HASH, "sha-256:" + "cd" * 32, "md5:" + "0" * 32])
CHANGES = st.builds(
    lambda name, kind, hashes: Record(Resource(BASE + name, change=kind, hash=hashes)),
    NAMES,
    st.sampled_from(ChangeType),
    HASHES,
)


def summed_up(journal: Journal) -> str:
    """Compute the sum of the current set."""
    total = SetSum()
    total.add((resource.uri, resource.hash) for resource in journal.resources())
    return str(total)


def sum_of(journal: Journal) -> str | None:
    journal.bring_up_to_date()
    return journal.state().sum


def digest_of(journal: Journal) -> SetDigest | None:
    journal.bring_up_to_date()
    return journal.state().digest


def put(name: str, hashes: str | None = HASH) -> Record:
    return Record(Resource(BASE + name, change=ChangeType.UPDATED, hash=hashes))


def record(journal: Journal, *records: Record) -> None:
    with journal.transaction():
        journal.record(records)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite3"


@settings(max_examples=30, deadline=None)
@given(
    st.lists(CHANGES, max_size=4),
    st.lists(st.lists(CHANGES, max_size=5), max_size=5),
    st.booleans(),
)
def test_the_sum_is_that_of_the_set_after_any_changes(
    tmp_path_factory: pytest.TempPathFactory,
    loaded: list[Record],
    batches: list[list[Record]],
    seen_each_time: bool,
):
    path = tmp_path_factory.mktemp("sum") / "journal.sqlite3"
    with Journal(path, BASE) as journal:
        with journal.transaction():
            journal.load(
                replace(one, resource=replace(one.resource, change=None)) for one in loaded
            )
        assert sum_of(journal) == summed_up(journal)
        for batch in batches:
            record(journal, *batch)
            if seen_each_time:
                assert sum_of(journal) == summed_up(journal)
        with Journal(path, BASE) as other:
            assert summed_up(other) == sum_of(journal)


def test_a_batch_larger_than_a_page_counts_each_resource_once(path: Path):
    with Journal(path, BASE) as journal:
        record(journal, *(put(str(number % 1_500)) for number in range(4_000)))
        assert sum_of(journal) == summed_up(journal)
        digest = digest_of(journal)
        assert digest.count == 1_500


def test_two_processes_that_record_alternately_keep_one_sum(path: Path):
    with Journal(path, BASE) as one, Journal(path, BASE) as other:
        record(one, put("a"), put("b"))
        record(other, put("b", "sha-256:" + "cd" * 32), put("c"))
        record(one, Record(Resource(BASE + "a", change=ChangeType.DELETED)))
        assert sum_of(one) == sum_of(other) == summed_up(one)


def test_a_failed_transaction_does_not_change_the_sum(path: Path):
    with Journal(path, BASE) as journal:
        record(journal, put("a"))
        before = sum_of(journal)

        def fail_halfway() -> None:
            with journal.transaction():
                journal.record([put("b")])
                assert sum_of(journal) != before
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail_halfway()
        assert sum_of(journal) == before


def test_pruning_and_new_validators_do_not_change_the_sum(path: Path):
    with Journal(path, BASE) as journal:
        record(journal, put("a"), put("b"))
        total = sum_of(journal)
        before = journal.state()
        with journal.transaction():
            journal.prune(before.last_change)
            journal.revalidate(BASE + "a", "v2")
        assert journal.changes(0) == []
        assert sum_of(journal) == total == summed_up(journal)


def test_notices_of_documents_have_no_digest(path: Path):
    with Journal(path, BASE) as journal:
        record(journal, put("a"))
        assert digest_of(journal) is not None
        assert NoticeStream(journal).state().digest is None


def test_a_set_with_a_resource_without_a_hash_has_no_digest(path: Path):
    with Journal(path, BASE) as journal:
        record(journal, put("a"), put("b", "md5:" + "0" * 32))
        assert digest_of(journal) is None
        record(journal, put("b"))
        assert digest_of(journal) == SetDigest(2, *_digits_of(journal))


def _digits_of(journal: Journal) -> tuple[str]:
    return (summed_up(journal).split()[2],)


async def test_a_constantly_changing_source_sends_the_digest_with_changes(
    tmp_path: Path, hub: FakeHub
):
    options = Options(heartbeat=600, grace=5)
    async with Publisher(tmp_path, BASE, hubs=[hub.url], options=options) as publisher:
        await publisher.arecord([put("a").resource, put("b").resource])
        await hub.has(BASE + "b")
        await publisher.aupdated(BASE + "c", hash=HASH)
        await hub.has(BASE + "c")
    first, second = [one for one in hub.fragments if one.resources and one.until]
    total = SetSum()
    total.add((BASE + name, HASH) for name in "ab")
    assert set_digest(first) == total.digest()
    assert set_digest(second) is None, "not with each of many changes a second"


async def test_a_lagging_hub_receives_the_digest_only_with_the_last_change(
    tmp_path: Path, hub: FakeHub
):
    async with quick_publisher(tmp_path, hub.url, fragment_entries=2) as publisher:
        hub.answering.clear()
        await publisher.arecord([put(name).resource for name in "abcde"])
        hub.answering.set()
        await hub.has(BASE + "e")
    reported = [set_digest(one) for one in hub.fragments if one.resources]
    assert reported[:-1] == [None] * (len(reported) - 1)
    assert reported[-1].count == 5


async def test_a_promise_does_not_wait_for_a_flood_of_changes(path: Path):
    hashed = [put(str(number)) for number in range(6_000)]
    with ThreadPoolExecutor(1) as threads:
        recorder = Recorder(lambda: Journal(path, BASE), lambda _: None, threads)
        recorder.start()
        await recorder.arun(lambda journal: journal.record(hashed))
        state = await recorder.promise_with_digest()
        assert state.reached > state.last_change > state.applied
        assert state.digest is None, "the rest is applied in the background"
        while await recorder.arun(lambda journal: journal.apply_changes()):
            pass
        digest = (await recorder.promise_with_digest()).digest
        recorder.close()
    assert digest.count == 6_000


async def test_changes_are_applied_while_hubs_are_fed(tmp_path: Path, hub: FakeHub):
    async with quick_publisher(
        tmp_path, hub.url, heartbeat=600, resource_list_every=900
    ) as publisher:
        assert await publisher.await_published(PATIENCE)
        await publisher.acreated(BASE + "a", hash=HASH)
        await hub.has(BASE + "a")
        await publisher.acreated(BASE + "b", hash=HASH)
        await hub.has(BASE + "b")
        with publisher.source.open_journal() as journal:
            async with asyncio.timeout(PATIENCE):
                while journal.state().digest is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)


async def test_each_digest_is_that_of_the_set_after_the_changes_of_its_fragment(
    tmp_path: Path, hub: FakeHub
):
    random = Random(1)

    def is_quiet() -> bool:
        last = hub.fragments[-1]
        return not last.resources and last.capability == Capability.CHANGE_NOTIFICATION

    async with quick_publisher(tmp_path, hub.url, heartbeat=0.01, fragment_entries=7) as publisher:
        for _ in range(50):
            names = [str(random.randrange(40)) for _ in range(random.randrange(1, 20))]
            changes = [put(name, f"sha-256:{random.getrandbits(256):064x}") for name in names]
            gone = Resource(BASE + str(random.randrange(40)), change=ChangeType.DELETED)
            await asyncio.gather(publisher.arecord(changes), publisher.arecord([gone]))
        await publisher.aupdated(BASE + "last", hash=HASH)
        await hub.until(lambda: hub.uris()[-1:] == [BASE + "last"] and is_quiet())
    in_set: dict[str, str | None] = {}
    stated = 0
    for fragment in hub.fragments:
        for change in fragment.resources:
            in_set[change.uri] = change.hash
            if change.change is ChangeType.DELETED:
                del in_set[change.uri]
        digest = set_digest(fragment)
        if digest is not None:
            total = SetSum()
            total.add(in_set.items())
            assert digest == total.digest()
            stated += bool(fragment.resources)
    assert stated, "with changes, too"
    assert any(set_digest(one) for one in hub.fragments if not one.resources), "with heartbeats"
