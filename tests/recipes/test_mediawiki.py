"""The recipe for MediaWiki, with MediaWiki and SQLite: needs Debian's mediawiki and PHP."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.reader import lines_of
from tests.recipes.trial import PhpServer, Trial, block, needs, survives

pytestmark = pytest.mark.slow

PAGE = "mediawiki.md"
SITE = Path("/usr/share/mediawiki")


class MediaWiki:
    """A wiki, whose pages are edited by its API, and deleted and moved by its scripts."""

    def __init__(self, folder: Path) -> None:
        self.site = folder / "wiki"
        shutil.copytree(SITE, self.site, ignore=shutil.ignore_patterns("LocalSettings.php"))
        self.server = PhpServer(self.site)
        self.url = self.server.url
        (folder / "db").mkdir()
        self.script(
            "install",
            *("--dbtype", "sqlite", "--dbpath", folder / "db", "--dbname", "wiki"),
            *("--server", self.url, "--scriptpath", "", "--pass", "only-for-this-trial"),
            *("Trial", "Admin"),
        )
        with (self.site / "LocalSettings.php").open("a") as settings:
            settings.write("$wgSitemapNamespaces = [ NS_MAIN ];\n")
        self.server.start()

    def load(self, name: str, text: str) -> None:
        """Install a file of the recipe."""
        (self.site / name).write_text(text)
        with (self.site / "LocalSettings.php").open("a") as settings:
            settings.write(f"require_once __DIR__ . '/{name}';\n")

    def script(self, name: str, *arguments: object, given: str | None = None) -> None:
        path = name if name.endswith(".php") else f"maintenance/{name}.php"
        done = subprocess.run(
            ["php", path, *map(str, arguments)],
            cwd=self.site,
            input=given,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def edit(self, title: str, text: str) -> None:
        fields = {"action": "edit", "title": title, "text": text, "format": "json"}
        body = urlencode({**fields, "token": "+\\"}).encode()
        with urlopen(f"{self.url}/api.php", body, timeout=60) as response:
            answer = response.read()
        assert b'"result":"Success"' in answer, answer


@pytest.fixture
def wiki(tmp_path: Path) -> Iterator[MediaWiki]:
    needs("php", str(SITE), packages="mediawiki php-cli php-sqlite3 php-xml php-mbstring php-intl")
    found = MediaWiki(tmp_path)
    yield found
    found.server.stop()


def test_a_gateway_follows_the_sitemap(tmp_path: Path, wiki: MediaWiki):
    with Trial(tmp_path / "here", {"https://wiki.example": wiki.url}) as trial:
        (line,) = lines_of(block(PAGE, "by cron"))
        line = trial.adapt(line.replace("/srv/wiki", str(wiki.site))).removeprefix("php ")

        def cron() -> None:
            wiki.script(*line.split())

        cron()
        trial.gateway(PAGE)
        trial.follow("https://push.example/wiki/")
        trial.copies("MediaWiki has been installed")
        wiki.edit("Hills/High", "A first version")
        cron()
        trial.copies("A first version")
        wiki.edit("Hills/High", "Another version")
        cron()
        trial.copies("Another version")
        wiki.script("deleteBatch", given="Hills/High\n")
        cron()
        trial.loses("Another version")
        index = wiki.site / "sitemap/sitemap-index-wiki.xml"
        whole = index.read_bytes()

        def truncate() -> None:
            index.write_bytes(whole[: len(whole) // 2])

        def restore() -> None:
            index.write_bytes(whole)

        survives(trial, "wiki", truncate, restore)
        survives(trial, "wiki", wiki.server.stop, wiki.server.start)
        trial.end()


def test_hooks_export_each_page(tmp_path: Path, wiki: MediaWiki):
    export = tmp_path / "export"
    export.mkdir()
    known = {"/srv/wiki-export": str(export), "/srv/wiki": str(wiki.site)}
    known["https://wiki.example/export"] = "http://127.0.0.1:8000"
    with Trial(tmp_path / "here", known) as trial:
        wiki.load("rsnotify-export.php", trial.adapt(block(PAGE, "// rsnotify-export.php")))
        trial.write("all.php", block(PAGE, "// rsnotify-export-all.php"))
        wiki.script(str(trial.folder / "all.php"))
        trial.start(
            "rsnotify source /srv/wiki-export --base-url https://wiki.example/export/ "
            "--hub https://hub.example/"
        )
        trial.follow("https://wiki.example/export/")
        trial.copies("MediaWiki has been installed")
        wiki.edit("Hills/High", "A first version")
        trial.copies("A first version")
        wiki.edit("Hills/High", "Another version")
        trial.copies("Another version")
        wiki.edit("User:Me", "Not a content page")
        wiki.script("deleteBatch", given="Hills/High\n")
        trial.loses("Another version")
        wiki.script("undelete", "Hills/High")
        trial.copies("Another version")
        wiki.script("moveBatch", given="Hills/High|Valleys\n")
        trial.copies('"title":"Valleys"')
        trial.copies("#REDIRECT")
        trial.do_once("rsnotify audit https://wiki.example/export/ copy")
        assert "Not a content page" not in "".join(trial.copied().values())
        trial.end()
