"""Random histories of two resources, in lists with all kinds of datetimes: `audit` beside `follow`.

The Resource List describes one instant of the history exactly. Datetimes may be coarse, missing, or
those of restored files; hashes may be missing; a list may be closed, or begin with the newest entry
if it has any datetimes.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from tests.examples_count import examples
from tests.wild.documents import change_list, days, entry, index, member, seconds
from tests.wild.running import Folder, assert_honest, audited, follow_once
from tests.wild.source import Source

DAY = datetime(2025, 6, 11, tzinfo=UTC)
BEFORE = DAY - timedelta(days=4)
MINUTES = 3 * 24 * 60

Write = Callable[[datetime], datetime | str]
WRITES: list[Write] = [lambda moment: moment, seconds, days]


class History:
    """The versions of `a` and `b`, their changes, and both lists of them."""

    def __init__(self, source: Source, random: Random) -> None:
        self._source, self._random = source, random
        self._held = {name: name.encode() for name in "ab"}
        self._modified = dict.fromkeys("ab", BEFORE)
        self.versions = {name: {content} for name, content in self._held.items()}
        self._changes: list[tuple[datetime, str]] = []
        self._write = random.choice(WRITES)
        self._styles = random.choice([["datetime"], ["lastmod"], ["datetime", "lastmod"], []])
        self._is_hashed = random.random() < 0.5
        moments = sorted(random.sample(range(MINUTES), 4))
        listed = random.randrange(MINUTES)
        for moment in moments:
            if moment >= listed:
                self._list_resources(DAY + timedelta(minutes=listed))
                listed = MINUTES
            self._change(DAY + timedelta(minutes=moment, seconds=random.choice([0, 20.5])))
        if listed < MINUTES:
            self._list_resources(DAY + timedelta(minutes=listed))
        self._list_changes()
        for name, content in self._held.items():
            source.file(name, content, self._modified[name])

    def _list_resources(self, at: datetime) -> None:
        dated = self._random.random() < 0.5
        hashed = self._random.random() < 0.7
        entries = [
            entry(
                self._source.uri(name),
                content=content if hashed else None,
                lastmod=self._write(self._modified[name]) if dated else None,
            )
            for name, content in self._held.items()
        ]
        self._source.list_entries(*entries, at=at)

    def _change(self, at: datetime) -> None:
        random, name = self._random, self._random.choice("ab")
        kind, modified = "updated" if name in self._held else "created", at
        if name in self._held and random.random() < 0.3:
            kind, modified = "deleted", random.choice([at, self._modified[name]])
            del self._held[name]
        else:
            known = sorted(self.versions[name])
            content = random.choice([*known, f"{name} at {at}".encode()])
            if random.random() < 0.2:
                modified = self._modified[name] - timedelta(days=2)
            self._held[name], self._modified[name] = content, modified
            self.versions[name].add(content)
        times = {"datetime": self._write(at), "lastmod": self._write(modified)}
        stated = {style: times[style] for style in self._styles}
        told = self._held.get(name) if self._is_hashed else None
        changed = entry(self._source.uri(name), kind, content=told, **stated)
        self._changes.append((at, changed))

    def _list_changes(self) -> None:
        source, random = self._source, self._random
        is_reversed = bool(self._styles) and random.random() < 0.2
        begins = random.choice([BEFORE, DAY, self._changes[0][0] - timedelta(minutes=1)])
        closed = DAY + timedelta(minutes=random.randrange(MINUTES))
        entries = [told for _, told in self._changes]
        if is_reversed or closed < begins or random.random() < 0.5:
            source.list_changes(*(entries[::-1] if is_reversed else entries), from_=begins)
            return
        parts: list[list[str]] = [[], []]
        for at, told in self._changes:
            parts[at > closed].append(told)
        source.put("1.xml", change_list(parts[0], begins, closed))
        source.put("2.xml", change_list(parts[1], closed))
        members = [
            member(source.uri("1.xml"), from_=begins, until=closed),
            member(source.uri("2.xml"), from_=closed),
        ]
        source.put("changelist.xml", index("changelist", members, from_=begins))


def fill(folder: Path, contents: dict[str, bytes]) -> Path:
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


#: Histories that audits have judged wrongly.
MISJUDGED = {19, 35}


@pytest.mark.parametrize("seed", sorted(MISJUDGED.union(range(examples(8)))))
async def test_an_audit_agrees_with_the_follower_and_the_truth(
    source: Source, tmp_path: Path, seed: int
):
    source.offer()
    history = History(source, Random(seed))
    copy = Folder(tmp_path / "followed")
    outcome = await follow_once(source, copy)
    assert_honest(copy, source, outcome)
    right = await audited(source, fill(tmp_path / "right", source.resources))
    assert right.code != 1, right
    for name, versions in history.versions.items():
        wrong = versions - {source.resources.get(name)}
        for number, content in enumerate(sorted(wrong)):
            folder = fill(tmp_path / f"{name}{number}", {**source.resources, name: content})
            assert_honest(folder, source, await audited(source, folder))
