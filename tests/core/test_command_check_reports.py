"""Results of checks in files: JUnit XML as Ant's and Jenkins' schemas have it, and badges."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rsnotify.errors import ConfigurationError, WrongOption
from rsnotify.runtime.command_check_reports import (
    Badge,
    Color,
    Outcome,
    ReportedCheck,
    check_badge_file,
    junit_xml,
    write_failure,
    write_reports,
)

CHECKS = [
    ReportedCheck("http://a.example/<x>", "fine", seconds=0.5),
    ReportedCheck("http://a.example/<x>", "wrong", Outcome.FAILED, "core §7", 'one & "two"\nmore'),
    ReportedCheck("http://a.example/b", "advice", Outcome.SKIPPED, "core §8", "should\x1b[1m"),
    ReportedCheck("http://a.example/b", "away", Outcome.ERROR, "", "no answer"),
]
#: The attributes of a suite that the schema of Ant requires, and `skipped`.
SUITE = {
    *("name", "package", "id", "hostname", "timestamp", "time"),
    *("tests", "failures", "errors", "skipped"),
}


def test_each_subject_is_a_suite_with_its_counts():
    root = ElementTree.fromstring(junit_xml("rsnotify 1", CHECKS, "2026-01-01T12:00:00"))
    assert (root.tag, root.attrib) == ("testsuites", {})
    first, second = root
    assert first.attrib.keys() == second.attrib.keys() == SUITE
    assert [suite.get("name") for suite in root] == ["http://a.example/<x>", "http://a.example/b"]
    counted = [
        [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] for suite in root
    ]
    assert counted == [["2", "1", "0", "0"], ["2", "0", "1", "1"]]
    assert first.get("time") == "0.500"
    order = ["properties", "testcase", "testcase", "system-out", "system-err"]
    assert [child.tag for child in first] == order


def test_a_case_has_at_most_one_result_with_what_every_schema_allows():
    root = ElementTree.fromstring(junit_xml("rsnotify 1", CHECKS, "2026-01-01T12:00:00"))
    cases = list(root.iter("testcase"))
    assert [case.keys() for case in cases] == [["name", "classname", "time"]] * 4
    fine, wrong, advice, away = cases
    assert list(fine) == []
    (failure,) = wrong
    assert (failure.tag, failure.text) == ("failure", 'one & "two"\nmore')
    assert failure.attrib == {"type": "core §7", "message": 'one & "two"'}
    (skipped,) = advice
    # By junit-4 it has no attributes, and no document may contain an escape character.
    assert (skipped.tag, skipped.attrib, skipped.text) == ("skipped", {}, "should\ufffd[1m")
    assert away[0].tag == "error"


def test_a_badge_is_a_picture_that_loads_nothing_or_json_for_an_endpoint(tmp_path: Path):
    badge = Badge("ResourceSync", "3 <errors>", Color.BAD)
    for name in ("badge.svg", "badge.json"):
        write_reports([], badge, None, tmp_path / name)
    root = ElementTree.fromstring((tmp_path / "badge.svg").read_bytes())
    texts = [element.text for element in root.iter() if element.tag.endswith("}text")]
    assert texts == ["ResourceSync", "3 <errors>"]
    assert (tmp_path / "badge.svg").read_text().count("http") == 1  # the namespace
    assert json.loads((tmp_path / "badge.json").read_bytes()) == {
        "schemaVersion": 1,
        "label": "ResourceSync",
        "message": "3 <errors>",
        "color": "red",
    }


def test_what_could_not_be_checked_replaces_older_results(tmp_path: Path):
    junit, badge = tmp_path / "results.xml", tmp_path / "badge.json"
    write_reports(CHECKS, Badge("hub", "conforms", Color.GOOD), junit, badge)
    write_failure("hub", "http://a.example/", "connection refused", junit, badge)
    (case,) = ElementTree.fromstring(junit.read_bytes()).iter("testcase")
    assert case[0].get("message") == "connection refused"
    assert json.loads(badge.read_bytes())["message"] == "not checked"


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path):
    with pytest.raises(WrongOption, match="is not an"):
        check_badge_file(tmp_path / "badge.png")
    with pytest.raises(ConfigurationError, match="cannot be written: it does not exist"):
        write_reports([], Badge("a", "b", Color.GOOD), tmp_path / "no" / "results.xml", None)
