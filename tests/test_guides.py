"""The guides that need a database or a web server: their instructions work as described."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.ports import free_port
from tests.publisher.helpers import eventually
from tests.reader import ROOT, TOKEN, Reader, Story, fences_of, stories, with_secrets
from tests.test_application_servers import server


def story_of(page: str) -> Story:
    (story,) = stories(page)
    return story


def test_a_django_project_publishes_what_it_commits(tmp_path: Path, postgresql: str):
    url = urlsplit(postgresql)
    environment = {
        "PGHOST": str(url.hostname),
        "PGPORT": str(url.port),
        "PGUSER": str(url.username),
        "HOME": str(tmp_path),
    }
    known = {'"library"': f'"{url.path[1:]}"'}
    with Reader(tmp_path / "here", known, environment) as reader:
        reader.do(story_of("docs/django.md"), {})


def test_an_aggregator_keeps_its_copy_in_postgresql(tmp_path: Path, postgresql: str):
    known = {"postgresql://localhost/example": postgresql}
    with Reader(tmp_path / "here", known) as reader:
        reader.do(story_of("docs/aggregator-postgresql.md"), {})


# A hub behind nginx

HUB = "docs/hub-behind-nginx.md"


@pytest.fixture
def behind_nginx(tmp_path: Path) -> Iterator[Reader]:
    """A reader whose hub runs behind nginx, with a certificate for localhost."""
    port = free_port()
    known = {
        "hub.example": f"localhost:{port}",
        "https://source.example/data/": "http://localhost:8000/",
    }
    environment = {
        "SSL_CERT_FILE": str(tmp_path / "here/hub.pem"),
        "CURL_CA_BUNDLE": str(tmp_path / "here/hub.pem"),
        "RSNOTIFY_ADMIN_TOKEN": TOKEN,
    }
    fences = dict(fences_of((ROOT / HUB).read_text()))
    with Reader(tmp_path / "here", known, environment) as reader:
        reader.do_once(story_of(HUB).commands[8])
        reader.write("hub.toml", with_secrets(fences["toml"]))
        reader.start("rsnotify hub --config hub.toml --port 8080")
        recipe = fences["nginx"].replace("/etc/ssl/hub.example", f"{reader.folder}/hub")
        recipe = recipe.replace("server_name hub.example", "server_name localhost")
        recipe = reader.adapt(recipe.replace("listen 443", f"listen 127.0.0.1:{port}"))
        with server("nginx", recipe, tmp_path):
            yield reader


def test_a_hub_serves_sources_and_destinations_through_nginx(behind_nginx: Reader):
    reader = behind_nginx
    commands = story_of(HUB).commands
    eventually(lambda: "ready" in reader.run(commands[2]).lower())
    endpoints = reader.run(commands[3])
    assert '"https://localhost:' in endpoints
    assert '"wss://localhost:' in endpoints
    assert "http://" not in endpoints
    reader.do_once(commands[4])
    (reader.folder / "data").mkdir()
    (reader.folder / "data/one.txt").write_text("one")
    reader.start(commands[5].replace("TOKEN", TOKEN))
    reader.start(commands[6], re.compile(r"push up by wss://"))
    (reader.folder / "data/one.txt").write_text("two")
    copy = reader.folder / "copy/one.txt"
    eventually(lambda: copy.read_text() == "two")
    assert "401" in reader.run(commands[7])
    reader.end()


def test_an_authority_of_ones_own_signs_the_certificate(tmp_path: Path):
    with Reader(tmp_path / "here") as reader:
        for command in story_of(HUB).commands[9:]:
            reader.do_once(command)
        reader.do_once(
            "openssl verify -x509_strict -CAfile authority.pem -verify_hostname localhost hub.pem"
        )
