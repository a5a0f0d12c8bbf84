"""Lines of many Sources in one log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from rsnotify_subscriber.commands.follow_fleet import name_sources
from rsnotify_subscriber.fleet.fleet import SOURCE_NAME


@pytest.fixture
def of_a_source() -> Iterator[None]:
    token = SOURCE_NAME.set("https://a.example/100%d")
    with name_sources():
        yield
    SOURCE_NAME.reset(token)


@pytest.mark.usefixtures("of_a_source")
def test_a_line_begins_with_the_name_of_its_source(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("a").warning("%d of %s", 3, "5%")
    logging.getLogger("a").warning("100%")
    assert caplog.messages == ["https://a.example/100%d: 3 of 5%", "https://a.example/100%d: 100%"]


@pytest.mark.usefixtures("of_a_source")
def test_a_wrong_log_call_of_a_handler_does_not_end_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caplog.handler, "level", logging.CRITICAL)  # it fails at such a line
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logging.getLogger("a").warning("%d", "no number")
