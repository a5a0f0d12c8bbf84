"""What `rsnotify source` cannot work with: one sentence, and exit code 2."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from rsnotify.errors import RsnotifyError
from rsnotify_publisher import Publisher
from rsnotify_publisher.commands.source import source as command
from rsnotify_publisher.source_documents import RESERVED
from tests.publisher.helpers import PORT, Start


def test_what_cannot_work_is_one_sentence_and_exit_code_2(folder: Path, source: Start) -> None:
    (folder / "changelist.xml").touch()
    code, errors = source(folder, *PORT).end()
    assert code == 2
    assert errors.startswith("rsnotify: ")
    assert errors.endswith(
        "changelist.xml has the name of a ResourceSync document; move or rename it\n"
    )


def refused(folder: Path, **options: Any) -> str:
    """Return the sentence with which the command refuses to start."""
    with pytest.raises(RsnotifyError) as raised:
        command(folder, **{"port": 0, **options})
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_second_process_for_the_same_folder_is_refused(folder: Path, source: Start) -> None:
    base = ("--base-url", "https://source.example/")
    first = source(folder, *PORT, *base)
    code, errors = source(folder, *PORT, *base).end()
    assert code == 2
    assert errors == (
        f"rsnotify: {folder} is being published by another rsnotify source, whose state is in "
        f"{folder}.rsnotify/source; stop that one first\n"
    )
    first.kill()
    assert source(folder, *PORT, *base).ready, "the next one was refused after a crash"


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_a_name_that_a_document_has_is_refused(name: str, folder: Path) -> None:
    (folder / name).mkdir()
    assert f"{name} has the name of a ResourceSync document" in refused(folder)


def test_a_missing_folder_is_refused(folder: Path) -> None:
    assert "is not a folder" in refused(folder / "none")


@pytest.mark.parametrize("url", ["ftp://x/", "example.org", "http://x/?q"])
def test_a_bad_base_url_is_refused(url: str, folder: Path) -> None:
    assert url in refused(folder, base_url=url)


def test_a_base_url_with_a_password_is_refused_without_showing_it(folder: Path) -> None:
    message = refused(folder, base_url="http://user:secret@x/")
    assert "password" in message
    assert "secret" not in message


def test_a_bad_hub_is_refused(folder: Path) -> None:
    assert "is no hub" in refused(folder, hub=["amqp://x"])


def test_a_port_in_use_is_refused(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        assert f"port {port}: Address already in use" in refused(folder, port=port)


def test_a_state_inside_the_folder_is_refused(folder: Path) -> None:
    assert "--data" in refused(folder, data=folder / "state")


def test_a_state_that_cannot_be_written_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "file" in refused(folder, data=tmp_path / "file")


def test_a_state_of_another_base_url_is_refused(folder: Path, tmp_path: Path) -> None:
    Publisher(tmp_path / "state", "http://one.example/").is_empty()
    message = refused(folder, data=tmp_path / "state", base_url="http://two.example/")
    assert "belongs to the Source http://one.example/" in message


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("resource_list_every", "often", "give seconds above 0, or a cron expression"),
        ("resource_dump_every", "0", "give seconds above 0"),
        ("resource_dump_every", "cron: 0 3 * *", "it has 4 fields instead of 5"),
        ("rotate", "500 changes or cron: 0 25 * * *", "higher than the maximum value (23)"),
        ("keep", "cron: 0 4 * * sun", "add a limit to it"),
    ],
)
def test_a_wrong_schedule_is_refused(folder: Path, option: str, value: str, reason: str) -> None:
    message = refused(folder, **{option: value})
    assert message.startswith(option)
    assert reason in message


def test_a_schedule_of_a_wrong_type_is_refused(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "source.toml"
    config.write_text("[options]\nresource_dump_every = 0\n")
    with pytest.raises(RsnotifyError) as raised:
        command(config=config)
    assert 'a number above 0 or a cron expression such as "cron: 0 3 * * *"' in str(raised.value)
