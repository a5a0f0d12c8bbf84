"""The members of a Change List Index or the packages of a Change Dump stand newest first.

core §12.2 and §13.1 demand chronological order. What covers everything is not refused for its
order, where `from` and `until` tell which comes when.
"""

from __future__ import annotations

import io
import zipfile

import pytest

from tests.wild.documents import change_list, entry, index, md, member, sha256, urlset
from tests.wild.running import Copy, Folder, audited, follow_once, run_honest, run_right
from tests.wild.source import WildSource


@pytest.fixture(autouse=True)
def begun(source: WildSource) -> None:
    source.begin("a", "b", "c")


def history(source: WildSource) -> list[tuple[float, float, list[str], dict[str, bytes]]]:
    """Change the Source in three periods: each with its bounds, entries and contents."""
    periods = []
    told = [source.update("a", 100, b"a1", path="/a")]
    periods.append((5, 200, told, {"a": b"a1"}))
    source.file("a", b"a2", 300)
    told = [source.changed("a", "updated", 300, path="/a"), source.changed("b", "deleted", 310)]
    source.remove("b")
    periods.append((200, 400, told, {"a": b"a2"}))
    source.file("b", b"b, again", 500)
    source.remove("a")
    told = [source.changed("b", "created", 500, path="/b"), source.changed("a", "deleted", 510)]
    periods.append((400, 600, told, {"b": b"b, again"}))
    return periods


@pytest.mark.parametrize("dated", [True, False], ids=["with from and until", "without"])
async def test_an_index_of_change_lists(source: WildSource, copy: Copy, dated: bool) -> None:
    await follow_once(source, copy)
    members = []
    for number, (from_, until, entries, _) in enumerate(history(source)):
        name = f"changes-{number}.xml"
        source.put(name, change_list(entries, source.t(from_), source.t(until)))
        told = {"from_": source.t(from_), "until": source.t(until)} if dated else {}
        members.append(member(source.uri(name), **told))
    source.put("changelist.xml", index("changelist", members[::-1], from_=source.t(5)))
    outcome = await run_honest(source, copy)
    assert outcome.claims or not dated, outcome
    if not dated:
        advice = f"{source.uri('changelist.xml')} should state the from and until"
        assert any(advice in reason for reason in outcome.reasons), outcome
    if isinstance(copy, Folder):
        audit = await audited(source, copy.path)
        assert audit.code == (0 if dated else 2)
        assert dated or any(advice in reason for reason in audit.reasons), audit


async def test_an_index_whose_newest_member_is_open(source: WildSource, copy: Copy) -> None:
    await follow_once(source, copy)
    members = []
    for number, (from_, until, entries, _) in enumerate(history(source)):
        name, ends = f"changes-{number}.xml", None if number == 2 else source.t(until)
        source.put(name, change_list(entries, source.t(from_), ends))
        members.append(member(source.uri(name), from_=source.t(from_), until=ends))
    source.put("changelist.xml", index("changelist", members[::-1], from_=source.t(5)))
    await run_right(source, copy)


def package(entries: list[str], contents: dict[str, bytes], **told: object) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        about = md(capability="changedump-manifest", **told)  # type: ignore[arg-type]
        packed.writestr("manifest.xml", urlset(entries, about))
        for path, content in contents.items():
            packed.writestr(path, content)
    return file.getvalue()


@pytest.mark.parametrize("dated", [True, False], ids=["with from and until", "without"])
async def test_a_change_dump(source: WildSource, copy: Copy, dated: bool) -> None:
    source.offer(changelist=None, changedump="changedump.xml")
    about = md(capability="changedump", from_=source.t(5))
    source.put("changedump.xml", urlset([], about))
    await follow_once(source, copy)
    packages = []
    for number, (from_, until, entries, contents) in enumerate(history(source)):
        name = f"changes-{number}.zip"
        told = {"from_": source.t(from_), "until": source.t(until)}
        packed = package(entries, contents, **told)
        source.put(name, packed)
        packages.append(
            entry(
                source.uri(name),
                hash=sha256(packed),
                length=len(packed),
                type="application/zip",
                **(told if dated else {}),
            )
        )
    source.put("changedump.xml", urlset(packages[::-1], about))
    outcome = await run_honest(source, copy)
    assert outcome.claims or not dated, outcome
