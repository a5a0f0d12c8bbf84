"""The profile `cluster` of docker-compose.yml in a container engine: `make containers`.

A Source and a Destination in containers of their own use the cluster through its load balancer
while containers of the cluster are killed. What real_containers.py says about engines applies here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers import ROOT
from tests.real_containers import (  # the fixtures are used by their names
    BUILD,
    SETTINGS,
    Compose,
    _engine,  # noqa: F401
    docker,
    image,  # noqa: F401
    used,
    wait_until,
)

NATS_IMAGE = "localhost/rsnotify-check:nats"
NODES, SERVERS = ("hub1", "hub2"), ("nats1", "nats2", "nats3")
PUBLIC = "http://balancer:8080/"
# Without push, the Destination would not poll before the test ends.
FOLLOW = f"follow http://source:8000/ /data/copy --via websocket --poll {24 * 3600}".split()
SOURCE = f"source /srv/docs --base-url http://source:8000/ --port 8000 --hub {PUBLIC}".split()


@pytest.fixture(scope="session")
def nats_image() -> str:
    folder = ROOT / "deploy/nats"
    file = ("--file", str(folder / "Dockerfile"))
    docker("build", *file, "--tag", NATS_IMAGE, str(folder), timeout=BUILD)
    return NATS_IMAGE


class Cluster(Compose):
    """The cluster of docker-compose.yml, with a Source of a folder here, and a Destination."""

    project = "rsnotify-check-cluster"
    profiles = ("cluster", "demo")

    def __init__(self, folder: Path, hub_image: str) -> None:
        self._folder, self._file = folder, ROOT / "docker-compose.yml"
        (folder / "resources").mkdir()
        settings = SETTINGS | {"CLUSTER_PUBLIC_URL": PUBLIC}
        (folder / "settings").write_text("".join(f"{k}={v}\n" for k, v in settings.items()))
        (folder / "override.yml").write_text(self._override(hub_image))

    def _override(self, hub_image: str) -> str:
        """Return images, commands and folders of this test, in place of those of compose."""
        resources = f"{self._folder / 'resources'}:/srv/docs:ro"
        lines = ["services:"]
        for name in NODES:
            lines += [f"  {name}:", f"    image: {hub_image}"]
        for name in SERVERS:
            lines += [f"  {name}:", f"    image: {NATS_IMAGE}"]
        lines += ["  mosquitto:", "    ports: !override []"]
        # Where files are few, a container may not have 65,536.
        balancing = (ROOT / "deploy/haproxy/haproxy.cfg").read_text()
        file = self._folder / "haproxy.cfg"
        file.write_text(balancing.replace("maxconn 20000", "maxconn 1000"))
        target = "/usr/local/etc/haproxy/haproxy.cfg:ro"
        lines += ["  balancer:", "    ports: !override []", "    ulimits: !override {nofile: 4096}"]
        lines += [f"    volumes: !override ['{file}:{target}']"]
        for name, command in (("source", SOURCE), ("destination", FOLLOW)):
            lines += [
                f"  {name}:",
                f"    image: {hub_image}",
                f"    command: !override {json.dumps([*command, '--allow-private-addresses'])}",
                "    depends_on: !override [balancer]",
            ]
            if name == "source":
                lines.append(f"    volumes: !override ['{resources}', 'source:/data']")
        return "\n".join(lines) + "\n"

    def kill(self, name: str) -> None:
        """Kill a service's container, which the engine does not start again."""
        docker("kill", "--signal", "KILL", self.container(name))

    def change(self, content: str) -> None:
        (self._folder / "resources/page.txt").write_text(content)

    def wait_for_copy(self, content: str) -> None:
        """Wait until the Destination has this content, and its whole copy is in step."""
        copy = ("exec", "-T", "destination", "cat", "/data/copy/page.txt")
        wait_until(lambda: self.run(*copy).stdout == content, f"the copy has {content!r}")
        audit = ("exec", "-T", "destination", "rsnotify", "audit", "http://source:8000/")
        wait_until(
            lambda: self.run(*audit, "/data/copy").returncode == 0, "the Destination is in step"
        )

    def nodes(self) -> int:
        """Return the number of nodes that own shards; 0 if none answers."""
        admin = ("--url", PUBLIC, "--token", SETTINGS["ADMIN_TOKEN"], "--json")
        answer = self.run("exec", "-T", "destination", "rsnotify", "hub", "nodes", *admin)
        print(answer.stdout, answer.stderr)
        found = json.loads(answer.stdout) if answer.returncode == 0 else {"rows": []}
        return sum(node["shards"] > 0 for node in found["rows"])


@pytest.fixture
def cluster(tmp_path: Path, image: str, nats_image: str) -> Iterator[Cluster]:  # noqa: F811
    made = Cluster(tmp_path, image)
    with used(made):
        yield made


def test_a_copy_stays_in_step_while_a_node_and_a_nats_server_are_killed(cluster: Cluster):
    cluster.change("at first")
    cluster("up", "--detach", "--no-build", "source", "destination")
    wait_until(lambda: cluster.nodes() == 2, "both nodes own shards")
    cluster.wait_for_copy("at first")
    wait_until(lambda: "push up" in cluster.run("logs", "destination").stdout, "push is up")
    for number, killed in enumerate(("hub1", "nats1")):
        cluster.kill(killed)
        cluster.change(f"after {number}")
        cluster.wait_for_copy(f"after {number}")
    cluster("up", "--detach", "--no-build", "source", "destination")
    wait_until(lambda: cluster.nodes() == 2, "both nodes own shards again")
    cluster.kill("hub2")
    cluster.change("at last")
    cluster.wait_for_copy("at last")
