"""The recipe for CKAN, with CKAN: needs it on PATH, PostgreSQL and Redis, but no Solr.

CKAN pins the versions of what it uses, so it needs an environment of its own, with
`ckan[requirements]`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from rsnotify_publisher import Outbox
from tests.ports import free_port
from tests.publisher.helpers import eventually
from tests.recipes.trial import Trial, block, get, needs, running

pytestmark = pytest.mark.slow

PAGE = "ckan.md"
#: Accepts what CKAN sends to its index, and finds nothing.
SOLR = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Solr(BaseHTTPRequestHandler):
    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        found = {"numFound": 0, "start": 0, "docs": []}
        body = json.dumps({"responseHeader": {"status": 0}, "response": found}).encode()
        if "schema.xml" in self.path:
            body = b'<schema name="ckan-2.12" version="1.6"/>'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_POST = do_GET
    def log_message(self, *_): pass
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Solr).serve_forever()
"""


class Ckan:
    """A site, whose datasets are changed by its API."""

    def __init__(self, folder: Path, database: str, stack: ExitStack) -> None:
        solr, redis, port = free_port(), free_port(), free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._folder = folder
        run = self._run
        stack.enter_context(running(folder, sys.executable, "-c", SOLR, str(solr)))
        stack.enter_context(
            running(folder, "redis-server", *("--port", str(redis)), *("--save", ""))
        )
        run("generate", "config", "ckan.ini")
        settings = {
            "sqlalchemy.url": database.replace("postgres://", "postgresql://"),
            "solr_url": f"http://127.0.0.1:{solr}/solr/ckan",
            "ckan.redis.url": f"redis://127.0.0.1:{redis}/0",
            "ckan.site_url": self.url,
            "ckan.storage_path": str(folder / "storage"),
            "ckan.auth.create_unowned_dataset": "true",
        }
        ini = (folder / "ckan.ini").read_text()
        for name, value in settings.items():
            ini = re.sub(rf"^{re.escape(name)}\s*=.*\n", "", ini, flags=re.MULTILINE)
            ini = ini.replace("[app:main]\n", f"[app:main]\n{name} = {value}\n")
        (folder / "ckan.ini").write_text(ini)
        run("-c", "ckan.ini", "db", "init")
        run("-c", "ckan.ini", "user", "add", "admin", "email=a@data.example", "password=trial1234")
        run("-c", "ckan.ini", "sysadmin", "add", "admin")
        token = run("-c", "ckan.ini", "user", "token", "add", "admin", "trial", "-q")
        self._token = token.split()[-1]
        serve = ("-c", "ckan.ini", "run", "--port", str(port), "--host", "127.0.0.1")
        stack.enter_context(running(folder, "ckan", *serve, "--disable-reloader"))
        eventually(self._answers)

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            ["ckan", *arguments], cwd=self._folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _answers(self) -> bool:
        try:
            with urlopen(f"{self.url}/api/3/action/status_show", timeout=60) as response:
                return bool(json.load(response)["success"])
        except (URLError, OSError):
            return False

    def do(self, action: str, **fields: Any) -> Any:
        url = f"{self.url}/api/3/action/{action}"
        return get(url, fields, Authorization=self._token)["result"]


@pytest.fixture
def ckan(tmp_path: Path, postgresql: str) -> Iterator[Ckan]:
    needs("ckan", packages="python3-venv, and pip install 'ckan[requirements]'")
    needs("redis-server", packages="redis-server")
    with ExitStack() as stack:
        folder = tmp_path / "ckan"
        folder.mkdir()
        yield Ckan(folder, postgresql, stack)


def test_triggers_publish_the_datasets(tmp_path: Path, ckan: Ckan, postgresql: str):
    ckan.do("package_create", name="rivers", notes="There from the beginning")
    url = urlsplit(postgresql)
    known = {
        "https://data.example": ckan.url,
        "postgresql://rsnotify@database.example/ckan_default": url._replace(
            netloc=f"rsnotify@{url.hostname}:{url.port}"
        ).geturl(),
    }
    with Trial(tmp_path / "here", known) as trial:
        trial.write("rsnotify.sql", Outbox().ddl + ";" + block(PAGE, "-- rsnotify.sql"))
        command = ["psql", postgresql, "-v", "ON_ERROR_STOP=1", "-f", "rsnotify.sql"]
        subprocess.run(command, cwd=trial.folder, env=os.environ, check=True)
        trial.gateway(PAGE)
        trial.follow("https://push.example/datasets/")
        trial.copies("There from the beginning")
        ckan.do("package_create", name="hills", notes="A first version")
        trial.copies("A first version")
        ckan.do("package_patch", id="hills", notes="Another version")
        trial.copies("Another version")
        ckan.do("resource_create", package_id="hills", url="https://data.example/hills.csv")
        trial.copies("hills.csv")
        ckan.do("package_patch", id="hills", private=True, owner_org=organization(ckan))
        trial.loses("Another version")
        ckan.do("package_patch", id="hills", private=False)
        trial.copies("Another version")
        ckan.do("package_delete", id="hills")
        trial.loses("Another version")
        ckan.do("package_patch", id="hills", state="active")
        trial.copies("Another version")
        ckan.do("dataset_purge", id="hills")
        trial.loses("Another version")
        trial.end()


def organization(ckan: Ckan) -> str:
    return str(ckan.do("organization_create", name="survey")["id"])
