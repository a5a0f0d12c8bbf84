"""hub/Dockerfile and docker-compose.yml, tried on this machine: there need be no engine."""

from __future__ import annotations

import os
import queue
import re
import secrets
import shutil
import subprocess
import sysconfig
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest
import yaml
from paho.mqtt.client import CallbackAPIVersion, Client, MQTTProtocolVersion

from rsnotify.runtime.mqtt_broker import channel_topic
from tests.containers import (
    ROOT,
    Image,
    Machine,
    Unset,
    context,
    image_of,
    provide,
    read_dockerfile,
    read_environment,
    services,
)
from tests.ports import free_port
from tests.running import PATIENCE, Running

INSTRUCTIONS = read_dockerfile(ROOT / "hub/Dockerfile")
EXAMPLE = read_environment(ROOT / ".env.example")
SECRETS = [name for name, value in EXAMPLE.items() if not value]
#: Compose reads a service whose profile is not used, too.
OF_A_PROFILE = {"NATS_PASSWORD"}
#: Where Debian keeps servers, too.
PATH = f"{os.environ['PATH']}:/usr/sbin"
FLAGS = re.DOTALL | re.MULTILINE
FRAGMENT = (
    b'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'
    b' xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md capability="change-notification"'
    b' from="2026-01-01T00:00:00Z" until="2026-01-01T00:00:01Z"/></urlset>'
)
SETTINGS = EXAMPLE | {name: secrets.token_hex(32) for name in SECRETS}


#: The extras that pip installs in the image, unless the build names others.
(EXTRAS,) = [one.text.partition("=")[2] for one in INSTRUCTIONS if one.name == "ARG"]


class Installed:
    """What the build made, and a machine to start it on.

    Args:
        folder: Where the image is.
        downloads: Whether pip downloads everything, as in a build; otherwise other packages come
            from the environment of the tests, which has the same versions.
    """

    def __init__(self, folder: Path, *, downloads: bool) -> None:
        self.image: Image = image_of(INSTRUCTIONS)
        self.hub, self.source, self.mosquitto = free_port(), free_port(), free_port()
        self.data = folder / "data"
        places = {
            "/opt/rsnotify": f"{folder}/opt/rsnotify",
            "/data": f"{folder}/data",
            "/usr/local": f"{folder}/usr/local",
            "/src": f"{folder}/src",
            "/srv/docs": f"{folder}/docs",
            "0.0.0.0": "127.0.0.1",
            "10.0.0.0": "10.0.0.0",
            "//hub:8080": f"//127.0.0.1:{self.hub}",
            "//mosquitto:1883": f"//127.0.0.1:{self.mosquitto}",
            "//source:8000": f"//127.0.0.1:{self.source}",
            "8080": str(self.hub),
            "8000": str(self.source),
        }
        self.machine = Machine(folder, places)
        if not downloads:
            variables = {"base": f"{folder}/opt/rsnotify"}
            packages = Path(sysconfig.get_path("purelib", "venv", vars=variables))
            packages.mkdir(parents=True)
            provide(packages, f"rsnotify[{EXTRAS}]")
        self.machine.build(INSTRUCTIONS)
        shutil.copytree(ROOT / "docs", folder / "docs")

    def publish(self, topic: str, token: str) -> int:
        headers = {
            "Link": f'<{self.machine.here(topic)}>; rel="self"',
            "Content-Type": "application/xml",
            "Authorization": f"Bearer {token}",
        }
        url = f"http://127.0.0.1:{self.hub}/websub"
        request = urllib.request.Request(url, data=FRAGMENT, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code


@contextmanager
def built_image(*, downloads: bool) -> Iterator[Installed]:
    with tempfile.TemporaryDirectory(prefix="rsnotify-image-") as folder:
        Path(folder).chmod(0o755)
        yield Installed(Path(folder), downloads=downloads)


@pytest.fixture(scope="module")
def built() -> Iterator[Installed]:
    with built_image(downloads=False) as installed:
        yield installed


@pytest.fixture
def installed(built: Installed) -> Iterator[Installed]:
    yield built
    built.machine.stop()


def test_the_build_is_sent_the_packages_and_nothing_else():
    sent = list(context(ROOT))
    top = {path.parts[0] for path in sent}
    assert top == {
        *("pyproject.toml", "constraints.txt", "README.md", "LICENSE"),
        *("rsnotify", "extensions", "hub", "publisher", "subscriber"),
    }
    of_hub = {path.parts[1] for path in sent if path.parts[0] == "hub"}
    assert of_hub == {"rsnotify_hub"}
    assert not any(path.suffix == ".pyc" for path in sent)


def test_every_image_is_pinned_by_its_tag():
    bases = image_of(INSTRUCTIONS).bases
    assert len(set(bases)) == 1
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", bases[0])
    every = services(SETTINGS)
    assert re.fullmatch(r"eclipse-mosquitto:2\.\d+\.\d+", every["mosquitto"]["image"])
    assert re.fullmatch(r"haproxy:3\.\d+\.\d+-alpine", every["balancer"]["image"])
    (nats,) = image_of(read_dockerfile(ROOT / "deploy/nats/Dockerfile")).bases
    assert re.fullmatch(r"nats:2\.\d+\.\d+-alpine3\.\d+", nats)


def test_the_example_has_no_secret_and_compose_refuses_each_that_is_missing():
    assert len(SECRETS) >= 4
    for name in {*SECRETS} - OF_A_PROFILE:
        with pytest.raises(Unset, match=name):
            services(SETTINGS | {name: ""})
    assert services(SETTINGS | dict.fromkeys(OF_A_PROFILE, ""))


@pytest.fixture
def new_env(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return what runs deploy/new-env.sh in a checkout of its own."""
    (tmp_path / "deploy").mkdir()
    for name in (".env.example", "deploy/new-env.sh"):
        shutil.copy(ROOT / name, tmp_path / name)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["sh", str(tmp_path / "deploy/new-env.sh"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


def test_one_command_writes_all_settings_with_new_secrets(new_env, tmp_path: Path):
    assert new_env().returncode == 0
    env = tmp_path / ".env"
    assert env.stat().st_mode & 0o777 == 0o600
    found = read_environment(env)
    assert list(found) == list(EXAMPLE)
    assert all(re.fullmatch(r"[0-9a-f]{64}", found[name]) for name in SECRETS)
    assert len({found[name] for name in SECRETS}) == len(SECRETS)
    assert all(found[name] == value for name, value in EXAMPLE.items() if value)
    assert services(found)
    assert new_env().returncode == 0
    assert read_environment(env) == found


def test_settings_that_exist_remain_and_the_missing_ones_are_added(new_env, tmp_path: Path):
    env = tmp_path / ".env"
    env.write_text("SOURCE_TOKEN=\n# a comment\nADMIN_TOKEN=an old one, and no end of line")
    assert new_env("https://hub.example/", "https://source.example/data/").returncode == 0
    found = read_environment(env)
    assert found["ADMIN_TOKEN"] == "an old one, and no end of line"
    assert len(found["SOURCE_TOKEN"]) == 64
    assert set(found) == set(EXAMPLE)
    hub = services(found)["hub"]["environment"]
    assert hub["RSNOTIFY_HUB_PUBLIC_URL"] == "https://hub.example/"
    assert "https://source.example/data/" in hub["RSNOTIFY_HUB_PUBLISHERS"]
    # Destinations elsewhere would take 127.0.0.1 for their own machine.
    assert hub["RSNOTIFY_HUB_MQTT_PUBLIC_URL"] == "mqtt://hub.example:1883"
    node = services(found)["hub1"]["environment"]
    assert node["RSNOTIFY_HUB_PUBLIC_URL"] == "https://hub.example/"
    refused = new_env("https://other.example/")
    assert refused.returncode == 2
    assert "RSNOTIFY_PUBLIC_URL" in refused.stderr
    assert read_environment(env) == found


def test_everything_is_reached_from_this_machine_only():
    published = [port for one in services(SETTINGS).values() for port in one.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_every_container_is_read_only_and_without_privileges():
    image = image_of(INSTRUCTIONS)
    for service in services(SETTINGS).values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert int(service.get("user", image.user).split(":")[0]) > 0


def test_all_data_is_in_volumes():
    # The nodes of a cluster keep everything in NATS.
    places = {"mosquitto": ["/mosquitto/data"], "balancer": [], "hub1": [], "hub2": []}
    for name, service in services(SETTINGS).items():
        volumes = service.get("volumes", [])
        kept = [volume.split(":")[1] for volume in volumes if volume[0] not in "./"]
        assert kept == places.get(name, ["/data"])
    assert image_of(INSTRUCTIONS).volumes == ["/data"]


def test_a_port_is_put_in_for_a_port_only_and_once(tmp_path: Path):
    places = {"//hub:8080": "//127.0.0.1:48000", "8080": "48000", "8000": "40000"}
    machine = Machine(tmp_path, places)
    secret = "f8080a8000" + "8000" * 4
    assert machine.here(f"--port 8080 {secret} http://hub:8080/ http://127.0.0.1:8000/x") == (
        f"--port 48000 {secret} http://127.0.0.1:48000/ http://127.0.0.1:40000/x"
    )


def test_the_hub_of_the_image_runs_and_keeps_accepted_fragments(installed: Installed):
    service = services(SETTINGS)["hub"]
    topic = SETTINGS["SOURCE_TOPICS"] + "channel.xml"
    for _ in range(2):
        process = installed.machine.start(installed.image, service)
        process.says("listening on")
        assert installed.machine.run(installed.image.health, installed.image, service) == 0
        with urllib.request.urlopen(f"http://127.0.0.1:{installed.hub}/") as dashboard:
            assert b"<title>rsnotify hub</title>" in dashboard.read()
        assert installed.publish(topic, "not the token") == 403
        assert installed.publish(topic, SETTINGS["SOURCE_TOKEN"]) == 202
        assert process.stop() == 0
    assert installed.machine.run(installed.image.health, installed.image, service) != 0
    owners = {path.stat().st_uid for path in installed.data.rglob("*")}
    assert owners == {os.getuid() or int(installed.image.user.split(":")[0])}


@pytest.mark.slow
def test_what_pip_downloads_is_all_that_the_hub_of_the_image_needs():
    with built_image(downloads=True) as installed:
        process = installed.machine.start(installed.image, services(SETTINGS)["hub"])
        process.says("listening on")
        installed.machine.stop()


def test_the_hub_of_the_image_does_not_start_in_the_open_without_grants(installed: Installed):
    settings = {"RSNOTIFY_HUB_PUBLIC_URL": "https://hub.example/"}
    process = installed.machine.start(installed.image, {"environment": settings})
    assert process.ends() == 2
    assert "publish" in process.output()
    assert "Traceback" not in process.output()


def test_more_sources_are_in_a_file_as_in_the_readme(installed: Installed):
    (block,) = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "hub/README.md").read_text(), FLAGS)
    more = yaml.safe_load(block)["services"]["hub"]
    (mounted,) = more["volumes"]
    here, there, mode = mounted.split(":")
    assert mode == "ro"
    folder = installed.machine.folder / Path(here).name
    folder.mkdir()
    installed.machine.places[there] = str(folder)
    tokens = folder / Path(more["environment"]["RSNOTIFY_HUB_TOKENS_FILE"]).name
    digest = sha256(b"the token of another").hexdigest()
    tokens.write_text(
        f'[[publishers]]\ntoken_sha256 = "{digest}"\ntopics = ["http://other.example/"]\n'
    )
    service = services(SETTINGS)["hub"]
    service = service | {"environment": service["environment"] | more["environment"]}
    installed.machine.start(installed.image, service).says("listening on")
    for topic, expected in (("http://other.example/x", 202), ("http://source:8000/x", 403)):
        assert installed.publish(topic, "the token of another") == expected


def test_the_demo_of_compose_keeps_a_copy_of_the_docs(installed: Installed):
    every = services(SETTINGS)
    machine, image = installed.machine, installed.image
    data = machine.places["/data"]
    for name, expected in (
        ("hub", "listening on"),
        ("source", "serving"),
        ("destination", re.compile(", (level|in step).*push up")),
    ):
        # Each has a volume of its own, with the mode and the owner that the image gives it.
        volume = machine.places["/data"] = f"{data}-{name}"
        like = Path(data).stat()
        Path(volume).mkdir(mode=like.st_mode & 0o777)
        os.chown(volume, like.st_uid, like.st_gid)
        machine.start(image, every[name]).says(expected)
    machine.places["/data"] = data
    copy = Path(f"{data}-destination/copy/protocol.md")
    assert copy.read_text() == (ROOT / "docs/protocol.md").read_text()


@pytest.fixture
def broker() -> Iterator[Broker]:
    if shutil.which("mosquitto", path=PATH) is None:
        pytest.skip("mosquitto is not installed")
    with tempfile.TemporaryDirectory(prefix="rsnotify-mqtt-") as folder:
        one = Broker(Path(folder))
        yield one
        one.machine.stop()


class Broker:
    """The broker of compose, started as compose starts it."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.folder = folder
        places = {
            "/mosquitto/config": f"{folder}/config",
            "/mosquitto/data": f"{folder}/data",
            "/tmp/passwords": f"{folder}/tmp/passwords",
            "/tmp/acl": f"{folder}/tmp/acl",
            "listener 1883": f"listener {self.port} 127.0.0.1",
        }
        self.machine = Machine(folder, places)
        folder.chmod(0o755)
        (folder / "config").mkdir()
        for file in (ROOT / "hub/mosquitto").iterdir():
            (folder / "config" / file.name).write_text(self.machine.here(file.read_text()))
        self.service = services(SETTINGS)["mosquitto"] | {"user": "1883:1883"}
        for name in ("data", "tmp"):
            (folder / name).mkdir()
            if os.getuid() == 0:
                os.chown(folder / name, 1883, 1883)

    def start(self, **variables: str) -> Running:
        environment = self.service["environment"] | {"PATH": PATH} | variables
        return self.machine.start(Image(), self.service | {"environment": environment})

    def connect(self, user: str | None, password: str | None) -> Party:
        return Party(self.port, user, password)


class Party:
    """One client of the broker."""

    def __init__(self, port: int, user: str | None, password: str | None) -> None:
        self.received: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self._answers: queue.Queue[str] = queue.Queue()
        self._client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
        self._client.username_pw_set(user, password)
        self._client.on_connect = lambda *found: self._answers.put(str(found[3]))
        self._client.on_subscribe = lambda *found: self._answers.put(str(found[3][0]))
        self._client.on_publish = lambda *found: self._answers.put(str(found[3]))
        self._client.on_message = lambda _client, _data, found: self.received.put(
            (found.topic, found.payload)
        )
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        self.welcome = self._answer()

    def _answer(self) -> str:
        return self._answers.get(timeout=PATIENCE)

    def subscribe(self, topic: str) -> str:
        self._client.subscribe(topic, qos=1)
        return self._answer()

    def publish(self, topic: str, payload: bytes) -> str:
        self._client.publish(topic, payload, qos=1, retain=True)
        return self._answer()

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


HUB = ("hub", SETTINGS["MQTT_HUB_PASSWORD"])
SUBSCRIBER = ("subscriber", SETTINGS["MQTT_SUBSCRIBER_PASSWORD"])


def test_at_the_broker_the_hub_writes_and_a_subscriber_reads_and_neither_does_more(broker: Broker):
    process = broker.start()
    process.says("running")
    hub, subscriber = broker.connect(*HUB), broker.connect(*SUBSCRIBER)
    for topic in ("rsnotify/one", "#", "$SYS/#", "other/one"):
        subscriber.subscribe(topic)
        hub.subscribe(topic)
    assert subscriber.publish("rsnotify/one", b"a lie") == "Not authorized"
    assert subscriber.publish("other/one", b"a lie") == "Not authorized"
    assert hub.publish("other/one", b"elsewhere") == "Not authorized"
    assert hub.publish("rsnotify/one", b"the truth") == "Success"
    assert subscriber.received.get(timeout=PATIENCE) == ("rsnotify/one", b"the truth")
    hub.publish("rsnotify/last", b"the end")
    seen = []
    while not seen or seen[-1][0] != "rsnotify/last":
        seen.append(subscriber.received.get(timeout=PATIENCE))
    assert {topic for topic, _ in seen} <= {"rsnotify/one", "rsnotify/last"}
    assert hub.received.empty()
    hub.close()
    subscriber.close()


def test_the_hub_of_the_image_publishes_everything_to_the_broker(
    installed: Installed, broker: Broker
):
    broker.start().says("running")
    installed.machine.places["//mosquitto:1883"] = f"//127.0.0.1:{broker.port}"
    subscriber = broker.connect(*SUBSCRIBER)
    subscriber.subscribe("rsnotify/#")
    installed.machine.start(installed.image, services(SETTINGS)["hub"]).says("listening on")
    topic = SETTINGS["SOURCE_TOPICS"] + "mqtt.xml"
    assert installed.publish(topic, SETTINGS["SOURCE_TOKEN"]) == 202
    name, heard = channel_topic(installed.machine.here(topic)), ("", b"")
    while heard[0] != name:  # before it come topics of other tests
        heard = subscriber.received.get(timeout=PATIENCE)
    assert heard[1] == FRAGMENT
    subscriber.close()


def test_the_last_messages_of_the_hub_survive_a_restart_of_the_broker(broker: Broker):
    process = broker.start()
    process.says("running")
    hub = broker.connect(*HUB)
    assert hub.publish("rsnotify/one", b"kept") == "No matching subscribers"
    hub.close()
    assert process.stop() == 0
    broker.start().says("running")
    subscriber = broker.connect(*SUBSCRIBER)
    subscriber.subscribe("rsnotify/#")
    assert subscriber.received.get(timeout=PATIENCE) == ("rsnotify/one", b"kept")
    subscriber.close()


def test_the_broker_knows_nobody_else_and_keeps_no_password(broker: Broker):
    broker.start().says("running")
    for user, password in ((None, None), ("hub", "wrong"), ("subscriber", HUB[1])):
        party = broker.connect(user, password)
        assert party.welcome == "Not authorized"
        party.close()
    passwords = broker.folder / "tmp/passwords"
    assert passwords.stat().st_mode & 0o077 == 0
    assert not any(secret in passwords.read_text() for secret in (HUB[1], SUBSCRIBER[1]))


@pytest.mark.parametrize("password", ["", "short", "x" * 20 + "\nother:user"])
def test_the_broker_does_not_start_with_a_password_that_is_none(broker: Broker, password: str):
    process = broker.start(MQTT_HUB_PASSWORD=password)
    assert process.ends() == 2
    assert "MQTT_HUB_PASSWORD" in process.output()
    assert password not in process.output() or not password
