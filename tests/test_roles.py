"""The pages for each role: whoever does what they say, section by section, gets what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reader import Reader, Story, stories

PAGES = ["repository", "linked-data", "aggregator", "running-a-hub", "implementing"]
STORIES = [story for page in PAGES for story in stories(f"docs/{page}.md")]
#: What commands print, sooner or later.
SHOWS = {
    "cat copy/station1.txt": "on the hill",
    "cat copy/records/1": "<#here>",
    "python destination.py": "updated http://127.0.0.1",
    "cat copy/graphs/station1": "hasSimpleResult>",
    "curl --fail -G http://127.0.0.1:8010/sparql --data-urlencode"
    " 'query=SELECT * { ?s ?p ?o } LIMIT 9'": "http://www.w3.org/ns/sosa/",
}


@pytest.mark.parametrize("story", STORIES, ids=lambda one: f"{one.page}: {one.heading}")
def test_a_role(story: Story, tmp_path: Path) -> None:
    with Reader(tmp_path / "here") as reader:
        reader.do(story, SHOWS)


def test_what_commands_have_to_print_is_of_commands_that_there_are() -> None:
    assert set(SHOWS) <= {command for story in STORIES for command in story.commands}
