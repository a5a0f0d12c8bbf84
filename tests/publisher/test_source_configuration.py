"""`rsnotify source --config`: several folders as one Source, and errors at the start."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from rsnotify.errors import RsnotifyError
from rsnotify.format.model import Document
from rsnotify.format.reader import read_document
from rsnotify_publisher import Publisher
from rsnotify_publisher.commands.source import source as command
from rsnotify_publisher.config import load_configuration
from rsnotify_publisher.folder.folder_publishing import several_folders
from rsnotify_publisher.source_documents import RESERVED
from tests.publisher.helpers import PORT, Start, eventually, put
from tests.publisher.published import uris

TWO_SETS = """
data = "state"
described_by = "https://about.example/source"

[options]
rotate = "500 changes or 1 h"
keep = "30 days, 1000 lists"
resource_list_every = 0.1

[[set]]
name = "texts"
folder = "t"
described_by = "https://about.example/texts"

[[set]]
name = "images"
folder = "i"
[set.options]
gzip = true
"""


@pytest.fixture
def folder_of_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, content in {"t": "text", "i": "image"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "one").write_text(content)
    (tmp_path / "t" / "in").mkdir()
    (tmp_path / "link").symlink_to("t")
    return tmp_path


def configure(folder_of_sets: Path, text: str = TWO_SETS) -> Path:
    file = folder_of_sets / "source.toml"
    file.write_text(text)
    return file


def read(url: str) -> Document:
    with urllib.request.urlopen(url) as answer:
        return read_document(answer.read())


def test_a_file_configures_several_sets(folder_of_sets: Path, source: Start, unused_tcp_port: int):
    process = source(
        None, "--config", str(configure(folder_of_sets)), "--port", str(unused_tcp_port)
    )
    host = f"http://127.0.0.1:{unused_tcp_port}/"
    listening = f"listening on {host}"
    assert process.ready == f"rsnotify source serving {host}texts/ (1 resource), {listening}"
    description = read(host + ".well-known/resourcesync")
    assert description.link("describedby") == "https://about.example/source"
    lists = uris(description)
    assert lists == [host + "texts/capabilitylist.xml", host + "images/capabilitylist.xml"]
    texts = read(lists[0])
    assert texts.link("up") == host + ".well-known/resourcesync"
    assert texts.link("describedby") == "https://about.example/texts"
    for name, content in {"texts": b"text", "images": b"image"}.items():
        with urllib.request.urlopen(f"{host}{name}/one") as answer:
            assert answer.read() == content
    put(folder_of_sets / "i" / "two", "another")

    def is_shown() -> bool:
        changed = read(host + "images/changelist.xml").resources
        return [entry.uri for entry in changed] == [host + "images/two"]

    eventually(is_shown)
    assert read(host + "texts/changelist.xml").resources == ()
    assert sorted(path.name for path in (folder_of_sets / "state").iterdir()) == ["images", "texts"]
    code, errors = process.end()
    assert (code, "Traceback" in errors) == (0, False)


def refused(folder_of_sets: Path, text: str) -> str:
    port = None if "port = " in text else 0
    return refusal(None, config=configure(folder_of_sets, text), port=port)


def refusal(folder: Path | None, **options: Any) -> str:
    with pytest.raises(RsnotifyError) as raised:
        command(folder, **{"port": 0, **options})
    assert "\n" not in str(raised.value)
    return str(raised.value)


SET = '[[set]]\nname = "{}"\nfolder = "{}"\n'
A, B = SET.format("a", "t"), SET.format("b", "i")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "prot = 1\n" + A,
            "source.toml, line 1: prot: there is no such setting; did you mean port?",
        ),
        (A + "fodler = 1", "line 4: [[set]] a: fodler: there is no such setting"),
        (
            "[options]\nrotat = 1\n" + A,
            "line 2: [options]: rotat: there is no such setting; did you mean rotate?",
        ),
        (
            A + "options = {kep = 1}",
            "[[set]] a: options: kep: there is no such setting; did you mean keep?",
        ),
        (A + 'options = {rotate = "often"}', "often"),
        (A + "options = {heartbeat = 0}", "heartbeat: it has to be a number above 0"),
        (
            A + B + "[set.options]\nheartbeat = 0",
            "line 8: [[set]] b: options: heartbeat: it has to be a number above 0",
        ),
        (
            "[options]\nresource_dump_every = 0\n" + A,
            'a number above 0 or a cron expression such as "cron: 0 3 * * *"',
        ),
        (A + 'options = {profile = "2.0"}', "2.0"),
        ("port = 70000\n" + A, "line 1: port: it has to be a whole number from"),
        (SET.format("../a", "t"), "name"),
        ('[[set]]\nname = "a"', "line 1: [[set]] a: folder: it is missing"),
        ("", "[[set]]"),
        ("port = ", "source.toml"),
        ('base_url = "ftp://x/"\n' + A, "ftp://x/"),
        ('hubs = ["amqp://x"]\n' + A, "is not the URL of a hub"),
        ('advertise = ["https://hub.example"]\n' + A, "no hub to push to"),
        ('hubs = ["http://hub"]\nadvertise = ["hub"]\n' + A, "'hub' is not the URL of a hub"),
        (SET.format("a", "none"), "is not a folder"),
        (A + SET.format("a", "i"), "overlap"),
        (
            f'base_url = "https://x.example/"\n{A}{B}base_url = "https://x.example/a/b/"\n',
            "overlap",
        ),
        (A + B + 'base_url = "http://127.0.0.1:1/a/b/"\n', "is not below"),
        ('data = "i/state"\n' + A + B, "would be published"),
        ('data = "."\n' + SET.format("t", "i") + SET.format("b", "t"), "would be published"),
        ('data = "t/one"\n' + SET.format("a", "i"), "would be published|written"),
        ('described_by = "about"\n' + A, "absolute URI"),
        (A + SET.format("b", "t"), "would both publish"),
        (SET.format("a", "t/in") + SET.format("b", "t"), "would both publish"),
        (A + SET.format("b", "link/in"), "would both publish"),
        (A + "options = {max_entries = 50_001}", "max_entries"),
        (A + "options = {max_bytes = 50_000_001}", "max_bytes"),
        ('base_url = "http://x.example/../t/"\n' + A, "`.` or `..`"),
        ('token = "a\\nb"\n' + A, "token"),
        ('token = "a secret"\nprot = 1\n' + A, "prot"),
        ('data = "t/one/state"\n' + SET.format("a", "i"), "state"),
    ],
)
def test_an_unusable_configuration_is_refused_in_one_sentence(
    folder_of_sets: Path, text: str, expected: str
):
    message = refused(folder_of_sets, text)
    assert "secret" not in message
    assert any(part in message for part in expected.split("|")), message


def test_an_unpublished_subfolder_may_be_a_set(folder_of_sets: Path):
    (folder_of_sets / "t" / ".hidden").mkdir()
    file = configure(folder_of_sets, A + SET.format("b", "t/.hidden"))
    _, folders = several_folders("http://127.0.0.1:1/", load_configuration(file))
    assert [folder.names.root.name for folder in folders] == ["t", ".hidden"]


def test_documents_that_cannot_be_written_are_refused(folder_of_sets: Path):
    (folder_of_sets / "state").mkdir()
    (folder_of_sets / "state" / "documents").write_text("in the way")
    with pytest.raises(RsnotifyError, match="documents is not a folder"):
        command(folder_of_sets / "t", data=folder_of_sets / "state", port=0)


def test_an_unreadable_settings_file_is_refused(folder_of_sets: Path):
    with pytest.raises(RsnotifyError, match="cannot read"):
        command(None, config=folder_of_sets / "none.toml", port=0)


def test_either_a_folder_or_a_file_is_required(folder_of_sets: Path):
    with pytest.raises(RsnotifyError, match="either a folder"):
        command(folder_of_sets / "t", config=configure(folder_of_sets), port=0)
    with pytest.raises(RsnotifyError, match="either a folder"):
        command(None, port=0)


def test_the_command_overrides_the_file_and_a_set_overrides_the_source(
    folder_of_sets: Path,
):
    file = configure(folder_of_sets, TWO_SETS + 'keep = "5 lists"\nheartbeat = 5')
    settings = load_configuration(file, port=1, options={"heartbeat": 7.0, "rotate": None})
    texts, images = map(settings.options_of, settings.sets)
    assert settings.port == 1
    assert (texts.heartbeat, images.heartbeat) == (7.0, 7.0)
    assert (texts.keep, images.keep) == ("30 days, 1000 lists", "5 lists")
    assert (texts.gzip, images.gzip) == (False, True)
    assert texts.rotate == images.rotate == "500 changes or 1 h"


def test_a_single_folder_is_configured_by_command_options(
    folder_of_sets: Path, source: Start, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RSNOTIFY_SOURCE_DESCRIBED_BY", "https://about.example/")
    process = source(folder_of_sets / "t", "--port", "0", "--rotate", "4 changes", "--gzip")
    offered = read(process.url + "capabilitylist.xml")
    assert offered.link("describedby") == "https://about.example/"
    for number in range(8):
        put(folder_of_sets / "t" / str(number), "x")
        process.wait_for_change("created", str(number))

    def closed() -> list[str]:
        archive = read(process.url + "changelist-archive.xml")
        return [entry.uri for entry in archive.resources]

    eventually(lambda: bool(closed()))
    assert closed()[0].endswith(".xml.gz")
    assert read(closed()[0]).resources[0].uri == process.url + "0"


def test_a_port_in_use_is_refused(folder_of_sets: Path, folder: Path):
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        assert f"port {port}: another program uses it" in refusal(folder, port=port)
        text = f"port = {port}\n{A}"
        assert f"port {port}" in refused(folder_of_sets, text)


# Errors of `rsnotify source`: one sentence, and exit code 2.


def test_a_second_process_for_the_same_folder_is_refused(folder: Path, source: Start):
    base = ("--base-url", "https://source.example/")
    first = source(folder, *PORT, *base)
    code, errors = source(folder, *PORT, *base).end()
    assert code == 2
    assert errors == (
        f"rsnotify: {folder} is being published by another rsnotify source, whose state is in "
        f"{folder}.rsnotify/source; stop it first\n"
    )
    first.kill()
    assert source(folder, *PORT, *base).ready, "the next one was refused after a crash"


def test_a_base_url_with_a_password_is_refused_without_showing_it(folder: Path):
    message = refusal(folder, base_url="http://user:secret@x/")
    assert "password" in message
    assert "secret" not in message


def test_state_with_another_base_url_is_refused(folder: Path, tmp_path: Path):
    Publisher(tmp_path / "state", "http://one.example/").is_empty()
    message = refusal(folder, data=tmp_path / "state", base_url="http://two.example/")
    assert "belongs to the Source http://one.example/" in message


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("base_url", "ftp://x/", "ftp://x/"),
        ("hub", ["amqp://x"], "is not the URL of a hub"),
        ("data", "data/state", "--data"),
        ("data", "file", "file"),
        ("resource_list_every", "often", "give a number of seconds above 0, or a cron expression"),
        ("resource_dump_every", "0", "give a number of seconds above 0"),
        ("resource_dump_every", "cron: 0 3 * *", "it has 4 fields instead of 5"),
        ("rotate", "500 changes or cron: 0 25 * * *", "higher than the maximum value (23)"),
        ("keep", "cron: 0 4 * * sun", "contains no limit; add one"),
    ],
)
def test_a_wrong_option_is_refused(folder: Path, option: str, value: Any, reason: str):
    (folder.parent / "file").touch()
    message = refusal(folder, **{option: folder.parent / value if option == "data" else value})
    assert message.startswith(option) or option in ("base_url", "hub", "data")
    assert reason in message


def test_a_missing_folder_or_a_reserved_name_is_refused(folder: Path, source: Start):
    assert "is not a folder" in refusal(folder / "none")
    for name in RESERVED:
        (folder / name).mkdir()
        assert f"{name} has the name of a ResourceSync document" in refusal(folder)
        (folder / name).rmdir()
    (folder / "changelist.xml").touch()
    code, errors = source(folder, *PORT).end()
    assert code == 2
    assert errors.startswith("rsnotify: ")
    assert errors.endswith(
        "changelist.xml has the name of a ResourceSync document; move or rename it\n"
    )
