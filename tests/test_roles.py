"""The tutorial and the pages for each role: their instructions work as described."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from rsnotify_hub_check.run import ALL
from tests.reader import ROOT, Reader, Story, section, stories

PAGES = [
    "docs/tutorial.md",
    "docs/repository.md",
    "docs/linked-data.md",
    "docs/aggregator.md",
    "docs/running-a-hub.md",
    "docs/implementing.md",
    "docs/backup.md",
]
STORIES = [story for page in PAGES for story in stories(page)]
STORIES += [section("publisher/README.md", "A Source in one file")]
#: What commands print, sooner or later.
SHOWS = {
    "cat copy/station1.txt": "on the hill",
    "cat copy/shopping": "Buy milk",
    "cat copy/records/1": "<#here>",
    "rsnotify follow --config sources.toml": "2 of 2 Sources level",
    """python -c "import sqlite3; print(*sqlite3.connect('index.sqlite3').execute("""
    """'SELECT uri FROM pages WHERE text MATCH ?', ('hill',)))\"""": "station2.txt",
    "cat copies/maps/maps/valley.ttl": "<a> <b> <c> .",
    "rsnotify follow http://127.0.0.1:8000/ copy2 --json": '"in_step":true',
    "python destination.py": "updated http://127.0.0.1",
    "cat copy/graphs/station1": "hasSimpleResult>",
    "curl --fail http://127.0.0.1:8000/resourcesync/iiif-last.json": '"type":"Update"',
    "curl --fail http://127.0.0.1:8000/resourcesync/ldes.ttl": "a as:Update",
    "curl --fail -G http://127.0.0.1:8010/sparql --data-urlencode"
    " 'query=SELECT * { ?s ?p ?o } LIMIT 9'": "http://www.w3.org/ns/sosa/",
}


@pytest.mark.parametrize("story", STORIES, ids=lambda one: f"{one.page}: {one.heading}")
def test_the_instructions_of_a_page_work(story: Story, tmp_path: Path):
    if shutil.which("curl") is None and any(one.startswith("curl") for one in story.commands):
        pytest.skip("there is no curl")
    # The tutorial lets the hub be away for a poll, which takes 10 seconds.
    with Reader(tmp_path / "here", environment={"RSNOTIFY_FOLLOW_POLL": "1"}) as reader:
        reader.do(story, SHOWS)


def test_a_hub_and_a_source_are_checked_as_their_pages_say(tmp_path: Path):
    known = {
        "https://hub.example": "http://127.0.0.1:8080",
        "https://source.example": "http://127.0.0.1:8000",
    }
    with Reader(tmp_path / "here", known) as reader:
        reader.write("data.txt", "a resource")
        reader.start("rsnotify hub --allow-private-addresses")
        reader.start("rsnotify source . --base-url http://127.0.0.1:8000/")
        for page in ("hub_check", "validation"):
            (story,) = stories(f"extensions/{page}/README.md")
            for command in story.commands:
                reader.do_once(command)
        for name in ("hub.xml", "source.xml", "source.svg"):
            assert (reader.folder / name).stat().st_size > 0
        reader.end()


def test_the_page_counts_the_checks_of_a_hub():
    page = (ROOT / "extensions/hub_check/README.md").read_text()
    rows = re.findall(r"^\| ([\d., ]+) \| (\d+) \|", page, re.MULTILINE)
    counted = {sections: int(count) for sections, count in rows}
    sections = [check.section for check in ALL]
    assert counted == {row: sum(sections.count(one) for one in row.split(", ")) for row in counted}
    assert sum(counted.values()) == len(ALL)


def test_expected_output_belongs_to_existing_commands():
    assert set(SHOWS) <= {command for story in STORIES for command in story.commands}
