"""`rsnotify validate`: files, URLs, packages, and the tree below a document."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from aiohttp import web
from typer.testing import CliRunner

from rsnotify.errors import NotFound
from rsnotify.runtime.command_line import application
from rsnotify_validation import RULES, Severity, target_validation
from rsnotify_validation.document_checker import ValidationResult
from rsnotify_validation.target_validation import validate_target
from tests.subscriber.processes import run
from tests.subscriber.source import Server
from tests.subscriber.tree import Tree, package

DESCRIPTION = ".well-known/resourcesync"
CHANGE_LIST = """<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"
 xmlns:rs="http://www.openarchives.org/rs/terms/">
<rs:ln rel="up" href="http://example.com/capabilitylist.xml"/>
<rs:md capability="changelist" from="2013-01-03T00:00:00Z"/>
<url><loc>http://example.com/res1</loc><rs:md change="made"/></url>
</urlset>
"""


@pytest.fixture
async def tree() -> AsyncIterator[Tree]:
    """A valid Source that is served."""

    async def answer(request: web.Request) -> web.Response:
        name = request.path[1:]
        if name in tree.pages:
            return web.Response(body=tree.pages[name], content_type="text/html")
        found = tree.files().get(name)
        return web.Response(status=404) if found is None else web.Response(body=found)

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    async with Server(application) as server:
        tree = Tree(f"http://127.0.0.1:{server.port}/")
        yield tree


async def found_in(tree: Tree, name: str = DESCRIPTION) -> list[tuple[str, str]]:
    """Validate deeply; return the documents at fault and the rules."""
    return found(await validate_target(tree.base + name, deep=True), tree.base)


def found(result: ValidationResult, base: str = "") -> list[tuple[str, str]]:
    return [
        (document.name.removeprefix(base), finding.rule)
        for document in result.documents
        for finding in document.findings
    ]


async def test_a_tree_in_which_everything_agrees_is_valid(tree: Tree) -> None:
    result = await validate_target(tree.base + DESCRIPTION, deep=True)
    assert found(result) == []
    looked_at = {document.name.removeprefix(tree.base) for document in result.documents}
    assert looked_at == set(tree.documents) | set(tree.members)
    assert len(result.documents) == len(looked_at)


@pytest.mark.parametrize("name", ["capabilitylist.xml", "changelist.xml", "dump.zip"])
async def test_any_part_of_the_tree_is_valid_by_itself(tree: Tree, name: str) -> None:
    assert await found_in(tree, name) == []


async def test_a_site_or_page_leads_to_the_topmost_document_and_a_missing_one_does_not(
    tree: Tree,
) -> None:
    top = tree.base + DESCRIPTION
    for name, answer, validated in (
        ("", None, top),  # 404
        ("folder/", None, top),
        ("about", b"<html>about us</html>", top),
        ("about.xml", b"<html>an error of a proxy</html>", None),  # named as a document
        ("gone.xml", None, NotFound),
        ("gone", None, NotFound),
    ):
        tree.pages = {} if answer is None else {name: answer}
        if validated is NotFound:
            with pytest.raises(NotFound):
                await validate_target(tree.base + name)
            continue
        result = await validate_target(tree.base + name)
        assert result.found == validated, name
        assert [one.name for one in result.documents] == [validated or tree.base + name]
        assert result.valid == (validated is not None)
    del tree.documents[DESCRIPTION]
    tree.pages = {"about": b"<html>about us</html>"}
    result = await validate_target(
        tree.base + "about"
    )  # leads to no Source, so it is at fault itself
    assert (result.found, result.valid) == (None, False)


async def test_an_archive_is_no_part_of_the_index_that_leads_to_it(tree: Tree) -> None:
    link = '<rs:ln rel="archives" href="{base}archive.xml"/>\n'
    tree.edit("changelist.xml", "<rs:md capability", link + "<rs:md capability")
    assert await found_in(tree) == []


async def test_a_description_at_a_second_place_is_as_good(tree: Tree) -> None:
    tree.documents["description.xml"] = tree.documents[DESCRIPTION]
    assert await found_in(tree, "description.xml") == []


Edit = Callable[[Tree], object]
#: By rule: the document at fault, and what spoils it: a change to a document, or to the tree.
BETWEEN: dict[str, tuple[str, Edit | tuple[str, str, str]]] = {
    "tree-unreachable": ("capabilitylist.xml", ("capabilitylist.xml", "}archive.xml", "}gone.xml")),
    "tree-not-followed": ("capabilitylist.xml",
        ("capabilitylist.xml", "{base}archive", "http://10.0.0.1/archive")),
    "tree-up": ("old.xml", ("old.xml", "}capabilitylist", "}otherlist")),
    "tree-capability": ("old.xml", ("old.xml", '"changelist"', '"changedump"')),
    "tree-index": ("changes1.xml", ("changes1.xml", "}changelist", "}other")),
    "tree-index-missing": ("resources1.xml", ("resources1.xml", 'rel="index"', 'rel="related"')),
    "tree-index-nested": ("resourcelist.xml",
        ("resourcelist.xml", "}resources1.xml", "}resourcelist.xml")),
    "tree-times": ("resourcelist.xml", ("resources1.xml", "T09:00:00Z", "T09:30:00Z")),
    "tree-until-missing": ("changelist.xml",
        ("changelist.xml", 'until="2013-01-03T00:00:00Z"', "")),
    "tree-until-early": ("changelist.xml", ("changes1.xml", 'until="2013-01-03T00:00:00Z"', "")),
    "tree-contents": ("resourcedump.xml", ("manifest.xml", "}res1", "}res2")),
    "package-format": ("changes.zip",
        lambda tree: tree.instead.update({"changes.zip": b"PK\x03\x04 no ZIP"})),
    "package-unsafe": ("dump.zip!manifest.xml",
        lambda tree: tree.members["dump.zip"].update(res1=b"0" * 2_000_000)),
    "package-manifest-missing": ("changes.zip",
        lambda tree: tree.documents.pop("changes.zip!manifest.xml")),
    "package-path-missing": ("changes.zip!manifest.xml",
        lambda tree: tree.members.update({"changes.zip": {}})),
    "package-not-described": ("changes.zip",
        lambda tree: tree.members["changes.zip"].update(more=b"")),
    "package-content": ("dump.zip!manifest.xml",
        lambda tree: tree.members["dump.zip"].update(res1=b"two")),
}  # fmt: skip


@pytest.mark.parametrize("rule", BETWEEN)
async def test_a_contradiction_between_documents_is_found_and_nothing_else(
    tree: Tree, rule: str
) -> None:
    name, edit = BETWEEN[rule]
    if isinstance(edit, tuple):
        tree.edit(*edit)
    else:
        edit(tree)
    assert await found_in(tree) == [(name, rule)]


async def test_a_description_that_is_not_at_the_well_known_place_is_told(tree: Tree) -> None:
    tree.documents["description.xml"] = tree.documents.pop(DESCRIPTION)
    tree.edit("capabilitylist.xml", DESCRIPTION, "description.xml")
    assert await found_in(tree, "description.xml") == [("description.xml", "tree-well-known")]


def test_every_rule_between_documents_is_broken_by_some_test() -> None:
    between = {name for name in RULES if name.startswith(("tree-", "package-"))}
    assert set(BETWEEN) | {"tree-well-known"} == between


async def test_a_package_is_compared_with_what_its_dump_says(tree: Tree) -> None:
    tree.edit("changedump.xml", "{length of changes.zip}", "5")
    assert await found_in(tree) == [("changes.zip", "package-content")]


async def test_a_part_may_name_another_index_that_lists_it(tree: Tree) -> None:
    tree.documents["resourcelist-2013.xml"] = tree.documents["resourcelist.xml"]
    tree.edit("resources1.xml", "}resourcelist.xml", "}resourcelist-2013.xml")
    assert await found_in(tree) == []


@pytest.mark.parametrize("named", ["changelist.xml", "archive.xml", "nothing.xml"])
async def test_a_part_must_not_name_what_does_not_list_it(tree: Tree, named: str) -> None:
    tree.edit("resources1.xml", "}resourcelist.xml", "}" + named)
    assert await found_in(tree) == [("resources1.xml", "tree-index")]


async def test_a_capability_list_must_be_listed_above(tree: Tree) -> None:
    tree.edit(DESCRIPTION, "}capabilitylist.xml", "}resourcelist.xml")
    expected = ("capabilitylist.xml", "tree-up")
    assert expected in await found_in(tree, "capabilitylist.xml")


async def test_only_so_many_documents_are_looked_at(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_validation, "_MAX_FETCHED", 3)
    assert await found_in(tree) == [("capabilitylist.xml", "tree-not-followed")]


async def test_what_is_compressed_is_read(tree: Tree, tmp_path: Path) -> None:
    file = tmp_path / "changes.xml.gz"
    file.write_bytes(gzip.compress(CHANGE_LIST.encode()))
    assert found(await validate_target(str(file))) == [(str(file), "change-value")]
    file.write_bytes(gzip.compress(CHANGE_LIST.encode())[:-20])
    assert (str(file), "not-well-formed") in found(await validate_target(str(file)))


async def test_a_package_that_is_a_file_is_validated_and_stays(tmp_path: Path) -> None:
    file = tmp_path / "dump.zip"
    file.write_bytes(package({"manifest.xml": CHANGE_LIST.encode(), "more": b""}))
    rules = {rule for _, rule in found(await validate_target(str(file)))}
    assert rules == {"change-value", "package-not-described"}
    assert file.exists()


async def test_the_tree_below_a_file_is_followed_as_far_as_it_is_on_the_web(
    tree: Tree, tmp_path: Path
) -> None:
    file = tmp_path / "description.xml"
    file.write_bytes(tree.files()[DESCRIPTION])
    result = await validate_target(str(file), deep=True, allow_private_addresses=True)
    assert found(result) == []
    assert len(result.documents) > 10
    # Nobody named the host, so that documents may not lead to it.
    assert found(await validate_target(str(file), deep=True)) == [(str(file), "tree-not-followed")]


async def test_many_places_of_one_rule_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "changes.xml"
    entry = '<url><loc>http://example.com/res1</loc><rs:md change="made"/></url>\n'
    file.write_text(CHANGE_LIST.replace(entry, entry * 250))
    result = await validate_target(str(file))
    assert len(result.documents[0].findings) == 100
    assert result.documents[0].more == {"change-value": 150}
    assert result.count(Severity.ERROR) == 250


async def test_what_is_not_there_is_an_error(tree: Tree, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        await validate_target(tree.base + "nothing.xml")
    with pytest.raises(FileNotFoundError):
        await validate_target(str(tmp_path / "nothing.xml"))


# The command


async def test_the_command_writes_a_line_for_each_finding(tmp_path: Path) -> None:
    file = tmp_path / "changes.xml"
    file.write_text(CHANGE_LIST)
    code, output, _ = await run("validate", file)
    assert code == 1
    first, verdict = output.splitlines()
    assert first.startswith(
        f"{file}:5: error core §7 change-value: change must be created, updated"
    )
    assert verdict == "not valid: 1 document, 1 error, 0 warnings"


async def test_the_command_writes_json_and_junit_for_programs(tree: Tree, tmp_path: Path) -> None:
    tree.edit("capabilitylist.xml", 'rel="describedby"', 'rel="related"')
    uri = tree.base + DESCRIPTION
    junit, badge = tmp_path / "source.xml", tmp_path / "source.json"
    files = ("--junit", junit, "--badge", badge)
    code, output, _ = await run("validate", uri, "--deep", "--json", *files)
    assert msgspec.json.decode(badge.read_bytes())["message"] == "valid, 1 warning"
    cases = [*ElementTree.parse(junit).getroot().iter("testcase")]
    assert {case.get("name") for case in cases if len(case) == 0} == {"valid"}
    assert [case.get("name") for case in cases if len(case)] == [
        "capabilitylist-describedby-missing"
    ]
    facts = msgspec.json.decode(output)
    assert (code, facts["valid"]) == (0, True)
    (finding,) = [one for document in facts["documents"] for one in document.get("findings", [])]
    assert finding == {
        "rule": "capabilitylist-describedby-missing",
        "section": "core §9",
        "severity": "warning",
        "line": 1,
        "element": "urlset",
        "message": RULES["capabilitylist-describedby-missing"].sentence,
    }


def test_the_command_holds_a_document_against_the_version_that_is_asked_for(
    tmp_path: Path,
) -> None:
    file = tmp_path / "changes.xml"
    file.write_text(CHANGE_LIST.replace('"made"', '"updated"'))
    command = application()
    assert CliRunner().invoke(command, ["validate", str(file)]).exit_code == 0
    done = CliRunner().invoke(command, ["validate", str(file), "--spec", "1.0"])
    assert done.exit_code == 1
    assert "changelist-entry-lastmod-missing" in done.output


@pytest.mark.parametrize("target", ["nothing.xml", "http://127.0.0.1:1/nothing.xml"])
async def test_what_cannot_be_had_gets_one_sentence(target: str) -> None:
    code, output, errors = await run("validate", target)
    assert (code, output) == (2, "")
    assert errors.startswith(f"rsnotify: {target}: ")
    assert len(errors.splitlines()) == 1
