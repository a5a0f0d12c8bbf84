"""The same stream by three transports, into a real state: each change has its effect once."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rsnotify.errors import ContentMismatch, RsnotifyError
from rsnotify.format.coverage import Change, CheckMethod
from rsnotify.format.datetimes import to_microseconds
from rsnotify.format.model import ChangeType
from rsnotify.sync.actions import Action, BeginBaseline, Compare, FindUnlisted
from rsnotify_subscriber.storage.destination_state import DestinationState
from rsnotify_subscriber.storage.resource_state import ResourceState
from tests.core.mixed import HISTORIES, NUMBERS, Mixed, play_both, through
from tests.core.world import PATIENT, Destination, Source
from tests.examples_count import examples

TABLES = """
CREATE TABLE IF NOT EXISTS effects (uri, at, change, content);
CREATE TABLE IF NOT EXISTS copy (uri PRIMARY KEY, content)
"""


class Keeper(Destination):
    """A Destination that keeps all in the database of its state, a line for each effect too.

    Where it is broken, it also dies between an effect and its commit.
    """

    def __init__(self, source: Source, random: Random, folder: Path) -> None:
        self._folder = folder
        self._state: DestinationState | None = None
        super().__init__(source, random, pace=PATIENT)

    @property
    def state(self) -> DestinationState:
        assert self._state is not None
        return self._state

    def restart(self) -> None:
        self.close()
        self._state = DestinationState(self._folder)
        with sqlite3.connect(self._folder / "state.sqlite") as database:
            database.executescript(TABLES)
            self.content = dict(database.execute("SELECT uri, content FROM copy"))
        database.close()
        self.progress = self.state.progress()
        super().restart()

    def close(self) -> None:
        if self._state is not None:
            self._state.close()

    def _begin(self, actions: list[Action]) -> None:
        if any(isinstance(action, BeginBaseline) for action in actions):
            self.state.begin_baseline()
        super()._begin(actions)

    def _do(self, action: Action) -> None:
        match action:
            case Compare(resources=resources, at=at):
                differing, absent, *unproven = self.state.baseline.compare(resources, at)
                self._begin(self.follower.differing(differing, self.now, absent, *unproven))
            case FindUnlisted(at=at):
                unlisted, undecided = self.state.baseline.unlisted(at)
                self._begin(self.follower.unlisted(unlisted, self.now, undecided))
            case _:
                super()._do(action)

    def _apply(self, change: Change) -> None:
        held = self.state.find(change.uri)
        is_compared_away = (
            held is None
            and change.check is CheckMethod.COMPARE
            and change.change is ChangeType.DELETED
        )
        if is_compared_away or (held is not None and held.covers(change)):
            self._commit(change, None)
            self._keep([])
            return
        content = None
        if change.change is not ChangeType.DELETED:
            try:
                content, _ = self._content(change)
            except RsnotifyError as error:
                self._begin(self.follower.failed(change, error, self.now))
                return
        self._affect(change, content)

    def _content(self, change: Change) -> tuple[str, datetime]:
        content, sent = super()._content(change)
        if change.resource.hash not in (None, content):
            raise ContentMismatch(change.uri, "it has changed since")
        return content, sent

    def _affect(self, change: Change, content: str | None) -> None:
        line = (change.uri, change.at.isoformat(), change.change, content)

        def write(database: sqlite3.Connection) -> None:
            database.execute("INSERT INTO effects VALUES (?, ?, ?, ?)", line)
            database.execute("DELETE FROM copy WHERE uri = ?", (change.uri,))
            if content is not None:
                database.execute("INSERT INTO copy VALUES (?, ?)", (change.uri, content))

        self.state.transactions.apply_within(write)
        if self.random.random() < self.broken / 2:
            self.restart()
            return
        self.content.pop(change.uri, None)
        if content is not None:
            self.content[change.uri] = content
        self._commit(change, change)
        kind = change.change.value
        self._keep([ResourceState(change.uri, to_microseconds(change.at), kind, content)])

    def _keep(self, held: list[ResourceState]) -> None:
        self.state.commit(held, self.progress)

    def effects(self) -> Iterator[tuple[str, str, str, str]]:
        with sqlite3.connect(self._folder / "state.sqlite") as database:
            yield from database.execute("SELECT * FROM effects ORDER BY rowid")
        database.close()


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.too_slow])
@given(
    source=st.builds(Source, per_list=st.integers(1, 5), kept=st.sampled_from([0, 3, 100])),
    steps=HISTORIES,
    order=st.lists(NUMBERS, max_size=20),
    broken=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 2**16),
)
def test_three_transports_and_crashes_give_each_change_its_effect_once(
    source: Source, steps: list[tuple], order: list[int], broken: float, seed: int
) -> None:
    with TemporaryDirectory() as folder:
        destination = Keeper(source, Random(seed), Path(folder))
        destination.broken = broken
        single = Destination(source, Random(seed))
        play_both(Mixed(source, destination), single, steps, order)
        effects = list(destination.effects())
        destination.close()
    assert destination.content == single.content == source.state
    assert through(destination) == through(single)
    assert len(effects) == len(set(effects))
