"""The recipe for WordPress, with WordPress: needs Debian's wordpress, mariadb-server and PHP."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.recipes.trial import (
    PhpServer,
    Trial,
    block,
    get,
    needs,
    run_sql,
    running_mariadb,
    survives,
)

pytestmark = pytest.mark.slow

PAGE = "wordpress.md"
SITE = Path("/usr/share/wordpress")
CONFIG = """<?php
define('DB_NAME', 'wordpress'); define('DB_USER', 'root'); define('DB_PASSWORD', '');
define('DB_HOST', 'localhost:{socket}'); define('DB_CHARSET', 'utf8mb4'); define('DB_COLLATE', '');
define('WP_ENVIRONMENT_TYPE', 'local'); // so that REST has passwords without TLS
define('DISABLE_WP_CRON', true); define('WP_HTTP_BLOCK_EXTERNAL', true);
define('AUTOMATIC_UPDATER_DISABLED', true);
$table_prefix = 'wp_';
if (!defined('ABSPATH')) define('ABSPATH', __DIR__ . '/');
require_once ABSPATH . 'wp-settings.php';
"""
INSTALL = """<?php
$_SERVER['HTTP_HOST'] = parse_url('{url}', PHP_URL_HOST); $_SERVER['REQUEST_URI'] = '/';
define('WP_INSTALLING', true); define('WP_DEFAULT_THEME', 'plain'); define('WP_SITEURL', '{url}');
function wp_new_blog_notification() {}
require '{site}/wp-load.php';
require ABSPATH . 'wp-admin/includes/upgrade.php';
wp_install('Trial', 'admin', 'admin@site.example', true, '', 'secret');
update_option('home', '{url}');
$wp_rewrite->set_permalink_structure('/%postname%/');
flush_rewrite_rules();
echo WP_Application_Passwords::create_new_application_password(1, ['name' => 'trial'])[0];
"""
PAST_THE_HOOKS = """<?php
require '{site}/wp-load.php';
$wpdb->update($wpdb->posts, ['post_content' => 'Written past the hooks'], ['ID' => 1]);
"""
THEME = "<?php while (have_posts()) { the_post(); the_title('<h1>', '</h1>'); the_content(); }"


class WordPress:
    """A site, changed as its editors do: by its REST API."""

    def __init__(self, folder: Path, socket: Path) -> None:
        self.site = folder / "wordpress"
        shutil.copytree(
            SITE, self.site, ignore=shutil.ignore_patterns("wp-config.php", ".htaccess")
        )
        theme = self.site / "wp-content/themes/plain"
        theme.mkdir()
        (theme / "style.css").write_text("/* Theme Name: Plain */")
        (theme / "index.php").write_text(THEME)
        self.plugins = self.site / "wp-content/mu-plugins"
        self.plugins.mkdir()
        (self.site / "wp-config.php").write_text(CONFIG.replace("{socket}", str(socket)))
        self.server = PhpServer(self.site)
        self.url = self.server.url
        (folder / "install.php").write_text(
            INSTALL.replace("{url}", self.url).replace("{site}", str(self.site))
        )
        password = run_php(folder / "install.php").splitlines()[-1]
        login = base64.b64encode(f"admin:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {login}"}
        self.server.start()

    def change(self, number: int | None = None, method: str = "POST", **fields: Any) -> int:
        """Make or change a post, and return its number."""
        path = "" if number is None else f"/{number}"
        url = f"{self.url}/wp-json/wp/v2/posts{path}"
        return int(get(url, fields, method, **self._headers).get("id", 0))

    def delete(self, number: int) -> None:
        self.change(number, "DELETE", force=True)


def run_php(script: Path) -> str:
    done = subprocess.run(["php", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    needs("php", "mariadbd", str(SITE), packages="wordpress mariadb-server php-cli php-mysql")
    with running_mariadb(tmp_path_factory.mktemp("mariadb")) as socket:
        yield socket


@pytest.fixture
def wordpress(tmp_path: Path, mariadb: Path) -> Iterator[WordPress]:
    run_sql(mariadb, "DROP DATABASE IF EXISTS wordpress")
    run_sql(mariadb, "CREATE DATABASE wordpress")
    found = WordPress(tmp_path, mariadb)
    yield found
    found.server.stop()


def test_a_gateway_follows_the_sitemap(tmp_path: Path, wordpress: WordPress):
    (wordpress.plugins / "rsnotify-sitemap.php").write_text(block(PAGE, "Sitemap for rsnotify"))
    with Trial(tmp_path / "here", {"https://site.example": wordpress.url}) as trial:
        trial.gateway(PAGE)
        trial.follow("https://push.example/site/")
        trial.copies("Welcome to WordPress")
        post = wordpress.change(title="Second", content="A first version", status="publish")
        trial.copies("A first version")
        wordpress.change(post, content="Another version")
        trial.copies("Another version")
        wordpress.change(post, status="private")
        trial.loses("Another version")
        wordpress.change(post, status="publish")
        trial.copies("Another version")
        wordpress.delete(post)
        trial.loses("Another version")

        def fail() -> None:
            (wordpress.site / "wp-content/mu-plugins/broken.php").write_text(
                "<?php throw new Error;"
            )

        survives(trial, "site", fail, (wordpress.plugins / "broken.php").unlink)
        survives(trial, "site", wordpress.server.stop, wordpress.server.start)
        survives(trial, "site", wordpress.server.pause, wordpress.server.resume)
        trial.end()


def test_a_plugin_exports_each_post(tmp_path: Path, wordpress: WordPress):
    export = tmp_path / "export"
    export.mkdir()
    known = {"/srv/wordpress-export": str(export), "/srv/wordpress": str(wordpress.site)}
    known["https://site.example/export"] = "http://127.0.0.1:8000"
    with Trial(tmp_path / "here", known) as trial:
        plugin = trial.adapt(block(PAGE, "Export for rsnotify"))
        (wordpress.plugins / "rsnotify-export.php").write_text(plugin)
        trial.write("all.php", block(PAGE, "// rsnotify-export-all.php"))
        run_php(trial.folder / "all.php")
        trial.start(
            "rsnotify source /srv/wordpress-export --base-url https://site.example/export/ "
            "--hub https://hub.example/"
        )
        trial.follow("https://site.example/export/")
        trial.copies("Welcome to WordPress")
        post = wordpress.change(title="Second", content="A first version", status="publish")
        trial.copies("A first version")
        wordpress.change(post, content="Another version")
        trial.copies("Another version")
        wordpress.change(post, password="secret")
        trial.loses("Another version")
        wordpress.change(post, password="")
        trial.copies("Another version")
        wordpress.change(post, status="draft")
        trial.loses("Another version")
        wordpress.change(post, status="publish")
        trial.copies("Another version")
        wordpress.delete(post)
        trial.loses("Another version")
        assert re.search(r'"url":"http://[^"]*/hello-world/"', "".join(trial.copied().values()))
        trial.do_once("rsnotify audit https://site.example/export/ copy")

        trial.write("past.php", PAST_THE_HOOKS.replace("{site}", str(wordpress.site)))
        run_php(trial.folder / "past.php")
        run_php(trial.folder / "all.php")
        trial.copies("Written past the hooks")
        trial.end()
