"""Fixtures: our Source and Destination as processes, and other people's beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.clients import Node, ResyncClient
from tests.interop.site import Site, served
from tests.publisher.conftest import hub  # noqa: F401 - a fixture
from tests.publisher.helpers import SourceProcess


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir()
    return made


@pytest.fixture
def source(folder: Path) -> Iterator[Callable[..., SourceProcess]]:
    started: list[SourceProcess] = []

    def start(*options: str) -> SourceProcess:
        process = SourceProcess(folder, "--port", "0", *options)
        started.append(process)
        return process

    yield start
    for process in started:
        process.end()


@pytest.fixture
def client(tmp_path: Path) -> ResyncClient:
    """The Destination that PyPI's `resync` has."""
    return ResyncClient(tmp_path / "client" / "copy")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A Source whose documents `resync-build` writes."""
    folder = tmp_path / "site"
    folder.mkdir()
    with served(folder) as url:
        yield Site(folder, url)


@pytest.fixture
def node() -> Node:
    """JavaScript, with the npm packages `sitemap` and `sitemapper`."""
    return Node("sitemap", "sitemapper")


@pytest.fixture
def ldes_node() -> Node:
    """JavaScript, with the npm package `ldes-client`."""
    return Node("ldes-client")
