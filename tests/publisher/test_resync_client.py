"""The client of PyPI's `resync` follows a running `rsnotify source`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from rsnotify.reading import read_document
from tests.publisher.helpers import PATIENCE, SourceProcess, eventually


def resync(copy: Path, *arguments: str) -> str:
    """Run `resync-sync`, which keeps its state in the folder it runs in."""
    command = [str(Path(sys.executable).with_name("resync-sync")), *arguments]
    done = subprocess.run(
        command, cwd=copy.parent, capture_output=True, text=True, timeout=PATIENCE * 2
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_resync_sync_follows_a_source_with_compressed_documents(
    folder: Path, tmp_path: Path, source: Callable[..., SourceProcess]
) -> None:
    process = source(folder, "--port", "0", "--gzip", "--rotate", "4 changes")
    copy = tmp_path / "client" / "copy"
    copy.mkdir(parents=True)
    for number in range(10):
        (folder / str(number)).write_text(f"{number}")
        process.told("created", str(number))

    def archived() -> list[str]:
        archive = read_document(process.get("changelist-archive.xml"))
        return [entry.uri for entry in archive.resources]

    eventually(lambda: len(archived()) > 1)
    here = [process.url.rstrip("/"), str(copy)]
    for closed in archived():
        # It cannot inflate, and needs not to.
        assert closed.endswith(".xml.gz")
        resync(copy, "--incremental", "--from", "2000", "--changelist-uri", closed, *here)
    resync(copy, "--incremental", *here)
    assert content(copy) == content(folder)


def test_resync_sync_follows_a_set_of_a_source_of_two(
    tmp_path: Path, source: Callable[..., SourceProcess], unused_tcp_port: int
) -> None:
    for name in ("texts", "images"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "one").write_text(name)
    file = tmp_path / "source.toml"
    sets = (
        f'[[set]]\nname = "{name}"\nfolder = "{tmp_path / name}"\n' for name in ("texts", "images")
    )
    file.write_text(f'port = {unused_tcp_port}\ndata = "{tmp_path / "state"}"\n' + "".join(sets))
    source(None, "--config", str(file))
    host = f"http://127.0.0.1:{unused_tcp_port}"
    for name in ("texts", "images"):
        copy = tmp_path / "client" / name
        copy.mkdir(parents=True)
        resync(copy, "--baseline", "--hash", "sha-256", f"{host}/{name}", str(copy))
        assert content(copy) == content(tmp_path / name)
        # The way that it has for a Source of several sets.
        listed = ["--capabilitylist", f"{host}/{name}/capabilitylist.xml"]
        audit = resync(copy, "--audit", *listed, f"{host}/{name}", str(copy))
        assert "IN SYNC" in audit
        assert "NOT IN SYNC" not in audit


def test_resync_sync_follows(
    folder: Path, tmp_path: Path, source: Callable[..., SourceProcess]
) -> None:
    (folder / "sub").mkdir()
    for number in range(10):
        (folder / "sub" / f"{number}.ttl").write_text(f"<a> <b> {number} .")
    process = source(folder, "--port", "0", "--resource-list-every", "0.1")
    copy = tmp_path / "client" / "copy"
    copy.mkdir(parents=True)
    here = [process.url.rstrip("/"), str(copy)]

    resync(copy, "--baseline", "--hash", "sha-256", *here)
    assert content(copy) == content(folder)
    audit = resync(copy, "--audit", "--hash", "sha-256", *here)
    assert "IN SYNC" in audit
    assert "NOT IN SYNC" not in audit

    (folder / "new.ttl").write_text("<new> <b> <c> .")
    (folder / "sub" / "1.ttl").write_text("<changed> <b> <c> .")
    (folder / "sub" / "2.ttl").unlink()
    for change in (("created", "new.ttl"), ("updated", "sub/1.ttl"), ("deleted", "sub/2.ttl")):
        process.told(*change)
    # Its --hash does not work with --incremental: ChangeList has no hashes().
    resync(copy, "--incremental", "--delete", *here)
    assert content(copy) == content(folder)

    eventually(lambda: b"new.ttl" in process.get("resourcelist.xml"))
    audit = resync(copy, "--audit", "--hash", "sha-256", *here)
    assert "NOT IN SYNC" not in audit
