"""What the packages' pages say works: every command and every program in them is run here.

Programs under one heading are one program. What would run until Ctrl-C has to do what it is for,
and then to end in order. The pages for each role are done by test_roles.py.
"""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import resync
import typer
import yaml

from docs.hooks import reference
from docs.hooks.blocks import runs_until_stopped, split
from rsnotify.runtime.command_line import application
from rsnotify_hub.config.loading import load_configuration
from rsnotify_hub_check.run import app as hub_check
from tests.cases import case
from tests.reader import NAMED, ROOT, Reader, blocks, fences_of, lines_of, with_secrets
from tests.test_roles import PAGES as ROLES

PAGES = [
    f"{package}/README.md"
    for package in (
        *("publisher", "subscriber", "hub"),
        *("extensions/relay", "extensions/gateway", "extensions/views"),
    )
]
ALL_PAGES = sorted(
    str(path.relative_to(ROOT))
    for pattern in (
        "*.md",
        "[a-z]*/README.md",
        "extensions/*/README.md",
        "docs/**/*.md",
        "deploy/**/*.md",
    )
    for path in ROOT.glob(pattern)
)
#: Those that tests/recipes/test_pages.py checks.
RECIPES = [page for page in ALL_PAGES if page.startswith("docs/recipes/")]
#: The pages on Python that are not generated.
REFERENCE = [page for page in ALL_PAGES if page.startswith("docs/reference/")]
#: What programs say that do not end by themselves.
SAY = {
    "subscriber/README.md: An index in one file": re.compile(r"updated \S+one\.ttl"),
    "subscriber/README.md: In a program": re.compile(r"updated \S+one\.ttl 14"),
    "subscriber/README.md: When your store has lost data": re.compile(r"1 to be fetched again"),
}
#: The results of other such programs.
BRING = {
    "publisher/README.md: Serving the documents": "state/documents/capabilitylist.xml",
    "publisher/README.md: Several sets of resources": "state/texts/documents/capabilitylist.xml",
    "subscriber/README.md: By WebSub": "mirror/one.ttl",
    "extensions/relay/README.md: In a program": "copy/one.ttl",
    "extensions/gateway/README.md: In a program": "state/site/documents/capabilitylist.xml",
}
#: Options of curl, docker, systemctl, kubectl, Helm, pip, NATS, uvicorn, gunicorn, mypy, MediaWiki,
#: the recipes, the examples, `make`, the matrix, and one that every command has.
OPTIONS_OF_OTHERS = {
    *("--fail", "--data-binary", "--data-urlencode", "--no-buffer"),
    *("--detach", "--profile"),
    "--now",
    "--strict",
    *("--beside", "--hypothesis-seed", "--minutes", "--rounds", "--seed"),
    *("--from", "--network", "--spec"),
    *("--from-file", "--kustomize", "--namespace"),
    *("--filename", "--for", "--replicas", "--set", "--stdin"),
    *("--dest", "--find-links", "--no-index", "--repository", "--upgrade", "--yes"),
    *("--build", "--entrypoint", "--no-deps", "--rm"),
    *("--cluster", "--routes"),
    "--read-hashes",  # of the program of docs/recipes/s3.md
    *("--bind", "--no-access-log", "--preload", "--threads", "--workers"),
    *("--fspath", "--identifier", "--server", "--skip-redirects", "--urlpath"),
    *("--delta", "--history", "--kill-ways", "--tables"),
    *("--location", "--read-hashes"),
    *("--help", "--help-all"),
}
#: The tests that execute the blocks of a page, but those here and in test_roles.py.
EXECUTED_BY = {
    "deploy/kubernetes/README.md": "tests/test_kubernetes.py",
    "deploy/systemd/README.md": "tests/operations/test_systemd.py",
    "docs/aggregator-postgresql.md": "tests/test_guides.py",
    "docs/application-servers.md": "tests/test_application_servers.py",
    "docs/audit.md": "tests/core/test_digest.py",
    "docs/browser.md": "tests/hub/test_browser_page.py",
    "docs/django.md": "tests/test_guides.py",
    "docs/extending.md": "tests/extensions/test_extending.py",
    "docs/hub-behind-nginx.md": "tests/test_guides.py",
    "docs/installing.md": "tests/test_distribution.py",
    "docs/mqtt.md": "tests/end_to_end/test_mqtt.py",
    "docs/scaling.md": "tests/test_scaling_page.py",
    "docs/xmpp.md": "tests/end_to_end/test_xmpp.py",
}
#: Pages whose blocks another page has too, at more length, or that other tests do without reading
#: the page.
EXECUTED_ELSEWHERE = {
    "README.md": "tests/demo",
    "extensions/demo/README.md": "tests/demo",
    "extensions/hub_check/README.md": "docs/implementing.md",
    "extensions/jetstream/README.md": "docs/scaling.md",
    "extensions/validation/README.md": "docs/implementing.md",
    "extensions/xmpp/README.md": "docs/xmpp.md",
}
#: What pages call a database of their reader's.
DATABASE = "postgresql://localhost/example"


def sections(page: str) -> list[str]:
    """Return the sections of a page but those that a reader follows, in tests/test_roles.py."""
    # One # may be a comment, such as the name of a file.
    found = re.split(r"^##+ ", (ROOT / page).read_text(), flags=re.MULTILINE)
    return [
        section
        for section in found
        if not any(name == "python" and NAMED.match(body) for name, body in fences_of(section))
    ]


def programs(pages: list[str]) -> Iterator[tuple[str, str]]:
    for page in pages:
        for section in sections(page):
            parts = [body for name, body in fences_of(section) if name == "python"]
            if parts:
                yield f"{page}: {section.splitlines()[0]}", "\n".join(parts)


def commands() -> list[tuple[str, str]]:
    return [
        (page, line)
        for page in PAGES
        for section in sections(page)
        for language, block in fences_of(section)
        for line in lines_of(block)
        if language == "sh" and line.startswith("rsnotify")
    ]


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """A hub and a Source of a small folder, for programs that follow it."""
    with Reader(tmp_path_factory.mktemp("others") / "here") as reader:
        (reader.folder / "data").mkdir()
        (reader.folder / "data/one.ttl").write_text("<a> <b> <c> .\n")
        reader.start("rsnotify hub")
        reader.start(
            "rsnotify source data --base-url http://127.0.0.1:8000/ --hub http://127.0.0.1:8080/"
        )
        yield reader


@pytest.fixture
def reader(tmp_path: Path, others: Reader) -> Iterator[Reader]:
    """Who reads a page, and has its examples' Source and hub."""
    known = {
        "https://source.example": others.adapt("http://127.0.0.1:8000"),
        "https://hub.example": others.adapt("http://127.0.0.1:8080"),
    }
    with Reader(tmp_path / "here", known) as reader:
        (reader.folder / "data").mkdir()
        yield reader


@pytest.mark.parametrize(("place", "program"), list(programs(PAGES)), ids=lambda value: value[:60])
def test_every_program_in_the_documentation_runs(
    reader: Reader, place: str, program: str, request: pytest.FixtureRequest
):
    if DATABASE in program:
        program = program.replace(DATABASE, request.getfixturevalue("postgresql"))
    reader.write("program.py", re.sub(r"(web\.run_app\(.*)\)", r"\1, port=8000)", program))
    if place in SAY:
        reader.start("python program.py", SAY[place])
    elif place in BRING:
        reader.start("python program.py", (reader.folder / BRING[place]).exists)
    else:
        reader.do_once("python program.py")
    reader.end()


@pytest.mark.parametrize(("place", "program"), list(programs(REFERENCE)), ids=lambda one: one[:60])
def test_every_example_of_the_reference_runs(
    reader: Reader,
    place: str,
    program: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """In this process, to take less time. The comment after a `print` is what it prints."""
    if DATABASE in program:
        program = program.replace(DATABASE, request.getfixturevalue("postgresql"))
    program = reader.adapt(program)
    monkeypatch.chdir(reader.folder)
    exec(compile(program, place, "exec"), {"__name__": "__main__"})
    expected = re.findall(r"^ *print\(.*\)  # (.+)$", program, re.MULTILINE)
    assert capsys.readouterr().out.splitlines() == expected


def test_every_block_is_executed_by_a_test():
    for page in ALL_PAGES:
        languages = {language for language, _ in fences_of((ROOT / page).read_text())}
        if languages & {"sh", "python"} and page not in (*PAGES, *REFERENCE, *ROLES, *RECIPES):
            assert page in {**EXECUTED_BY, **EXECUTED_ELSEWHERE}, f"no test executes {page}"
    for page, test in EXECUTED_BY.items():
        folder, _, name = page.rpartition("/")
        assert name in (text := (ROOT / test).read_text()), test
        assert folder in text, test
    assert all((ROOT / place).exists() for place in EXECUTED_ELSEWHERE.values())


def test_expected_results_belong_to_existing_programs():
    assert {*SAY, *BRING} <= {place for place, _ in programs(PAGES)}


@pytest.mark.parametrize(("page", "command"), commands())
def test_every_command_of_the_packages_pages_runs(reader: Reader, page: str, command: str):
    words = command.split()
    reader.write("hub.toml", with_secrets(blocks("hub/README.md", "toml")[0]))
    reader.write("relay.toml", blocks("extensions/relay/README.md", "toml")[0])
    reader.write("gateway.toml", blocks("extensions/gateway/README.md", "toml")[0])
    reader.write("fleet.toml", blocks("subscriber/README.md", "toml")[0])
    several = blocks("publisher/README.md", "toml")[0]
    reader.write("source.toml", several)
    for one in tomllib.loads(several)["set"]:
        (reader.folder / one["folder"]).mkdir()
    if words[1] == "audit":
        reader.do_once(f"rsnotify follow {words[2]} {words[3]} --once")
    if words[1] == "hub" and not runs_until_stopped(command):
        reader.start("rsnotify hub")
    if runs_until_stopped(command):
        reader.start(command)
    else:
        reader.do_once(command)
    reader.end()


def options(command: Any) -> set[str]:
    parameters = getattr(command, "params", [])
    below = []
    if hasattr(command, "list_commands"):
        context = typer.Context(command)
        below = [command.get_command(context, name) for name in command.list_commands(context)]
    own = {name for one in parameters for name in [*one.opts, *one.secondary_opts]}
    own = {name for name in own if name.startswith("-")}  # others are arguments
    return own.union(*map(options, below))


def named_options(page: str) -> set[str]:
    """Return the options that a page names, in whatever code it has."""
    text = (ROOT / page).read_text()
    code = re.findall(r"^```.*?^```|^    [^\n]*|`[^`\n]+`", text, re.DOTALL | re.MULTILINE)
    return {one for part in code for one in re.findall(r"(?<![\w-])--[a-z][a-z-]+", part)}


def options_of_resync() -> set[str]:
    scripts = [Path(sys.executable).with_name(f"resync-{name}") for name in ("sync", "build")]
    modules = [Path(str(resync.__file__)).with_name("client_utils.py")]
    text = "".join(path.read_text() for path in [*scripts, *modules])
    return set(re.findall(r"""["'](--[a-z-]+)["']""", text))


def test_every_option_that_a_page_names_is_one():
    ours = OPTIONS_OF_OTHERS.union(
        *(options(typer.main.get_command(app)) for app in (application(), hub_check))
    )
    for page in ALL_PAGES:
        theirs = options_of_resync() if page == "docs/recipes/from-resync.md" else set()
        assert named_options(page) <= ours | theirs, page


def test_every_option_of_a_following_command_is_in_a_reference():
    for name, pages in {
        "follow": ["subscriber/README.md", "docs/mqtt.md", "docs/xmpp.md"],
        "relay": [*PAGES, "docs/mqtt.md", "docs/xmpp.md"],
    }.items():
        line = typer.main.get_command(application())
        command = line.get_command(typer.Context(line), name)
        named = set[str]().union(*map(named_options, pages))
        assert options(command) <= named, name


def test_every_make_target_in_the_documentation_exists():
    text = "".join((ROOT / page).read_text() for page in ALL_PAGES)
    targets = set(re.findall(r"^make ([\w-]+)|`make ([\w-]+)", text, flags=re.MULTILINE))
    names = {name for pair in targets for name in pair if name}
    assert {"demo", "test", "check", "bench", "replay"} <= names
    for name in names:
        subprocess.run(["make", "-n", name], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize("page", ["docs/running-a-hub.md", "hub/README.md"])
def test_every_configuration_of_a_hub_is_one(page: str, tmp_path: Path):
    for number, block in enumerate(blocks(page, "toml")):
        file = tmp_path / f"{number}.toml"
        file.write_text(with_secrets(block))
        assert load_configuration(str(file)).access.publishers


def anchors(page: Path) -> set[str]:
    """Return what links may lead to within a page, made of its headings as forges make it."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_within_the_documentation_leads_somewhere():
    for page in ALL_PAGES:
        with case(page):
            links = r"(?:\]\(|src=\"|srcset=\")(?!http)([^)#\"]*)(?:#([^)]*))?[)\"]"
            for target, anchor in re.findall(links, (ROOT / page).read_text()):
                there = (ROOT / page).parent / target if target else ROOT / page
                assert there.exists(), target
                assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


def test_every_module_that_a_page_names_is_there():
    for page in ALL_PAGES:
        with case(page):
            folder = (ROOT / page).parent
            places = [
                ROOT,
                folder,
                *folder.glob("rsnotify*"),
                *ROOT.glob("*/rsnotify*"),
                *ROOT.glob("extensions/*/rsnotify*"),
            ]
            for name in re.findall(r"`([\w/]+\.py)`", (ROOT / page).read_text()):
                assert any((place / name).exists() for place in places), name


def test_every_page_is_led_to_from_the_first():
    known, new = set(), {ROOT / "README.md"}
    while new:
        page = new.pop()
        known.add(page)
        targets = re.findall(r"\]\((?!http)([^)#]+\.md)", page.read_text())
        new |= {(page.parent / target).resolve() for target in targets} - known
    assert {str(page.relative_to(ROOT)) for page in known} == set(ALL_PAGES)


def pages_in(navigation: Any) -> Iterator[str]:
    """Yield the pages of a navigation of MkDocs, in which some have titles."""
    if isinstance(navigation, str):
        yield navigation
    else:
        parts = navigation.values() if isinstance(navigation, dict) else navigation
        for part in parts:
            yield from pages_in(part)


def test_every_page_is_in_the_navigation_of_the_site():
    shown = list(pages_in(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    # The first page of the decisions lists them.
    pages = [page for page in ALL_PAGES if not page.startswith("docs/decisions/0")]
    assert sorted(shown) == sorted([*pages, *reference.PAGES])


def test_each_role_has_a_path_of_at_most_five_pages_to_production():
    first = ROOT / "docs/what-is-rsnotify.md"
    roles = re.findall(r"^\| [a-z ]+ \| (\[.*) \|$", first.read_text(), re.MULTILINE)
    assert len(roles) == 4
    for role in roles:
        links = re.findall(r"\]\(([^)]+)\)", role)
        path = [first, *((first.parent / link).resolve() for link in links)]
        assert len(path) <= 5
        for page, following in itertools.pairwise(path):
            _, _, end = page.read_text().rpartition("\nNext: ")
            linked = [(page.parent / one).resolve() for one in re.findall(r"\]\(([^)#]+)", end)]
            assert following in linked, f"{page} ends without a link to {following}"


#: What is not read as words: blocks of code, directives, pictures, tags, and where links lead.
NO_WORDS = re.compile(
    r"^```.*?^```|^(?:    |::: )[^\n]*|!\[[^\]]*\]|<!--.*?-->|<[a-z/][^>]*>|(?<=\])\([^)]*\)",
    re.DOTALL | re.MULTILINE,
)


def words_of(page: str) -> int:
    text = NO_WORDS.sub("", (ROOT / page).read_text())
    return sum(re.search(r"\w", word) is not None for word in text.split())


def test_the_documentation_has_at_most_35_000_words():
    apart = ("docs/recipes/", "docs/from-", "docs/decisions/", "CHANGELOG.md", "CODE_OF_CONDUCT.md")
    counted = {page: words_of(page) for page in ALL_PAGES if not page.startswith(apart)}
    longest = sorted(counted.items(), key=lambda one: one[1], reverse=True)
    assert sum(counted.values()) <= 35_000, f"{sum(counted.values())} words: {longest}"


def test_every_block_that_is_copied_from_the_site_runs_to_its_end():
    """A command that runs until Ctrl-C is alone in its block, which says so."""
    for page in ALL_PAGES:
        with case(page):
            text = split((ROOT / page).read_text())
            shells = r"^```(sh|\{ \.sh [^\n]*)\n(.*?)^```"
            for first, body in re.findall(shells, text, re.DOTALL | re.MULTILINE):
                runs = [runs_until_stopped(command) for command in lines_of(body)]
                assert runs == [True] if "Ctrl-C" in first else not any(runs), body


def test_every_picture_is_described():
    for page in ALL_PAGES:
        text = (ROOT / page).read_text()
        for words in re.findall(r"(?:!\[|alt=\")([^\]\"]*)(?:\]\(|\")", text):
            assert len(words.split()) > 2, f"{words} in {page}"


def test_every_picture_is_shown_and_quick_to_load():
    shown = "".join((ROOT / page).read_text() for page in ALL_PAGES)
    for picture in {*(ROOT / "docs/images").iterdir()}:
        if picture.name not in ("logo.svg", "site.css"):
            is_film = picture.name.startswith("gap-")
            assert picture.stat().st_size <= (2_000_000 if is_film else 250_000), picture.name
            assert f"images/{picture.name}" in shown


def texts_in(program: str) -> Iterator[str]:
    """Yield the texts of a program that are no docstrings."""
    tree = ast.parse(program)
    docstrings = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            yield str(node.value)


def test_every_message_that_troubleshooting_explains_is_one() -> None:
    packages = ("rsnotify", "hub", "publisher", "subscriber", "extensions")
    modules = [path.read_text() for package in packages for path in (ROOT / package).rglob("*.py")]
    said = "\n".join(text for module in modules for text in texts_in(module))
    page = (ROOT / "docs/troubleshooting.md").read_text()
    messages = [
        message
        for first in re.findall(r"^\| (.+?) \|", page, re.MULTILINE)
        for message in re.findall(r"`([^`]+)`", first)
    ]
    assert len(messages) > 20
    assert [message for message in messages if message not in said] == []
