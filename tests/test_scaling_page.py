"""docs/scaling.md and the page on Kubernetes: what they say to do is done, or why it is not."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

from rsnotify_hub.config.loading import load_configuration
from tests.containers import ROOT, read_environment
from tests.nats_servers import PATH, jetstream_answers, require_nats
from tests.ports import free_port
from tests.publisher.helpers import eventually
from tests.reader import blocks, lines_of, with_secrets

PAGES = ("docs/scaling.md", "deploy/kubernetes/README.md")
#: The commands that are not run here, by their beginning, and why.
ELSEWHERE = {
    "sh deploy/new-env.sh": "test_docker.py runs it",
    "docker compose": "there need be no engine; test_compose_cluster.py does what compose would",
    "curl --fail http://127.0.0.1:8090/readyz": "test_compose_cluster.py asks the balancer this",
    "export RSNOTIFY_HUB_STORE": "the tests of the cluster start such nodes",
    "rsnotify hub --port": "the tests of the cluster start such nodes",
    "rsnotify hub export": "hub/transfer/test_commands.py moves and restores hubs with it",
    "rsnotify hub import": "hub/transfer/test_commands.py moves and restores hubs with it",
    "helm": "there is no cluster; test_kubernetes.py renders the chart",
    "kubectl": "there is no cluster; test_kubernetes.py renders and validates what is applied",
}
SERVERS = "for n in 1 2 3; do"


def test_every_command_is_run_here_or_it_is_said_where_it_is_tried():
    shown = [one for page in PAGES for one in blocks(page, "sh") if not one.startswith(SERVERS)]
    commands = [line for one in shown for line in lines_of(one)]
    for command in commands:
        assert any(command.startswith(known) for known in ELSEWHERE), command
    for known in ELSEWHERE:
        assert any(command.startswith(known) for command in commands), known


def test_the_servers_that_are_started_by_hand_are_one_cluster(tmp_path: Path):
    require_nats()
    (script,) = [one for one in blocks("docs/scaling.md", "sh") if one.startswith(SERVERS)]
    ports = {f"{kind}{n}": str(free_port()) for kind in ("422", "622") for n in (1, 2, 3)}
    for kind in ("422", "622"):
        values = " ".join(f"{kind}{n}" for n in (1, 2, 3))
        script = script.replace(f"{kind}$n", f"$(echo {values} | cut -d' ' -f$n)")
    # All at once, since a port may have the digits of another one in it.
    script = re.sub("|".join(ports), lambda found: ports[found[0]], script)
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["bash", "-c", f"{script}wait"],
            cwd=tmp_path, env={"PATH": PATH}, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        try:
            # A server of a cluster answers once the servers have elected a leader.
            clients = [int(ports[f"422{n}"]) for n in (1, 2, 3)]
            eventually(lambda: all(map(jetstream_answers, clients)))
            assert log.read_text().count("JetStream cluster") >= 3
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert {one.name for one in tmp_path.iterdir()} == {"log", "nats1", "nats2", "nats3"}


def test_the_file_of_a_node_is_one(tmp_path: Path):
    (text,) = blocks("docs/scaling.md", "toml")
    (tmp_path / "nats-password").write_text("a password\n")
    (tmp_path / "nats-ca.pem").write_text("")
    file = tmp_path / "hub.toml"
    file.write_text(with_secrets(text.replace("/etc/rsnotify", str(tmp_path))))
    configuration = load_configuration(str(file))
    assert configuration.access.publishers
    assert configuration.store.url == "tls://hub@nats1.example,nats2.example,nats3.example"
    assert configuration.store.ca == str(tmp_path / "nats-ca.pem")


def test_the_variables_of_a_nats_server_are_those_of_its_file(tmp_path: Path):
    (text,) = blocks("docs/scaling.md", "ini")
    file = tmp_path / "variables"
    file.write_text(text)
    named = set(re.findall(r"\$(\w+)", (ROOT / "deploy/nats/nats.conf").read_text()))
    given = read_environment(file)
    assert set(given) == named
    assert all(value[0] == value[-1] == '"' for value in given.values())
