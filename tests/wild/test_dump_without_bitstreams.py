"""A Change Dump lacks the bitstreams of versions that were gone before they could be packed.

Core §13.2 wants one for every creation and update. A Source that packs content after the change, as
ours does without `content=`, cannot always have it. Its entries have no `path` then.
"""

from __future__ import annotations

import io
import zipfile

from tests.wild.documents import entry, md, sha256, urlset
from tests.wild.running import Copy, follow_once, run_honest
from tests.wild.source import WildSource


def package(source: WildSource, manifest: bytes, members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as written:
        written.writestr("manifest.xml", manifest)
        for name, content in members.items():
            written.writestr(name, content)
    return file.getvalue()


async def test_they_are_fetched_or_replaced_by_later_entries(
    source: WildSource, copy: Copy
) -> None:
    for name in ("twice", "later", "kept"):
        source.file(name, b"old", -1000)
    source.list_resources()
    source.offer(changelist=None, changedump="changedump.xml")
    source.put("changedump.xml", urlset([], md(capability="changedump", from_=source.t(5))))
    await follow_once(source, copy)
    source.file("twice", b"second", 61)
    source.file("later", b"changed again after the dump", 90)
    source.file("kept", b"new", 63)
    changes = [
        entry(source.uri("twice"), "updated", datetime=source.t(60), hash=sha256(b"first")),
        entry(
            source.uri("twice"), "updated", datetime=source.t(61), hash=sha256(b"second"), path="/1"
        ),
        entry(source.uri("gone"), "created", datetime=source.t(62), hash=sha256(b"gone")),
        entry(source.uri("kept"), "updated", datetime=source.t(63), hash=sha256(b"new"), path="/2"),
        entry(source.uri("later"), "updated", datetime=source.t(64), hash=sha256(b"a version")),
        entry(source.uri("gone"), "deleted", datetime=source.t(65)),
    ]
    covered = {"from_": source.t(5), "until": source.t(70)}
    manifest = urlset(changes, md(capability="changedump-manifest", **covered))
    source.put("1.zip", package(source, manifest, {"1": b"second", "2": b"new"}))
    one = entry(source.uri("1.zip"), type="application/zip", **covered)
    source.put("changedump.xml", urlset([one], md(capability="changedump", from_=source.t(5))))
    source.forget()
    outcome = await run_honest(source, copy)
    files = copy.files()
    assert files["twice"] == b"second"
    assert files["kept"] == b"new"
    assert "gone" not in files
    # No document says what `later` is now: the dump's entry has another hash.
    assert files["later"] == source.resources["later"] or not outcome.claims
    assert not source.requests("twice")
    assert not source.requests("kept")
