"""What is published around the code: extras, versions, forms for reports, and metadata."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import rsnotify
from rsnotify.errors import ConfigurationError
from rsnotify.runtime.command_line import application
from rsnotify.runtime.extensions import MissingExtension
from rsnotify.runtime.lazy_exports import lazy_exports
from rsnotify_gateway.config import load_gateway
from rsnotify_gateway.gateway import Gateway
from rsnotify_hub.config.loading import load_configuration
from tests.packages import PACKAGES, ROOT
from tests.test_docs import named_options, options

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
FORMS = sorted((ROOT / ".github").glob("ISSUE_TEMPLATE/*.yml"))
#: Where extras are named.
PLACES = ("*.md", "Makefile", "docs/**/*.md", "hub/*", "*/rsnotify*/**/*.py", "extensions/**/*.*")


def name_of(requirement: str) -> str:
    return re.split(r"[^\w-]", requirement)[0].lower()


def test_every_extra_that_is_named_exists() -> None:
    files = {path for place in PLACES for path in ROOT.glob(place) if path.suffix != ".pyc"}
    named = {
        extra
        for path in files
        if path.is_file()
        for found in re.findall(r"rsnotify\[([a-z,]+)\]", path.read_text(errors="ignore"))
        for extra in found.split(",")
    }
    assert {"hub", "nats", "xmpp", "patching", "postgresql"} <= named <= EXTRAS.keys()


def test_the_page_on_installing_has_each_extra_with_what_it_adds() -> None:
    page = (ROOT / "docs/installing.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| (.*?) ?\|$", page, re.MULTILINE))
    assert rows.keys() == EXTRAS.keys()
    for extra, added in rows.items():
        names = {name_of(one) for one in EXTRAS[extra]} - {"rsnotify"}
        assert names <= {name_of(one) for one in added.split(", ")}, extra


def test_everything_is_in_one_extra() -> None:
    def contents(extra: str) -> set[str]:
        found = {extra}
        for one in EXTRAS[extra]:
            inner = re.match(r"rsnotify\[(.*)\]", one)
            for name in inner[1].split(",") if inner else ():
                found |= contents(name)
        return found

    assert contents("all") == EXTRAS.keys()


@pytest.mark.parametrize("place", ["CITATION.cff", "docs/installing.md", "CHANGELOG.md"])
def test_a_page_names_the_present_version(place: str) -> None:
    text = (ROOT / place).read_text()
    if place == "CHANGELOG.md":
        text = re.findall(r"^## \[(\d.*?)\]", text, re.MULTILINE)[0]
    versions = set(re.findall(r"\b\d+\.\d+\.\d+(?:rc\d+)?\b", text)) - {"1.2.0"}  # of the format
    assert versions == {rsnotify.__version__}


def test_every_package_is_published_with_its_types() -> None:
    assert {one.rpartition("/")[2] for one in PROJECT["tool"]["mypy"]["packages"]} == {*PACKAGES}
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {Path(one).name for one in wheel} == {*PACKAGES}
    assert PROJECT["tool"]["check-wheel-contents"]["package"] == wheel
    assert all((ROOT / one / "py.typed").exists() for one in wheel)


def web_tokens(folder: Path) -> None:
    load_configuration(
        None, jwt_algorithms=["HS256"], jwt_key="canary" * 9, jwt_audience="https://hub.example/"
    )


def adapter_of(kind: str) -> Callable[[Path], None]:
    """Return what makes the adapter of a gateway's origin, as the gateway does when it starts."""

    def make(folder: Path) -> None:
        file = folder / "gateway.toml"
        url = "postgresql://a.example/b" if kind == "postgresql" else "https://a.example/"
        origin = f'name = "a"\ntype = "{kind}"\nurl = "{url}"'
        file.write_text(f'contact = "mailto:a@a.example"\n[[origin]]\n{origin}\n')
        settings = load_gateway(file)
        Gateway(folder, "https://b.example/", settings.origins, contact=settings.contact)

    return make


#: The modules that import a package of an extra when they are imported.
USERS = (
    "rsnotify_gateway.adapters.feeds",
    "rsnotify_gateway.adapters.ldes",
    "rsnotify_gateway.adapters.postgresql",
    "rsnotify_gateway.outbox_tables",
    "rsnotify_subscriber.storage.postgresql",
)


def exported(folder: Path) -> None:
    get, _ = lazy_exports("tests", {"rsnotify_subscriber.storage.postgresql": ["PostgreSQLState"]})
    get("PostgreSQLState")


@pytest.mark.parametrize(
    ("missing", "extra", "use"),
    [
        ("jwt", "jwt", web_tokens),
        ("feedparser", "feeds", adapter_of("feed")),
        ("pyoxigraph", "ldes", adapter_of("ldes")),
        ("psycopg", "postgresql", adapter_of("postgresql")),
        ("psycopg", "postgresql", exported),
    ],
)
def test_what_needs_a_missing_package_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    missing: str,
    extra: str,
    use: Callable[[Path], None],
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    for module in USERS:
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises((ConfigurationError, MissingExtension, ImportError)) as caught:
        use(tmp_path)
    assert f"pip install 'rsnotify[{extra}]'" in str(caught.value)


# The forms of the forge


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_can_be_filled_in(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    if path.stem == "config":
        assert form["contact_links"]
        return
    assert form["name"]
    assert form["description"]
    ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
    assert len(ids) == len({*ids}) > 1
    assert {field["type"] for field in form["body"]} <= {"markdown", "input", "textarea"}
    assert all(field["attributes"].get("label") for field in form["body"] if "id" in field)


def test_the_forms_name_options_that_exist() -> None:
    commands = typer.main.get_command(application())
    for path in FORMS:
        assert named_options(str(path.relative_to(ROOT))) <= options(commands), path.name
