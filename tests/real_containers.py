"""The image and docker-compose.yml in a container engine: `make containers`.

pytest does not collect this file by itself, since few machines have an engine; test_docker.py
checks the same files without one. It needs `docker` with `docker compose` on PATH, and git. The
containers, volumes and images that it makes are named `rsnotify-check…`; all but the images are
removed at the end.

Where `docker` is podman without systemd, nothing runs health checks by itself: they are run by
`podman healthcheck run`, and the status that the engine derives from them is compared. The interval
of the checks is tested by Docker alone.

RSNOTIFY_PREVIOUS names the commit whose image writes the volume that is upgraded. By default it is
the newest tag, or where there is none the last commit with another format of the hub's database.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.archives import extract
from tests.containers import ROOT, read_environment, services
from tests.ports import free_port

PROJECT, SMALL = "rsnotify-check", "rsnotify-check-small"
IMAGE, PREVIOUS = "localhost/rsnotify-check:present", "localhost/rsnotify-check:previous"
#: Seconds that building an image, and everything else, may take.
BUILD, PATIENCE = 1200, 180
EXAMPLE = read_environment(ROOT / ".env.example")
SECRETS = [name for name, value in EXAMPLE.items() if not value]
SETTINGS = EXAMPLE | {name: secrets.token_hex(32) for name in SECRETS}
#: What compose starts without the profile `cluster` does not need this.
OF_THE_CLUSTER = {"NATS_PASSWORD"}
TOPIC = SETTINGS["SOURCE_TOPICS"] + "channel.xml"
FRAGMENT = """<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"
 xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md capability="change-notification"
 from="2026-01-01T00:00:0{0}Z" until="2026-01-01T00:00:0{1}Z"/><url><loc>http://source:8000/{1}</loc>
 <rs:md change="updated" datetime="2026-01-01T00:00:0{1}Z"/></url></urlset>"""


def docker(*words: str, check: bool = True, timeout: float = PATIENCE) -> str:
    """Run docker, and return what it prints to its standard output."""
    done = run("docker", *words, timeout=timeout)
    assert done.returncode == 0 or not check, f"docker {words}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def run(*words: str, timeout: float = PATIENCE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=timeout)


def wait_until(holds: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < ends, f"not within {PATIENCE} s: {what}"
        time.sleep(0.2)


@pytest.fixture(scope="session", autouse=True)
def _engine() -> None:
    if shutil.which("docker") is None:
        pytest.exit("`make containers` needs docker, which is not on PATH", returncode=2)
    for words in (("compose", "version"), ("ps",)):
        done = run("docker", *words)
        if done.returncode:
            pytest.exit(f"`docker {' '.join(words)}` fails: {done.stderr.strip()}", returncode=2)


@pytest.fixture(scope="session")
def image() -> str:
    return _build(ROOT, IMAGE)


@pytest.fixture(scope="session")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the previous image, and return the checkout that it is of."""
    folder = tmp_path_factory.mktemp("previous")
    archive = folder.with_suffix(".tar")
    done = run("git", "archive", "--output", str(archive), _previous_commit())
    assert done.returncode == 0, done.stderr
    with tarfile.open(archive) as files:
        extract(files, folder)
    _build(folder, PREVIOUS)
    return folder


def _previous_commit() -> str:
    named = os.environ.get("RSNOTIFY_PREVIOUS")
    if named:
        return named
    tag = run("git", "describe", "--tags", "--abbrev=0", "HEAD^").stdout.strip()
    if tag:
        return tag
    database = "hub/rsnotify_hub/store/sqlite_store.py"
    changed = run("git", "log", "-1", "--format=%H", "-G^_VERSION = ", "--", database).stdout
    return changed.strip() + "^"


def _build(folder: Path, tag: str) -> str:
    docker(
        *("build", "--file", str(folder / "hub/Dockerfile"), "--tag", tag, str(folder)),
        timeout=BUILD,
    )
    return tag


class Compose:
    """docker-compose.yml, with images, ports and settings of its own."""

    project = PROJECT
    profiles: tuple[str, ...] = ("demo",)

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._broker_port = free_port()
        self.url = f"http://127.0.0.1:{self._port}/"
        settings = {k: v for k, v in SETTINGS.items() if k not in OF_THE_CLUSTER}
        (folder / "settings").write_text("".join(f"{k}={v}\n" for k, v in settings.items()))

    def use(self, image: str, root: Path = ROOT) -> None:
        """Start this image from now on, by the file of this checkout."""
        self._file = root / "docker-compose.yml"
        text = "services:\n"
        for name in ("hub", "source", "destination"):
            text += f"  {name}:\n    image: {image}\n"
            if name == "hub":
                text += f'    ports: !override ["127.0.0.1:{self._port}:8080"]\n'
        text += f'  mosquitto:\n    ports: !override ["127.0.0.1:{self._broker_port}:1883"]\n'
        (self._folder / "override.yml").write_text(text)

    def run(self, *words: str, settings: Path | None = None) -> subprocess.CompletedProcess[str]:
        return run(*self.command(settings), *words)

    def command(self, settings: Path | None = None) -> list[str]:
        """Return `docker compose` with the options of this project."""
        return [
            *("docker", "compose", "--project-name", self.project),
            *("--file", str(self._file)),
            *("--file", str(self._folder / "override.yml")),
            *("--env-file", str(settings or self._folder / "settings")),
            *(word for profile in self.profiles for word in ("--profile", profile)),
        ]

    def __call__(self, *words: str) -> str:
        """Run `docker compose`, and return what it prints."""
        done = self.run(*words)
        assert done.returncode == 0, f"docker compose {words}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, *names: str) -> None:
        """Start services, and wait until the hub is ready."""
        self("up", "--detach", "--no-build", *names)
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until the hub can do its work."""
        wait_until(lambda: self.get("readyz")[0] == 200, "the hub is ready")

    def container(self, name: str) -> str:
        label = "label=com.docker.compose"
        found = docker(
            *("ps", "--all", "--quiet", "--filter", f"{label}.project={self.project}"),
            *("--filter", f"{label}.service={name}"),
        ).split()
        assert len(found) == 1, f"{name}: {found}"
        return found[0]

    def get(self, path: str) -> tuple[int, str]:
        """Ask the hub; the status is 0 where it does not answer."""
        return self._ask(urllib.request.Request(self.url + path))

    def publish(self, second: int) -> int:
        """Publish the change of one second, and return the status of the answer."""
        headers = {
            "Link": f'<{TOPIC}>; rel="self"',
            "Content-Type": "application/xml",
            "Authorization": f"Bearer {SETTINGS['SOURCE_TOKEN']}",
        }
        body = FRAGMENT.format(second - 1, second).encode()
        return self._ask(urllib.request.Request(self.url + "websub", body, headers))[0]

    def published(self) -> list[int]:
        query = urllib.parse.urlencode({"topic": TOPIC, "since": "2026"})
        status, text = self.get(f"topics?{query}")
        assert status == 200, text
        return [second for second in range(10) if f"<loc>http://source:8000/{second}</loc>" in text]

    def _ask(self, request: urllib.request.Request) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(answer.status), answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""


@contextmanager
def used(made: Compose) -> Iterator[None]:
    """Remove what is left of an earlier run, and at the end what was made, after its logs."""
    made.run("down", "--volumes")
    yield
    print(made.run("logs").stdout[-20_000:])
    made("down", "--volumes")


@pytest.fixture
def compose(tmp_path: Path, image: str) -> Iterator[Compose]:
    made = Compose(tmp_path)
    made.use(image)
    with used(made):
        yield made


def test_compose_starts_nothing_while_a_secret_is_missing(compose: Compose, tmp_path: Path):
    needed = [name for name in SECRETS if name not in OF_THE_CLUSTER]
    for missing in (needed, *([name] for name in needed)):
        given = tmp_path / "incomplete"
        values = SETTINGS | dict.fromkeys(missing, "")
        given.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        refused = compose.run("up", "--detach", "--no-build", settings=given)
        assert refused.returncode != 0
        assert any(name in refused.stdout + refused.stderr for name in missing)
    label = f"label=com.docker.compose.project={PROJECT}"
    assert docker("ps", "--all", "--quiet", "--filter", label) == ""


def test_a_hub_that_others_reach_does_not_start_without_publishers_and_admins(image: str):
    variables = ("--env", "RSNOTIFY_HUB_PUBLIC_URL=https://hub.example/")
    done = run("docker", "run", "--rm", "--read-only", *variables, image)
    assert done.returncode == 2
    assert "publish" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_the_image_has_the_versions_of_its_bill_of_materials(image: str):
    listing = "import importlib.metadata as m\nfor d in m.distributions(): print(d.name, d.version)"
    words = ("run", "--rm", "--entrypoint", "python", image, "-c", listing)
    installed = {
        tuple(line.lower().replace("_", "-").split()) for line in docker(*words).split("\n")
    }
    bill = json.loads((ROOT / "build/rsnotify.cdx.json").read_text())["components"]
    assert installed == {
        (one["name"].lower().replace("_", "-"), one["version"].lower()) for one in bill
    }


def test_the_image_has_no_installer_and_states_what_it_is(image: str):
    found = ("run", "--rm", "--entrypoint", "find", image, "/usr/local", "/opt/rsnotify")
    assert docker(*found, "-name", "pip", "-o", "-name", "ensurepip") == ""
    labels = json.loads(docker("inspect", "--format", "{{json .Config.Labels}}", image))
    assert labels["org.opencontainers.image.source"] == "https://github.com/rsnotify/rsnotify"
    assert "Apache-2.0" in labels["org.opencontainers.image.licenses"]


def test_the_broker_does_not_start_without_both_passwords():
    broker = services(SETTINGS)["mosquitto"]
    for given in ("", "MQTT_HUB_PASSWORD=" + "x" * 32):
        done = run(
            *("docker", "run", "--rm", "--read-only", "--tmpfs", "/tmp", "--user", "1883:1883"),
            *("--volume", f"{ROOT}/hub/mosquitto:/mosquitto/config:ro", "--env", given or "NONE="),
            *("--entrypoint", "sh", broker["image"], "/mosquitto/config/start.sh"),
        )
        assert done.returncode == 2
        missing = "MQTT_SUBSCRIBER_PASSWORD" if given else "MQTT_HUB_PASSWORD"
        assert f"{missing} needs 16 characters" in done.stdout + done.stderr


def test_the_demo_keeps_a_copy_and_stops_within_the_grace_period(compose: Compose):
    compose.start()
    copy = ("exec", "-T", "destination", "cat", "/data/copy/protocol.md")
    expected = (ROOT / "docs/protocol.md").read_text()
    wait_until(lambda: compose.run(*copy).stdout == expected, "the copy is there")
    wait_until(lambda: "push up" in compose.run("logs", "destination").stdout, "push is up")
    names = ("hub", "mosquitto", "source", "destination")
    found = {name: compose.container(name) for name in names}
    compose("stop")
    # 137 is that of a container that was killed once the grace period was over.
    codes = {name: _inspect(found[name], "{{.State.ExitCode}}") for name in names}
    assert codes == dict.fromkeys(names, "0")


def test_a_killed_hub_still_has_what_it_accepted(compose: Compose):
    compose.start("hub", "mosquitto")
    assert [compose.publish(second) for second in (1, 2)] == [202, 202]
    docker("kill", "--signal", "KILL", compose.container("hub"))
    wait_until(lambda: not compose.get("readyz")[0], "the hub is gone")
    compose.start("hub", "mosquitto")
    assert compose.published() == [1, 2]
    assert compose.publish(3) == 202


def test_a_hub_that_ends_by_itself_is_started_again(compose: Compose):
    compose.start("hub", "mosquitto")
    assert compose.publish(1) == 202
    hub = compose.container("hub")
    started = _inspect(hub, "{{.State.StartedAt}}")
    # The engine would not start again what was ended through the engine.
    end = "import os, signal; os.kill(1, signal.SIGTERM)"
    compose.run("exec", "-T", "hub", "python", "-c", end)
    wait_until(lambda: _inspect(hub, "{{.State.StartedAt}}") != started, "it is started again")
    compose.wait_until_ready()
    assert compose.published() == [1]


def test_a_hub_that_crashes_is_started_again_with_what_it_accepted(compose: Compose, image: str):
    compose.start("hub", "mosquitto")
    assert [compose.publish(second) for second in (1, 2)] == [202, 202]
    hub = compose.container("hub")
    started = _inspect(hub, "{{.State.StartedAt}}")
    # No signal from within a container kills its first process, nor does the engine start again
    # what it was told to kill itself.
    kill = f"import os; os.kill({_inspect(hub, '{{.State.Pid}}')}, 9)"
    docker(
        *("run", "--rm", "--pid", "host", "--user", "0:0", "--entrypoint", "python"),
        *(image, "-c", kill),
    )
    wait_until(lambda: _inspect(hub, "{{.State.StartedAt}}") != started, "it is started again")
    compose.wait_until_ready()
    assert compose.published() == [1, 2]
    assert compose.publish(3) == 202


def test_a_volume_of_the_previous_image_is_taken_over(compose: Compose, image: str, previous: Path):
    compose.use(PREVIOUS, previous)
    compose.start("hub", "mosquitto")
    assert [compose.publish(second) for second in (1, 2)] == [202, 202]
    compose("down")
    compose.use(image)
    compose.start("hub", "mosquitto")
    assert _inspect(compose.container("hub"), "{{.Config.Image}}") == image
    assert compose.published() == [1, 2]
    assert compose.publish(3) == 202


def test_a_backup_is_restored_by_the_commands_of_the_page(compose: Compose, tmp_path: Path):
    page = (ROOT / "docs/backup.md").read_text()
    back_up, *restore = re.findall(r"^docker compose .*", page, re.MULTILINE)

    def follow(command: str) -> None:
        here = command.replace("docker compose", shlex.join(compose.command()), 1)
        done = subprocess.run(
            here, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"

    compose.start("hub", "mosquitto")
    assert [compose.publish(second) for second in (1, 2)] == [202, 202]
    follow(back_up)
    assert compose.publish(3) == 202
    for command in restore:
        follow(command)
    compose.wait_until_ready()
    assert compose.published() == [1, 2]
    assert compose.publish(3) == 202
    # Its own commands need no token from outside.
    assert "topics" in compose("exec", "-T", "hub", "rsnotify", "hub", "status")


@pytest.fixture
def small(image: str) -> Iterator[str]:
    """A hub whose disk has 8 MB."""
    run("docker", "rm", "--force", "--volumes", SMALL)  # what an earlier run left behind
    publisher = {"token": SETTINGS["SOURCE_TOKEN"], "topics": [SETTINGS["SOURCE_TOPICS"]]}
    docker(
        *("run", "--detach", "--name", SMALL, "--read-only", "--tmpfs", "/tmp"),
        *("--tmpfs", "/small:size=8m,mode=1777", "--env", "RSNOTIFY_HUB_DATA=/small/hub"),
        *("--cap-drop", "ALL", "--health-interval", "1s", "--health-retries", "1"),
        *("--env", "RSNOTIFY_HUB_PUBLIC_URL=http://127.0.0.1:8080/"),
        *("--env", f"RSNOTIFY_HUB_PUBLISHERS={json.dumps([publisher])}"),
        image,
    )
    yield SMALL
    print(run("docker", "logs", SMALL).stderr)
    docker("rm", "--force", "--volumes", SMALL)


def test_the_engine_reports_a_hub_as_unhealthy_while_its_disk_is_full(small: str):
    def is_reported(status: str) -> bool:
        run("docker", "healthcheck", "run", small)  # Docker has no such command, and needs none
        return _inspect(small, "{{.State.Health.Status}}") == status

    wait_until(lambda: is_reported("healthy"), "the hub is healthy")
    fill = "f = open('/small/filling', 'wb', 0)\nwhile True: f.write(bytes(65536))"
    filled = run("docker", "exec", small, "python", "-c", fill)
    assert "No space left" in filled.stderr
    wait_until(lambda: is_reported("unhealthy"), "the hub is unhealthy")
    run("docker", "exec", small, "python", "-c", "import os; os.remove('/small/filling')")
    wait_until(lambda: is_reported("healthy"), "the hub is healthy again")
    assert _inspect(small, "{{.State.Running}}") == "true"


def _inspect(container: str, what: str) -> str:
    return docker("inspect", "--format", what, container)
