"""deploy/kubernetes, rendered by `kubectl kustomize` and validated without a cluster."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from rsnotify_hub.config.loading import load_configuration
from tests.containers import ROOT, image_of, read_dockerfile
from tests.reader import TOKEN, fences_of

FOLDER = ROOT / "deploy/kubernetes"
VERSIONS = ["1.25", kubernetes_validate.latest_version()]
NAME = {"app.kubernetes.io/name": "rsnotify-hub"}
#: What of a ServiceMonitor is used, as the Prometheus Operator's API reference has it.
ENDPOINT_FIELDS = {"port", "path", "interval"}

Documents = dict[str, dict[str, Any]]


def render(folder: Path) -> Documents:
    done = subprocess.run(
        ["kubectl", "kustomize", folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    documents = list(yaml.safe_load_all(done.stdout))
    assert len({one["kind"] for one in documents}) == len(documents)
    return {one["kind"]: one for one in documents}


def _need_kubectl() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")


def _takes_folders_as_resources() -> bool:
    """Tell whether kubectl has a newer kustomize than 2.0, as all have since 1.21."""
    done = subprocess.run(
        ["kubectl", "version", "--client", "--output=json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    version = json.loads(done.stdout)["clientVersion"]
    return int(re.sub(r"\D.*", "", version["minor"])) > 20


@pytest.fixture(scope="module")
def base() -> Documents:
    _need_kubectl()
    return render(FOLDER / "base")


@pytest.fixture(scope="module")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> Documents:
    """The overlay of the README."""
    folder = tmp_path_factory.mktemp("kubernetes")
    for name in ("base", "servicemonitor"):
        shutil.copytree(FOLDER / name, folder / name)
    _need_kubectl()
    fences = [body for name, body in fences_of((FOLDER / "README.md").read_text())]
    (own,) = [body for body in fences if body.startswith("# kustomization.yaml")]
    if not _takes_folders_as_resources():
        own = own.replace("resources:", "bases:")
    (folder / "own").mkdir()
    (folder / "own/kustomization.yaml").write_text(own)
    (folder / "own/hub.toml").write_text('public_url = "https://own.example/"\n')
    return render(folder / "own")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("which", ["base", "overlay"])
def test_what_is_rendered_is_what_kubernetes_accepts(
    which: str, version: str, request: pytest.FixtureRequest
):
    documents = dict(request.getfixturevalue(which))
    documents.pop("ServiceMonitor", None)  # not part of Kubernetes; see below
    assert set(documents) == {
        *("ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service")
    }
    for document in documents.values():
        kubernetes_validate.validate(document, version, strict=True)


def pod(documents: Documents) -> dict[str, Any]:
    spec: dict[str, Any] = documents["Deployment"]["spec"]["template"]["spec"]
    return spec


def container(documents: Documents) -> dict[str, Any]:
    (one,) = pod(documents)["containers"]
    found: dict[str, Any] = one
    return found


def test_everything_is_about_the_same_pods(base: Documents):
    assert base["Deployment"]["spec"]["template"]["metadata"]["labels"] == NAME
    assert base["Service"]["spec"]["selector"] == NAME
    assert base["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == NAME
    for of in (base["Deployment"], base["PodDisruptionBudget"]):
        assert of["spec"]["selector"]["matchLabels"] == NAME
    for spread in pod(base)["topologySpreadConstraints"]:
        assert spread["labelSelector"]["matchLabels"] == NAME


def test_all_ports_are_that_of_the_image(base: Documents):
    image = image_of(read_dockerfile(ROOT / "hub/Dockerfile"))
    (port,) = container(base)["ports"]
    assert str(port["containerPort"]) == image.environment["RSNOTIFY_HUB_PORT"]
    (public,) = base["Service"]["spec"]["ports"]
    (ingress,) = base["NetworkPolicy"]["spec"]["ingress"]
    assert {public["targetPort"], ingress["ports"][0]["port"], port["name"]} == {"http"}


def test_nodes_have_the_user_of_the_image_and_no_privileges(base: Documents):
    image = image_of(read_dockerfile(ROOT / "hub/Dockerfile"))
    security, own = pod(base)["securityContext"], container(base)["securityContext"]
    assert f"{security['runAsUser']}:{security['runAsGroup']}" == image.user
    assert security["runAsNonRoot"] is True
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod(base)["automountServiceAccountToken"] is False
    writable = {
        one["mountPath"] for one in container(base)["volumeMounts"] if not one.get("readOnly")
    }
    assert writable == {*image.volumes, "/tmp"}


def test_the_service_is_not_taken_for_settings_of_the_hub(base: Documents):
    assert base["Service"]["metadata"]["name"] == "rsnotify-hub"
    assert pod(base)["enableServiceLinks"] is False


def test_a_node_has_time_to_drain_and_its_probes_to_wait_for_the_store(base: Documents):
    one = container(base)
    wait = int(one["lifecycle"]["preStop"]["exec"]["command"][-1])
    assert pod(base)["terminationGracePeriodSeconds"] >= wait + 20
    for name in ("startupProbe", "readinessProbe"):
        assert one[name]["httpGet"] == {"path": "/readyz", "port": "http"}
        assert one[name]["timeoutSeconds"] > 5  # the hub's own limit
    assert one["livenessProbe"]["httpGet"]["path"] == "/healthz"


def test_a_node_starts_before_another_ends(base: Documents):
    spec = base["Deployment"]["spec"]
    assert spec["replicas"] >= 2
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert base["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1


def test_the_settings_are_those_of_a_hub_and_the_secret_has_what_they_name(
    base: Documents, tmp_path: Path
):
    text = base["ConfigMap"]["data"]["hub.toml"]
    mounts = {one["name"]: one["mountPath"] for one in container(base)["volumeMounts"]}
    assert container(base)["args"][-1] == mounts["settings"]
    digest = sha256(TOKEN.encode()).hexdigest()
    grants = f'[[publishers]]\ntoken_sha256 = "{digest}"\ntopics = ["https://a.example/"]\n'
    (tmp_path / "tokens.toml").write_text(grants)
    (tmp_path / "nats-password").write_text("a password\n")
    file = tmp_path / "hub.toml"
    file.write_text(text.replace(mounts["secrets"], str(tmp_path)))
    configuration = load_configuration(str(file))
    assert configuration.access.publishers
    assert configuration.store.url == "nats://hub@nats.nats.svc.cluster.local:4222"
    assert configuration.store.password_file == str(tmp_path / "nats-password")
    named = set(re.findall(rf"{mounts['secrets']}/([\w.-]+)", text))
    command = (FOLDER / "README.md").read_text()
    assert named == set(re.findall(r"--from-file=([\w.-]+)", command))
    (volume,) = [one for one in pod(base)["volumes"] if one["name"] == "secrets"]
    assert volume["secret"]["secretName"] in command


def test_nodes_reach_nats_and_no_private_address_besides(base: Documents):
    _, nats, public = base["NetworkPolicy"]["spec"]["egress"]
    (target,) = nats["to"]
    assert target["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "nats"}
    assert nats["ports"] == [{"protocol": "TCP", "port": 4222}]
    four, six = (one["ipBlock"] for one in public["to"])
    assert {"10.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"} <= {*four["except"]}
    assert {"fc00::/7", "fe80::/10"} <= {*six["except"]}


def test_the_overlay_of_the_readme_has_its_own_image_settings_and_namespace(overlay: Documents):
    assert container(overlay)["image"] == "registry.example/rsnotify:0.2.0"
    assert "own.example" in overlay["ConfigMap"]["data"]["hub.toml"]
    assert {one["metadata"]["namespace"] for one in overlay.values()} == {"rsnotify"}
    (settings,) = [one for one in pod(overlay)["volumes"] if one["name"] == "settings"]
    assert settings["configMap"]["name"] == overlay["ConfigMap"]["metadata"]["name"]


def test_the_service_monitor_selects_the_service_and_its_port(overlay: Documents):
    monitor = overlay["ServiceMonitor"]
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert set(monitor["spec"]) == {"selector", "endpoints"}
    assert monitor["spec"]["selector"] == {"matchLabels": overlay["Service"]["metadata"]["labels"]}
    (endpoint,) = monitor["spec"]["endpoints"]
    assert set(endpoint) == ENDPOINT_FIELDS
    assert endpoint["port"] in {one["name"] for one in overlay["Service"]["spec"]["ports"]}
    assert endpoint["path"] == "/metrics"
