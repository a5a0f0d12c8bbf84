"""The profile `cluster` of docker-compose.yml, tried on this machine: there need be no engine."""

from __future__ import annotations

import json
import shutil
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path

import pytest
import yaml
from websockets.http11 import Request, Response
from websockets.sync.client import connect
from websockets.sync.server import Server, ServerConnection, serve

from rsnotify_hub.access.client_addresses import TrustedProxies
from rsnotify_hub.config.loading import load_configuration
from tests.containers import ROOT, Image, Machine, image_of, read_dockerfile, services
from tests.nats_servers import PATH, require_nats
from tests.ports import free_port
from tests.publisher.helpers import eventually
from tests.running import PATIENCE, Running
from tests.test_docker import SETTINGS as OTHER_SETTINGS

# Digits alone, which NATS would read as a number if it were not in quotes.
SETTINGS = OTHER_SETTINGS | {"NATS_PASSWORD": "8080" + "7" * 30}
CLUSTER = {"balancer", "hub1", "hub2", "nats1", "nats2", "nats3"}
NATS = ("nats1", "nats2", "nats3")


def started(*profiles: str) -> set[str]:
    """Return the services that compose starts with some profiles."""
    every = services(SETTINGS).items()
    return {
        name for name, one in every if not one.get("profiles") or {*profiles} & {*one["profiles"]}
    }


def test_the_cluster_starts_with_its_profile_only():
    assert started() == {"hub", "mosquitto"}
    assert started("demo") == {"hub", "mosquitto", "source", "destination"}
    assert started("cluster") == {"hub", "mosquitto"} | CLUSTER


def test_the_balancer_needs_all_of_the_cluster_and_not_the_single_hub():
    every = services(SETTINGS)
    needed, new = set[str](), {"balancer"}
    while new:
        needed |= new
        new = {other for one in new for other in every[one].get("depends_on", ())} - needed
    assert needed == CLUSTER | {"mosquitto"}


def test_no_port_of_the_cluster_is_one_of_the_other_services():
    ports = [
        one.split(":")[1] for each in services(SETTINGS).values() for one in each.get("ports", [])
    ]
    assert len(ports) == len(set(ports))


def test_nats_is_reached_by_the_nodes_of_the_hub_only():
    networks = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["networks"]
    assert networks["nats"] == {"internal": True}
    members = {
        name
        for name, one in services(SETTINGS).items()
        if "nats" in one.get("networks", ["default"])
    }
    assert members == {"hub1", "hub2", *NATS}


def test_both_nodes_have_the_settings_of_one_hub():
    every = services(SETTINGS)
    assert every["hub1"] == every["hub2"]
    own = {"RSNOTIFY_HUB_STORE", "RSNOTIFY_HUB_PUBLIC_URL"}
    node, hub = every["hub1"]["environment"], every["hub"]["environment"]
    assert {name for name in node if node[name] != hub.get(name)} == own
    assert set(node) - set(hub) == own - {"RSNOTIFY_HUB_PUBLIC_URL"}
    configuration = load_configuration(None, environ=node)
    assert configuration.server.public_url == SETTINGS["CLUSTER_PUBLIC_URL"]
    url = configuration.store.url
    assert url == f"nats://hub:{SETTINGS['NATS_PASSWORD']}@{','.join(NATS)}"


@pytest.mark.parametrize("balancer", ["172.18.0.5", "192.168.32.2", "10.0.1.4"])
@pytest.mark.parametrize("name", ["hub", "hub1"])
def test_a_hub_believes_the_proxy_who_the_client_is(name: str, balancer: str):
    server = load_configuration(None, environ=services(SETTINGS)[name]["environment"]).server
    proxies = TrustedProxies(server.trusted_proxies, server.forwarded_header)
    assert proxies.client(balancer, [("X-Forwarded-For", "203.0.113.7")]) == "203.0.113.7"


def test_the_image_of_nats_has_the_user_and_the_files_of_compose():
    image = image_of(read_dockerfile(ROOT / "deploy/nats/Dockerfile"))
    for name in NATS:
        service = services(SETTINGS)[name]
        assert service["user"] == image.user
        assert service["volumes"] == ["./deploy/nats:/etc/nats:ro", f"{name}:{image.volumes[0]}"]
        assert service["entrypoint"] == ["sh", "/etc/nats/start.sh"]
        assert (ROOT / service["build"] / "Dockerfile").exists()


class NatsServers:
    """The NATS servers of compose on loopback, each with its ports and its folder."""

    def __init__(self, folder: Path) -> None:
        require_nats()
        self.ports = {name: (free_port(), free_port(), free_port()) for name in NATS}
        self.machines: dict[str, Machine] = {}
        text = (ROOT / "deploy/nats/nats.conf").read_text()
        for name, (client, route, monitor) in self.ports.items():
            places = {f"{other}:6222": f"127.0.0.1:{self.ports[other][1]}" for other in NATS}
            places |= {"4222": str(client), "6222": str(route), "8222": str(monitor)}
            places |= {"0.0.0.0": "127.0.0.1", "/data": f"{folder}/{name}"}
            places |= {"/etc/nats": f"{folder}/{name}-settings"}
            self.machines[name] = machine = Machine(folder, places)
            settings = folder / f"{name}-settings"
            settings.mkdir()
            start = (ROOT / "deploy/nats/start.sh").read_text()
            (settings / "nats.conf").write_text(machine.here(text))
            (settings / "start.sh").write_text(machine.here(start))
            (folder / name).mkdir()

    def start(self, name: str, settings: dict[str, str] = SETTINGS) -> Running:
        service = services(settings)[name]
        environment = service["environment"] | {"PATH": PATH}
        own = {"user": "0:0", "environment": environment}
        return self.machines[name].start(Image(), service | own)

    def is_healthy(self, name: str) -> bool:
        """Tell what the health check of compose finds."""
        url = self.machines[name].here(services(SETTINGS)[name]["healthcheck"]["test"][-1])
        return _get(url)[0] == 200

    def members(self, name: str) -> int:
        """Return how many servers have elected the leader that a server knows; 0 without one."""
        status, text = _get(f"http://127.0.0.1:{self.ports[name][2]}/jsz")
        cluster = json.loads(text).get("meta_cluster", {}) if status == 200 else {}
        return int(cluster["cluster_size"]) if cluster.get("leader") else 0

    def login(self, name: str, password: str) -> str:
        """Return what a server answers to a node that logs in."""
        with socket.create_connection(("127.0.0.1", self.ports[name][0]), PATIENCE) as connection:
            stream = connection.makefile("rwb")
            stream.readline()
            login = {"user": "hub", "pass": password, "verbose": False}
            stream.write(f"CONNECT {json.dumps(login)}\r\nPING\r\n".encode())
            stream.flush()
            return str(stream.readline().decode().strip())


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def test_the_nats_servers_of_compose_are_one_cluster_that_only_the_password_opens(tmp_path: Path):
    servers = NatsServers(tmp_path)
    with ExitStack() as stack:
        for name in NATS:
            stack.callback(servers.machines[name].stop)
            servers.start(name)
        eventually(lambda: all(servers.members(name) == 3 for name in NATS))
        eventually(lambda: all(map(servers.is_healthy, NATS)))
        for name in NATS:
            assert servers.login(name, SETTINGS["NATS_PASSWORD"]) == "PONG"
            for wrong in ("", "hub", SETTINGS["MQTT_HUB_PASSWORD"]):
                assert "Authorization Violation" in servers.login(name, wrong)


def test_a_nats_server_does_not_start_without_a_password(tmp_path: Path):
    servers = NatsServers(tmp_path)
    for password in ("", "x" * 15):
        server = servers.start("nats1", SETTINGS | {"NATS_PASSWORD": password})
        server.says("NATS_PASSWORD needs 16 characters")
        servers.machines["nats1"].stop()


class Node:
    """A node that tells its name, and returns what a WebSocket sends, as long as it is ready."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_ready = True
        self.clients: list[str] = []
        self._server: Server = serve(self._echo, "127.0.0.1", 0, process_request=self._answer)
        self.port = int(self._server.socket.getsockname()[1])
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def _echo(self, connection: ServerConnection) -> None:
        for message in connection:
            connection.send(message)

    def _answer(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path == "/ws":
            return None
        if request.path == "/readyz" and not self.is_ready:
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "draining\n")
        if request.path != "/readyz":
            self.clients += request.headers.get_all("X-Forwarded-For")
        return connection.respond(HTTPStatus.OK, self.name)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()


class Balancer:
    """The load balancer of compose, in front of two nodes."""

    def __init__(self, folder: Path, stack: ExitStack, ports: tuple[int, int]) -> None:
        if shutil.which("haproxy", path=PATH) is None:
            pytest.skip("haproxy is not installed")
        self.port = free_port()
        self.places = {
            "hub1:8080": f"127.0.0.1:{ports[0]}",
            "hub2:8080": f"127.0.0.1:{ports[1]}",
            "0.0.0.0": "127.0.0.1",
            "8080": str(self.port),
            "maxconn 20000": "maxconn 100",  # files may be few here
            "/usr/local/etc/haproxy": str(folder),
        }
        machine = Machine(folder, self.places)
        stack.callback(machine.stop)
        text = (ROOT / "deploy/haproxy/haproxy.cfg").read_text()
        (folder / "haproxy.cfg").write_text(machine.here(text))
        folder.chmod(0o755)
        service = services(SETTINGS)["balancer"] | {"user": "0:0"}
        machine.start(Image(), service | {"environment": {"PATH": PATH}})

    def get(self, path: str = "") -> tuple[int, str]:
        return _get(f"http://127.0.0.1:{self.port}/{path}")

    def names(self) -> set[str]:
        """Return the nodes that answer a few requests."""
        return {self.get()[1] for _ in range(4)}


def test_requests_and_websockets_go_to_the_nodes_that_are_ready(tmp_path: Path):
    with ExitStack() as stack:
        one, two = Node("one"), Node("two")
        stack.callback(one.close)
        stack.callback(two.close)
        balancer = Balancer(tmp_path, stack, (one.port, two.port))
        eventually(lambda: balancer.names() == {"one", "two"})
        assert {*one.clients, *two.clients} == {"127.0.0.1"}
        with connect(f"ws://127.0.0.1:{balancer.port}/ws") as websocket:
            one.is_ready = False
            eventually(lambda: balancer.names() == {"two"})
            two.is_ready = False
            eventually(lambda: balancer.get()[0] == 503)
            websocket.send("a WebSocket of a node that drains stays open")
            assert "stays open" in str(websocket.recv(PATIENCE))
        one.is_ready = True
        eventually(lambda: balancer.names() == {"one"})


@contextmanager
def hub(folder: Path) -> Iterator[tuple[int, Running]]:
    """Run a hub that has the access settings of a node."""
    port = free_port()
    node = services(SETTINGS)["hub1"]["environment"]
    names = ("PUBLISHERS", "ADMINS", "PUBLIC_URL", "TRUSTED_PROXIES")
    environment = {f"RSNOTIFY_HUB_{name}": node[f"RSNOTIFY_HUB_{name}"] for name in names}
    command = (sys.executable, "-m", "rsnotify", "hub", "--port", str(port), "--data", str(folder))
    process = Running(command, {"PATH": PATH, **environment})
    try:
        process.says("listening on")
        yield port, process
    finally:
        process.stop()
        process.show()


def test_another_hub_answers_when_one_has_ended(tmp_path: Path):
    with ExitStack() as stack:
        first, process = stack.enter_context(hub(tmp_path / "1"))
        second, _ = stack.enter_context(hub(tmp_path / "2"))
        balancer = Balancer(tmp_path, stack, (first, second))
        eventually(lambda: balancer.get("topics")[0] == 200)
        process.stop()
        assert [balancer.get("topics")[0] for _ in range(4)] == [200] * 4
