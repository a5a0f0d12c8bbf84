"""What is right is not refused: documents of our own, and the specifications' examples."""

from __future__ import annotations

import pytest

from docs.hooks import reference
from rsnotify.format.writer import Profile
from rsnotify_validation import RULES, Validator, validate
from rsnotify_validation.kinds import KINDS
from tests.core.validation.broken import BREAKS
from tests.core.validation.examples import SPECIFICATIONS, examples
from tests.core.validation.valid import CHANGE_LIST_1_1, UP, VALID, urlset

#: The examples that break a rule, and which. The walkthrough (1 to 8) leaves out what the
#: sections later ask for; 9 to 11 are no Sitemaps; 27 has digests that are not hexadecimal;
#: in Archives, 2.1 has a type that core §7 does not define there, and 6.1 two overlapping
#: weeks, by a slip in the year.
DEFECTS = {
    "core 1": ["resourcelist-up-missing"],
    "core 2": ["resourcelist-up-missing"],
    "core 3": ["changelist-up-missing"],
    "core 4": [
        "resourcedump-up-missing",
        "resourcedump-entry-type-missing",
        "resourcedump-entry-length-missing",
    ],
    "core 5": [
        "resourcedump-manifest-up-missing",
        *["resourcedump-manifest-entry-type-missing"] * 2,
    ],
    "core 8": ["resourcelist-index-up-missing"],
    "core 9": ["root-element"],
    "core 10": ["not-well-formed"],
    "core 11": ["not-well-formed"],
    "core 27": ["hash-syntax"] * 4,
    "archives 2.1": ["document-link-attribute"],
    "archives 6.1": ["entry-interval-overlap"],
}
BOTH = pytest.mark.parametrize("spec", list(Profile), ids=str)


def rules(document: str | bytes, spec: Profile = Profile.V1_1) -> list[str]:
    data = document.encode() if isinstance(document, str) else document
    return [finding.rule for finding in validate(data, spec=spec)]


@BOTH
@pytest.mark.parametrize("kind", VALID)
def test_a_valid_document_of_each_kind_is_found_valid(kind: str, spec: Profile) -> None:
    assert rules(VALID[kind], spec) == []


def test_there_is_a_valid_document_of_each_kind() -> None:
    assert set(VALID) == {kind.id for kind in KINDS}


@BOTH
def test_the_examples_of_the_specifications_have_the_known_defects_and_no_other(
    spec: Profile,
) -> None:
    # Not parametrised: in a fresh clone the specifications are not at hand.
    found = {name: rules(document, spec) for name, document in examples()}
    assert {name: broken for name, broken in found.items() if broken} == (DEFECTS if found else {})


def test_every_example_of_the_specifications_is_checked_if_they_are_present() -> None:
    found = [name for name, _ in examples()]
    assert len(found) == (33 + 7 if SPECIFICATIONS.exists() else 0)
    assert len(set(found)) == len(found)


def test_version_1_1_has_a_datetime_for_changes_and_does_not_check_lastmod() -> None:
    assert rules(CHANGE_LIST_1_1) == []
    assert set(rules(CHANGE_LIST_1_1, Profile.V1_0)) == {
        "datetime-not-in-1.0",
        "lastmod-outside",
        "changelist-entry-lastmod-missing",
    }


def test_foreign_elements_and_attributes_are_allowed_anywhere() -> None:
    document = VALID["resourcelist"].replace("<urlset ", '<urlset xmlns:x="urn:x" x:a="1" ')
    document = document.replace(
        "<rs:md capability", '<x:y><url/><x:z/></x:y><rs:md x:b="" capability'
    )
    document = document.replace("<loc>", '<x:y href=""/><loc>')
    assert rules(document) == []


def test_the_rs_md_may_come_after_the_entries() -> None:
    opening, md, rest = VALID["changelist"].partition('<rs:md capability="changelist"')
    head, _, entries = rest.partition("/>\n")
    moved = opening + entries.replace("</urlset>", f"{md}{head}/>\n</urlset>")
    assert rules(moved) == []
    assert rules(moved.replace('change="created"', "")) == ["changelist-entry-change-missing"]


def test_a_plain_sitemap_is_valid_with_a_warning() -> None:
    (finding,) = validate(urlset("<url><loc>http://example.com/</loc></url>\n").encode())
    assert (finding.rule, finding.is_error) == ("plain-sitemap", False)


def test_an_empty_list_is_valid() -> None:
    head = '<rs:md capability="changelist" from="2013-01-03T00:00:00Z"/>\n'
    assert rules(urlset(UP + head)) == []


def test_documents_of_other_specifications_are_checked_by_the_common_rules_alone() -> None:
    head = '<rs:md capability="change-notification" from="2013-01-03T00:00:00Z"/>\n'
    assert rules(urlset(head + "<url><loc>http://example.com/</loc></url>")) == []
    assert rules(urlset(head + "<url/>")) == ["loc-missing"]


@pytest.mark.parametrize("coarse", ["2013", "2013-01", "2013-01-03", "2013-01-03T11:00+00:00"])
def test_coarse_datetimes_are_compared_only_as_far_as_they_are_written(coarse: str) -> None:
    document = VALID["changelist"].replace("2013-01-03T12:00:00Z", coarse)
    assert rules(document, Profile.V1_0) == ["datetime-form"]


@pytest.mark.parametrize("encoding", ["UTF-16", "ISO-8859-1", "US-ASCII"])
def test_any_encoding_that_the_document_declares_is_read(encoding: str) -> None:
    document = VALID["resourcelist"].replace("UTF-8", encoding)
    assert rules(document.encode(encoding)) == []


def test_it_does_not_matter_in_which_pieces_a_document_arrives() -> None:
    data = VALID["changelist"].replace("created", "made").encode()
    validator = Validator()
    found = [one for at in range(len(data)) for one in validator.feed(data[at : at + 1])]
    found += validator.close()
    assert [finding.rule for finding in found] == ["change-value"]
    assert found == validate(data)


def test_a_source_description_may_name_the_framework_channel() -> None:
    link = '<rs:ln rel="monitor-group" href="http://example.com/framework.xml"/>\n'
    hub = '<rs:ln rel="hub" href="wss://hub.example.com/ws"/>\n'
    by_link = VALID["description"].replace("<rs:md", link + hub + "<rs:md", 1)
    assert rules(by_link) == []
    entry = (
        "<url><loc>http://example.com/framework.xml</loc>"
        f'<rs:md capability="framework-notification"/>{hub}</url>\n</urlset>'
    )
    assert rules(VALID["description"].replace("</urlset>", entry)) == []


# The reference lists the rules that there are.


def test_the_page_shows_every_rule_once() -> None:
    page = reference.validation_rules().splitlines()
    for rule in RULES.values():
        row = f"| `{rule.id}` | {rule.section} | {rule.severity} | {rule.sentence} |"
        assert page.count(row) == 1


# Each rule is found where it is broken, and nothing else is.


def test_a_rule_that_is_broken_once_is_found_at_its_line_and_nothing_else() -> None:
    for broken in BREAKS:
        findings = validate(broken.edited, spec=broken.spec)
        found = [(finding.rule, finding.line) for finding in findings]
        assert found == [(broken.rule, broken.expected_line)]


def test_every_rule_on_documents_is_broken_by_some_case() -> None:
    between = {name for name in RULES if name.startswith(("tree-", "package-"))}
    assert {case.rule for case in BREAKS} == set(RULES) - between
