"""docs/application-servers.md: its programs run in their servers, its recipes in theirs."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from rsnotify.format.links import parse_links
from rsnotify.format.model import Resource
from rsnotify.format.reader import read_document
from rsnotify.runtime.web_messages import WebRequest
from rsnotify_publisher import Options, Publisher
from rsnotify_publisher.web.documents import answers
from rsnotify_subscriber import FolderMirror, Subscriber
from tests.ports import free_port
from tests.publisher.helpers import eventually
from tests.reader import NAMED, ROOT, Reader, fences_of, lines_of
from tests.running import Running

PAGE = (ROOT / "docs/application-servers.md").read_text()
FENCES = fences_of(PAGE)
PROGRAMS = {named[1]: body for _, body in FENCES if (named := NAMED.match(body))}
COMMANDS = [line for name, body in FENCES if name == "sh" for line in lines_of(body)]
SOURCES = [command for command in COMMANDS if "_source" in command]
DESTINATIONS = [command for command in COMMANDS if "_destination" in command]
RECIPES = {name: body for name, body in FENCES if name in ("nginx", "apache", "caddyfile")}
READY = re.compile("Uvicorn running on|Listening at")
DJANGO = """
from django.conf import settings
from django.core.wsgi import get_wsgi_application
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"])
urlpatterns = []
app = callbacks.wsgi_application(get_wsgi_application())
"""


def request(url: str, method: str = "GET", body: bytes | None = None) -> tuple[HTTPResponse, bytes]:
    with urlopen(Request(url, body, method=method), timeout=60) as response:
        return response, response.read()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    environment = {"HOME": str(tmp_path), "RSNOTIFY_HUB_ALLOW_PRIVATE_ADDRESSES": "true"}
    with Reader(tmp_path / "here", environment=environment) as reader:
        for name, text in PROGRAMS.items():
            reader.write(name, text)
        reader.start("rsnotify hub")
        yield reader


def test_the_page_has_a_program_for_each_framework():
    assert len(SOURCES) == 5
    assert len(DESTINATIONS) == 2
    assert len(RECIPES) == 3
    for name in PROGRAMS:
        assert any(f" {name.removesuffix('.py')}:" in command for command in COMMANDS), name


@pytest.mark.parametrize("command", SOURCES)
def test_a_destination_follows_a_source_in_each_framework(reader: Reader, command: str):
    reader.start(command, READY)
    data = reader.adapt("http://127.0.0.1:8000/data/")
    request(data + "one", "PUT", b"first")
    reader.start("rsnotify follow http://127.0.0.1:8000/data/ copy --via websocket")
    copy = reader.folder / "copy/one"
    eventually(lambda: copy.exists() and copy.read_bytes() == b"first")
    request(data + "one", "PUT", b"second")
    eventually(lambda: copy.read_bytes() == b"second")
    assert request(data + "one")[1] == b"second"
    reader.end()


def test_every_worker_process_serves_what_any_of_them_recorded(reader: Reader):
    (command,) = (command for command in SOURCES if "flask" in command)
    reader.start(command + " --workers 3", READY)
    data = reader.adapt("http://127.0.0.1:8000/data/")
    for number in range(12):
        request(f"{data}{number}", "PUT", b"x")
        for _ in range(4):
            _, body = request(data + "changelist.xml")
            assert len(read_document(body).resources) == number + 1
    reader.end()


@pytest.mark.parametrize("framework", ["FastAPI", "Flask", "Django"])
def test_a_hub_delivers_to_a_destination_in_each_framework(reader: Reader, framework: str):
    (command,) = (one for one in DESTINATIONS if ("fastapi" in one) == (framework == "FastAPI"))
    if framework == "Django":
        program = PROGRAMS["flask_destination.py"]
        reader.write("flask_destination.py", program.partition("app = ")[0] + DJANGO)
    (reader.folder / "data").mkdir()
    (reader.folder / "data/one").write_bytes(b"first")
    source = "rsnotify source data --base-url http://127.0.0.1:8000/data/"
    reader.start(source + " --hub http://127.0.0.1:8080/")
    reader.start(command, READY)
    copy = reader.folder / "mirror/one"
    eventually(lambda: copy.exists() and copy.read_bytes() == b"first")
    hub = reader.adapt("http://127.0.0.1:8080/admin/subscriptions")
    eventually(lambda: b"/data/channel.xml" in request(hub)[1])
    (reader.folder / "data/one").write_bytes(b"second")
    eventually(lambda: copy.read_bytes() == b"second")
    delivered = re.compile(rb'deliveries_total\{outcome="delivered",way="websub"\} [1-9]')
    metrics = reader.adapt("http://127.0.0.1:8080/metrics")
    eventually(lambda: delivered.search(request(metrics)[1]))
    reader.end()


# The recipes

#: Those that every Apache of Debian has, and those that the recipe names.
MODULES = ("mpm_event", "authz_core", "alias", "deflate", "filter", "headers", "mime")


@contextmanager
def server(name: str, recipe: str, folder: Path) -> Iterator[Running]:
    """Run a server in the foreground with the recipe, and what a system has around it."""
    program = {"nginx": "nginx", "apache": "apache2", "caddyfile": "caddy"}[name]
    path = f"{os.environ['PATH']}:/usr/sbin"
    if shutil.which(program, path=path) is None:
        pytest.skip(f"{program} is not installed")
    run = folder / "run"
    run.mkdir()
    if name == "nginx":
        user = "user root;" if os.geteuid() == 0 else ""
        temporary = "".join(
            f"{kind}_temp_path {run}/{kind};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        config = (
            f"{user} daemon off; pid {run}/pid; error_log stderr; events {{}}\n"
            f"http {{ access_log off; {temporary}\n{recipe}\n}}\n"
        )
        command = ["nginx", "-e", "stderr", "-c", f"{run}/config"]
    elif name == "apache":
        there = "/usr/lib/apache2/modules"
        loads = "".join(f"LoadModule {one}_module {there}/mod_{one}.so\n" for one in MODULES)
        user = "User www-data\nGroup www-data\n" if os.geteuid() == 0 else ""
        config = (
            f"{loads}{user}ServerRoot {run}\nServerName localhost\nPidFile {run}/pid\n"
            f"DefaultRuntimeDir {run}\nTypesConfig /etc/mime.types\n"
            f"Mutex pthread\nErrorLog /dev/stderr\n{recipe}"
        )
        command = ["apache2", "-D", "FOREGROUND", "-f", f"{run}/config"]
    else:
        config = f"{{\nadmin off\nauto_https off\n}}\n{recipe}"
        command = ["caddy", "run", "--adapter", "caddyfile", "--config", f"{run}/config"]
    (run / "config").write_text(config)
    process = Running(command, {"PATH": path, "HOME": str(run)}, run)
    try:
        yield process
        assert process.is_alive(), process.output()
    finally:
        process.show()
        process.stop()


@contextmanager
def published(folder: Path, base: str) -> Iterator[Publisher]:
    """Publish a folder of files, some of whose documents are compressed and in parts."""
    data = folder / "data"
    data.mkdir()
    publisher = Publisher(
        folder / "state",
        base,
        hubs=["https://hub.example"],
        content=lambda uri: data / uri.removeprefix(base),
        options=Options(
            rotate="20 changes",
            max_entries=50,
            gzip=True,
            resource_dump_every=3600,
            refresh=0.1,
            grace=0,
        ),
    )
    for number in range(120):
        (data / f"{number}.txt").write_text(f"resource {number}\n")
    publisher.load(
        Resource(f"{base}{number}.txt", length=len(f"resource {number}\n")) for number in range(120)
    )
    with publisher:
        for number in range(60):
            publisher.updated(f"{base}{number}.txt", content=f"resource {number}\n".encode())
        assert publisher.wait_published(60)
        eventually((publisher.source.documents_folder / "resourcedump.xml").exists)
    yield publisher  # closed, so that its documents stay as they are


@pytest.mark.parametrize("name", ["nginx", "apache", "caddyfile"])
async def test_a_destination_follows_a_source_in_files(name: str, tmp_path: Path):
    port = free_port()
    base = f"http://127.0.0.1:{port}/data/"
    with tempfile.TemporaryDirectory() as temporary:  # apache2 cannot read `tmp_path`
        folder = Path(temporary)
        folder.chmod(0o755)
        recipe = RECIPES[name].replace("/srv/source", temporary).replace(":8000", f":{port}")
        recipe = recipe.replace("https://source.example/data/", base)
        with published(folder, base) as publisher, server(name, recipe, folder) as process:
            eventually(lambda: _listens(base) or not process.is_alive())
            _check_documents(publisher, base)
            mirror = FolderMirror(tmp_path / "copy")
            await Subscriber(base, mirror, state=tmp_path / "follower").catch_up()
    assert len(list((tmp_path / "copy").glob("*.txt"))) == 120


def _listens(base: str) -> bool:
    try:
        request(base + "capabilitylist.xml")
    except OSError:
        return False
    return True


def _check_documents(publisher: Publisher, base: str) -> None:
    """Check that every document has the content, the type and the links that our server sends."""
    folder = publisher.source.documents_folder
    ours = answers(publisher, "/data/")
    paths = [path for path in folder.rglob("*") if path.is_file()]
    names = [str(path.relative_to(folder)) for path in paths]
    assert {Path(name).suffix for name in names} == {".xml", ".gz", ".zip", ""}
    for name in names:
        there, body = request(base + name)
        assert body == (folder / name).read_bytes(), name
        assert there.headers["Cache-Control"] == "no-cache", name
        assert there.headers["Content-Encoding"] is None, name
        answer = ours.get("/data/" + name) or ours["/data/resourcesync/"]
        expected = answer(WebRequest("HEAD", "/data/" + name, "", {}))
        expected.close()
        type_ = "application/gzip" if name.endswith(".gz") else expected.headers["Content-Type"]
        assert there.headers["Content-Type"] == type_, name
        links = parse_links([expected.headers.get("Link", "")])
        assert parse_links([there.headers["Link"] or ""]) == links, name
    _, description = request(base.replace("/data/", "/.well-known/resourcesync"))
    assert description == (folder / ".well-known/resourcesync").read_bytes()
    resource, _ = request(base + "1.txt")
    assert parse_links([resource.headers["Link"]]) == [
        ("resourcesync", base + "capabilitylist.xml")
    ]
    (folder / "resourcesync/.changelist.xml.tmp").touch()
    (publisher.source.folder / "other.xml").touch()
    for hidden in (
        "resourcesync/.changelist.xml.tmp",
        "../other.xml",
        "resourcesync/../../other.xml",
    ):
        with pytest.raises(OSError, match=r"HTTP Error 40[04]"):
            request(base + hidden)


# Models of Django

DJANGO_MODELS = """
import threading
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["catalog"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "books.sqlite3"}},
    TEMPLATES=[{
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "OPTIONS": {"loaders": [("django.template.loaders.locmem.Loader", {
            "book.html": "<h1>{{ book.title }}</h1>",
        })]},
    }],
)
django.setup()
from django.db import connection, transaction
from catalog.models import BASE, Book, content, publisher
with connection.schema_editor() as schema:
    schema.create_model(Book)
with publisher:
    emma = Book.objects.create(slug="emma", title="Emma")
    emma.title = "<Emma>"
    emma.save()
    try:
        with transaction.atomic():
            Book.objects.create(slug="never", title="Never")
            raise KeyError
    except KeyError:
        pass
    found = []
    thread = threading.Thread(target=lambda: found.append(content(BASE + "emma")))
    thread.start()
    thread.join()
    assert found == [b"<h1>&lt;Emma&gt;</h1>"], found
    emma.delete()
    assert content(BASE + "emma") is None
"""


def test_signals_of_django_record_what_is_committed(tmp_path: Path):
    (models,) = (body for _, body in FENCES if "class Book(models.Model)" in body)
    with Reader(tmp_path / "here") as reader:
        (reader.folder / "catalog").mkdir()
        reader.write("catalog/__init__.py", "")
        reader.write("catalog/models.py", models.replace('hubs=["http://127.0.0.1:8080/"], ', ""))
        reader.write("program.py", DJANGO_MODELS)
        reader.do_once("python program.py")
        document = (reader.folder / "state/documents/changelist.xml").read_bytes()
    changes = [
        (one.uri.rpartition("/")[2], one.change) for one in read_document(document).resources
    ]
    assert changes == [("emma", "created"), ("emma", "updated"), ("emma", "deleted")]
