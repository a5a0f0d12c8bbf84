"""What a power failure leaves of a mirror and its state is put right when the state is opened."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rsnotify.errors import RsnotifyError, StorageError
from rsnotify.format.coverage import Change
from rsnotify.format.model import ChangeType, Resource
from rsnotify.format.offer import Offer
from rsnotify.runtime.tasks import Tasks
from rsnotify.selection import Selection, wanted_representation
from rsnotify.sync.progress import Progress
from rsnotify.sync.retry import Retry
from rsnotify_subscriber import FolderMirror
from rsnotify_subscriber.content.resolver import ContentResolver
from rsnotify_subscriber.fetching.fetcher import Content
from rsnotify_subscriber.following.applier import Applier, PreparedChange
from rsnotify_subscriber.following.copy_check import apply_unfinished
from rsnotify_subscriber.storage.destination_state import DestinationState
from rsnotify_subscriber.storage.identity import Identity
from tests.subscriber.destination import Destination, files_of
from tests.subscriber.power import Disk
from tests.subscriber.source import SmallSource

BASE = "http://a.example/data/"
#: Some are the folders of others.
NAMES = ("a", "a/b", "a/b/c", "d", "e/f")
LARGE = 20_000


class Copy:
    """A mirror and its state on a disk that may lose what was not flushed."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.state = DestinationState(folder / "state")
        self.mirror = FolderMirror(folder / "mirror")
        self.incoming = self.state.make_incoming()
        self.mirror.prepare(BASE, self.incoming)
        self.disk = Disk(folder / "mirror", patch)
        self._worker = ThreadPoolExecutor(1)
        self._applier = Applier(
            cast(ContentResolver, None),
            self.state,
            self.mirror,
            _Outcome(),
            self._worker,
            Tasks(lambda error: None),
            Selection(),
            Retry(),
        )
        self._changes = 0
        self.through: datetime | None = None

    def close(self) -> None:
        self._worker.shutdown()
        self.disk.close()
        self.state.close()

    def _prepared(self, name: str, content: bytes | None) -> PreparedChange:
        self._changes += 1
        uri = BASE + name
        kind = ChangeType.DELETED if content is None else ChangeType.UPDATED
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=self._changes)
        change = Change(uri, kind, at, Resource(uri, change=kind))
        held = None
        if content is not None:
            hashes = f"sha-256:{hashlib.sha256(content).hexdigest()}"
            path = self.incoming / str(self._changes)
            held = Content(path, hashes, len(content), content)
        return PreparedChange(change, change, wanted_representation(change), held)

    def apply(self, changes: dict[str, bytes | None], *, commit: bool = True) -> None:
        """Apply changes as one batch; without `commit`, up to the moment before."""
        batch = [self._prepared(name, content) for name, content in changes.items()]
        through = batch[-1].change.at
        states = [state for state in map(PreparedChange.new_state, batch) if state is not None]
        if not commit:
            self._applier._commit = _nothing  # type: ignore[method-assign,assignment]
        assert self._applier._apply_blocking is not None
        assert self._applier._call_and_commit(
            self._applier._apply_blocking, batch, states, Progress(through, through)
        )
        if commit:
            self.through = through

    def refuse(self, changes: dict[str, bytes | None], *, beside: bool = False) -> None:
        """Fail to apply changes, since the folder for content is missing.

        With `beside`, they share a batch with another, which needs no effect.
        """
        batch = [self._prepared(name, content) for name, content in changes.items()]
        if beside:
            held = self.state.find(BASE + "a")
            covered = self._prepared("a", None)
            batch.append(replace(covered, decided=None, unchanged=held))
        self.incoming.rename(self.folder / "hidden")
        asyncio.run(self._applier._apply_batch(batch))
        (self.folder / "hidden").rename(self.incoming)

    def do(self, steps: Sequence[dict[str, bytes | None] | str]) -> None:
        for step in steps:
            if isinstance(step, str):
                self.flush()
            else:
                self.apply(step)

    def failures(self, folder: Path, count: int = 20) -> Iterator[Path]:
        """Yield what power failures now may leave, each in a folder of its own."""
        for seed in range(count):
            left = folder / str(seed)
            left.mkdir()
            self.disk.fail(left, self.folder / "state", Random(seed))
            yield left

    def check_failures(self, folder: Path, undecided: Sequence[str] = ()) -> None:
        for left in self.failures(folder):
            check(left, self.through, undecided)

    def reopened(self) -> closing[DestinationState]:
        """Open the state as the next run does."""
        self.state.close()
        return closing(DestinationState(self.folder / "state"))

    def put_in_place_again(self, state: DestinationState) -> None:
        mirror = FolderMirror(self.folder / "mirror")
        mirror.prepare(BASE, self.incoming)
        apply_unfinished(mirror, state, self.incoming)

    def flush(self) -> None:
        last = self.state.contents.last
        self.mirror.flush()
        self.state.contents.set_flushed(last)


class _Outcome:
    """An `ApplyOutcome` of which no result is used."""

    def progress_after(self, changes: Sequence[Change]) -> Progress | None:
        return None

    def applied(self, changes: Sequence[Change]) -> None: ...

    def committed(self, changes: Sequence[Change]) -> None: ...

    def failed(self, change: Change, error: RsnotifyError) -> None: ...

    def find_lost(self) -> None: ...

    def resumed(self) -> None: ...


def _nothing(*_: object) -> None:
    """Commit nothing, as the power fails first."""


def check(folder: Path, through: datetime | None, undecided: Sequence[str]) -> None:
    """Check that what T covers is in its place; the `undecided` the lists repeat."""
    incoming = folder / "again"
    incoming.mkdir(exist_ok=True)
    mirror = FolderMirror(folder / "mirror")
    with closing(DestinationState(folder / "state")) as state:
        mirror.prepare(BASE, incoming)
        apply_unfinished(mirror, state, incoming)
        progress = state.progress()
        assert (progress.through if progress else None) == through
        unknown = state.unknown_uris()
        strange = {path for path in (folder / "mirror").rglob("*") if path.is_file()}
        for name in NAMES:
            held, path = state.find(BASE + name), mirror.held_content(BASE + name)
            if path is not None:
                strange.remove(path)
            if name in undecided or BASE + name in unknown:
                continue
            if held is None or not held.exists:
                assert path is None, name
            else:
                assert path is not None, name
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                assert held.hash == f"sha-256:{digest}", name
        if not unknown and not undecided:
            assert strange == set()


small = st.binary(min_size=1, max_size=8)
contents = st.one_of(
    small,
    small,
    st.none(),
    st.integers(1, 255).map(lambda byte: bytes([byte]) * LARGE),
)
batches = st.dictionaries(st.sampled_from(NAMES), contents, min_size=1, max_size=3)


@contextmanager
def copy() -> Iterator[Copy]:
    with (
        TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
        closing(Copy(Path(folder), patch)) as one,
    ):
        yield one


histories = given(
    steps=st.lists(st.one_of(batches, st.just("flush")), max_size=8),
    last=st.one_of(st.none(), batches),
    seed=st.integers(0, 2**32),
)


@settings(max_examples=60, deadline=None, derandomize=True)
@histories
def test_what_t_covers_is_in_its_place_after_a_power_failure_at_any_instant(
    steps: list[dict[str, bytes | None] | str], last: dict[str, bytes | None] | None, seed: int
) -> None:
    fail_after(steps, last, seed)


@pytest.mark.slow
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@histories
def test_what_t_covers_is_in_its_place_after_many_power_failures(
    steps: list[dict[str, bytes | None] | str], last: dict[str, bytes | None] | None, seed: int
) -> None:
    fail_after(steps, last, seed)


def fail_after(
    steps: list[dict[str, bytes | None] | str], last: dict[str, bytes | None] | None, seed: int
) -> None:
    """Check what is left if the power fails after some steps, and before the last is committed."""
    random = Random(seed)
    with copy() as one:
        one.do(steps)
        if last is not None:
            one.apply(last, commit=False)
        left = one.folder / "left"
        left.mkdir()
        one.disk.fail(left, one.folder / "state", random)
        undecided = tuple(last) if last is not None and len(last) == 1 else ()
        check(left, one.through, undecided)
        check(left, one.through, undecided)  # also of the next run


FLUSH = "flush"


@pytest.mark.parametrize(
    "steps",
    [
        [{"a/b": b"1"}, FLUSH, {"a/b": None, "a": b"2"}, {"a/b": b"3", "e/f": b"4"}],
        [{"a": b"1"}, {"a/b": b"2", "a/b/c": b"3"}, FLUSH, {"a": None}, FLUSH, {"d": b"4"}],
        [{"a": b"1"}, {"a/b": b"2"}, FLUSH, {"a": None}],
        [{"d": b"1"}, FLUSH, {"d": None}, FLUSH, {"e/f": b"2"}],
    ],
    ids=[
        "a copy at the path before a move does not come back",
        "a copy at the path before its natural one was free does not come back",
        "a copy that moves to its natural path outlives a power failure",
        "a file that was removed and flushed does not come back",
    ],
)
def test_a_power_failure_after_moves_and_flushes_leaves_what_t_covers(
    steps: list[dict[str, bytes | None] | str], tmp_path: Path
) -> None:
    with copy() as one:
        one.do(steps)
        one.check_failures(tmp_path)


def test_contents_applied_during_a_flush_are_kept(tmp_path: Path) -> None:
    """The flush may have missed them."""
    with copy() as one:
        one.apply({"a": b"1"})
        last = one.state.contents.last
        one.mirror.flush()
        one.apply({"a": b"2"})
        one.state.contents.set_flushed(last)
        one.apply({"d": b"3"})
        one.check_failures(tmp_path)


def test_a_power_failure_while_changes_are_put_in_place_again_changes_nothing(
    tmp_path: Path,
) -> None:
    with copy() as one:
        one.do([{"a/b": b"1", "d": b"2"}, {"a/b": None, "a": b"3"}])
        for left in one.failures(tmp_path):
            with closing(DestinationState(left / "state")) as state:
                mirror = FolderMirror(left / "mirror")
                mirror.prepare(BASE, state.make_incoming())
                contents, folder = state.contents.unfinished, left / "state/incoming"
                state.contents.delete_flushed = lambda: None  # type: ignore[method-assign]
                apply_unfinished(mirror, state, folder)
                assert contents
            check(left, one.through, ())


def test_nothing_is_deleted_from_the_state_after_a_flush_that_failed() -> None:
    with copy() as one:
        one.apply({"a": b"1"})
        one.disk.flushes_to_fail = 1
        with pytest.raises(OSError, match="Input/output"):
            one.flush()
        with pytest.raises(StorageError, match="an earlier flush failed"):
            one.flush()
        one.state.delete_flushed()
        assert one.state.database.read("SELECT uri FROM {contents}") == [(BASE + "a",)]


def test_contents_are_not_applied_again_over_commits_of_a_version_that_knows_none(
    tmp_path: Path,
) -> None:
    with copy() as one:
        one.apply({"a": b"1"})
        one.state.database.execute("UPDATE {facts} SET value = '7' WHERE name = 'batch'")
        (left,) = one.failures(tmp_path, 1)
    with closing(DestinationState(left / "state")) as state:
        assert state.contents.unfinished == {}


def test_a_handler_that_defers_nothing_fetches_what_another_had_deferred(tmp_path: Path) -> None:
    with copy() as one:
        one.apply({"a": b"1", "d": b"2"})
        (left,) = one.failures(tmp_path, 1)
    with closing(DestinationState(left / "state")) as state:
        apply_unfinished(object(), state, left)
        assert state.unknown_uris() == [BASE + "a", BASE + "d"]
        assert state.progress() is None


@pytest.mark.parametrize("beside", [False, True])
def test_contents_are_kept_when_a_later_change_could_not_be_applied(
    tmp_path: Path, beside: bool
) -> None:
    with copy() as one:
        one.apply({"a": b"1", "d": b"2"})
        one.refuse({"e/f": b"3"}, beside=beside)
        assert one.through is not None
        one.state.save_progress(Progress(one.through, one.through))
        one.check_failures(tmp_path, ["e/f"])


def test_a_deletion_that_was_deferred_is_compared_by_a_handler_that_defers_nothing() -> None:
    with copy() as one:
        one.do([{"a": b"1"}, {"a": None}])
        with one.reopened() as state:
            apply_unfinished(object(), state, one.incoming)
            assert state.unknown_uris() == [BASE + "a"]


def test_contents_are_not_put_into_another_folder(tmp_path: Path) -> None:
    """The right one may only not be mounted yet, and has lost them."""
    with copy() as one:
        one.state.store_identity(Identity("", BASE, Offer(), place=one.mirror.place))
        one.apply({"a": b"1", "d": b"2"})
        (tmp_path / "mirror").mkdir()
        mirror = FolderMirror(tmp_path / "mirror")
        mirror.prepare(BASE, one.incoming)
        with one.reopened() as state:
            apply_unfinished(mirror, state, one.incoming)
            assert state.unknown_uris() == [BASE + "a", BASE + "d"]
        assert list((tmp_path / "mirror").iterdir()) == []


def test_a_disk_fault_while_contents_are_put_in_place_again_can_be_retried(tmp_path: Path) -> None:
    with copy() as one:
        one.apply({"a": b"1"})
        one.disk.flushes_to_fail = 1
        with one.reopened() as state, pytest.raises(StorageError, match="the disk failed"):
            one.put_in_place_again(state)
        with one.reopened() as state:
            assert state.contents.unfinished == {BASE + "a": b"1"}


def test_what_is_put_in_place_again_after_a_crash_outlives_a_power_failure(tmp_path: Path) -> None:
    with copy() as one:
        one.apply({"e/f": b"1"})  # which makes a folder
        with one.reopened() as state:
            one.put_in_place_again(state)
            assert state.database.read("SELECT uri FROM {contents}") == []
        one.check_failures(tmp_path)


async def test_a_run_that_has_ended_leaves_nothing_to_be_flushed(
    source: SmallSource, destination: Destination, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination.folder.mkdir()
    disk = Disk(destination.folder, monkeypatch)
    source.put("a", b"1")
    source.put("folder/b", b"2")
    await destination.become_equal()
    for seed in range(20):
        disk.after_failure(tmp_path / str(seed), Random(seed))
        assert files_of(tmp_path / str(seed)) == source.contents
    disk.close()


def test_what_was_flushed_need_not_be_kept(tmp_path: Path) -> None:
    with copy() as one:
        one.do([{"e/f": b"1"}, FLUSH, {"d": b"2"}])
        assert one.state.database.read("SELECT uri FROM {contents}") == [(BASE + "d",)]
        one.check_failures(tmp_path)
