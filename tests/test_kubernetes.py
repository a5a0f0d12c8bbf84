"""deploy/kubernetes: the plain manifests, and the chart that they are made from."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import rsnotify
from rsnotify_hub.config.loading import load_configuration
from tests.containers import ROOT, image_of, read_dockerfile
from tests.reader import fences_of, with_secrets

FOLDER = ROOT / "deploy/kubernetes"
CHART = FOLDER / "rsnotify-hub"
README = (FOLDER / "README.md").read_text()
VERSIONS = ["1.25", kubernetes_validate.latest_version()]
NAME = {"app.kubernetes.io/name": "rsnotify-hub", "app.kubernetes.io/instance": "rsnotify-hub"}
COMMON = {"ConfigMap", "Service"}
KINDS = {
    "hub": COMMON | {"StatefulSet"},
    "cluster": COMMON | {"Deployment", "PodDisruptionBudget"},
    "networkpolicy": {"NetworkPolicy"},
    "overlay": COMMON | {"Deployment", "PodDisruptionBudget", "NetworkPolicy"},
}
#: The fields of a ServiceMonitor that are used, as in the Prometheus Operator's API reference.
ENDPOINT_FIELDS = {"port", "path", "interval"}
IMAGE = image_of(read_dockerfile(ROOT / "hub/Dockerfile"))

Documents = dict[str, dict[str, Any]]


def by_kind(text: str) -> Documents:
    documents = [one for one in yaml.safe_load_all(text) if one]
    assert len({one["kind"] for one in documents}) == len(documents)
    return {one["kind"]: one for one in documents}


def plain(name: str) -> Documents:
    return by_kind((FOLDER / f"{name}.yaml").read_text())


def own_file(name: str) -> str:
    """Return the file of the README that begins with its name."""
    (found,) = [body for _, body in fences_of(README) if body.startswith(f"# {name}\n")]
    return found


def _need(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")


def rendered(*command: object) -> Documents:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return by_kind(done.stdout)


@pytest.fixture(scope="module")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> Documents:
    """The overlay of the README."""
    _need("kubectl")
    folder = tmp_path_factory.mktemp("kubernetes")
    for file in FOLDER.glob("*.yaml"):
        shutil.copy(file, folder)
    (folder / "kustomization.yaml").write_text(own_file("kustomization.yaml"))
    (folder / "hub.toml").write_text('public_url = "https://own.example/"\n')
    return rendered("kubectl", "kustomize", folder)


@pytest.fixture(params=["hub", "cluster"])
def hub(request: pytest.FixtureRequest) -> Documents:
    return plain(request.param)


def workload(documents: Documents) -> dict[str, Any]:
    return documents.get("StatefulSet") or documents["Deployment"]


def pod(documents: Documents) -> dict[str, Any]:
    spec: dict[str, Any] = workload(documents)["spec"]["template"]["spec"]
    return spec


def container(documents: Documents) -> dict[str, Any]:
    (one,) = pod(documents)["containers"]
    found: dict[str, Any] = one
    return found


def validate(documents: Documents, version: str) -> None:
    for document in documents.values():
        if document["kind"] != "ServiceMonitor":  # not part of Kubernetes; see below
            kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("which", KINDS)
def test_the_manifests_are_valid(which: str, version: str, request: pytest.FixtureRequest):
    documents = request.getfixturevalue("overlay") if which == "overlay" else plain(which)
    assert set(documents) - {"ServiceMonitor"} == KINDS[which]
    validate(documents, version)


def test_the_restoring_pod_is_valid_and_has_the_volume_and_the_user_of_the_hub():
    document = yaml.safe_load(own_file("restore.yaml"))
    validate({"Pod": document}, VERSIONS[-1])
    (single,) = plain("hub")["StatefulSet"]["spec"]["volumeClaimTemplates"]
    claim = document["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"]
    assert claim == f"{single['metadata']['name']}-rsnotify-hub-0"
    assert document["spec"]["containers"][0]["image"] == container(plain("hub"))["image"]
    assert document["spec"]["securityContext"]["runAsUser"] == int(IMAGE.user.split(":")[0])


def test_everything_is_about_the_same_pods(hub: Documents):
    assert workload(hub)["spec"]["template"]["metadata"]["labels"] == NAME
    assert hub["Service"]["spec"]["selector"] == NAME
    assert plain("networkpolicy")["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == NAME
    for kind in {*hub} - COMMON:
        assert hub[kind]["spec"]["selector"]["matchLabels"] == NAME
    for spread in pod(hub).get("topologySpreadConstraints", []):
        assert spread["labelSelector"]["matchLabels"] == NAME


def test_all_ports_are_that_of_the_image(hub: Documents):
    (port,) = container(hub)["ports"]
    assert str(port["containerPort"]) == IMAGE.environment["RSNOTIFY_HUB_PORT"]
    (public,) = hub["Service"]["spec"]["ports"]
    (ingress,) = plain("networkpolicy")["NetworkPolicy"]["spec"]["ingress"]
    assert {public["targetPort"], ingress["ports"][0]["port"], port["name"]} == {"http"}


def test_hubs_have_the_user_of_the_image_and_no_privileges(hub: Documents):
    security, own = pod(hub)["securityContext"], container(hub)["securityContext"]
    assert f"{security['runAsUser']}:{security['runAsGroup']}" == IMAGE.user
    assert security["runAsNonRoot"] is True
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod(hub)["automountServiceAccountToken"] is False
    writable = {
        one["mountPath"] for one in container(hub)["volumeMounts"] if not one.get("readOnly")
    }
    assert writable == {*IMAGE.volumes, "/tmp"}


def test_the_data_of_a_single_hub_are_in_a_claim_that_one_pod_uses():
    spec = plain("hub")["StatefulSet"]["spec"]
    (claim,) = spec["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert spec["replicas"] == 1
    mounted = {one["name"]: one["mountPath"] for one in container(plain("hub"))["volumeMounts"]}
    (data,) = [one for one in container(plain("hub"))["env"] if one["name"] == "RSNOTIFY_HUB_DATA"]
    assert data["value"].startswith(mounted[claim["metadata"]["name"]] + "/")
    assert data["value"] in README


def test_the_service_is_not_taken_for_settings_of_the_hub(hub: Documents):
    assert hub["Service"]["metadata"]["name"] == "rsnotify-hub"
    assert pod(hub)["enableServiceLinks"] is False


def test_a_node_has_time_to_drain_and_its_probes_to_wait_for_the_store(hub: Documents):
    one = container(hub)
    wait = int(one["lifecycle"]["preStop"]["exec"]["command"][-1]) if "Deployment" in hub else 0
    assert pod(hub)["terminationGracePeriodSeconds"] >= wait + 20
    for name in ("startupProbe", "readinessProbe"):
        assert one[name]["httpGet"] == {"path": "/readyz", "port": "http"}
        assert one[name]["timeoutSeconds"] > 5  # the hub's own limit
    assert one["livenessProbe"]["httpGet"]["path"] == "/healthz"


def test_a_node_starts_before_another_ends():
    cluster = plain("cluster")
    spec = cluster["Deployment"]["spec"]
    assert spec["replicas"] >= 2
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert cluster["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1


def test_the_settings_are_those_of_a_hub_and_the_secret_has_what_they_name(
    hub: Documents, tmp_path: Path
):
    text = hub["ConfigMap"]["data"]["hub.toml"]
    mounts = {one["name"]: one["mountPath"] for one in container(hub)["volumeMounts"]}
    assert container(hub)["args"][-1] == mounts["settings"]
    (tmp_path / "tokens.toml").write_text(with_secrets(own_file("tokens.toml")))
    (tmp_path / "nats-password").write_text("a password\n")
    file = tmp_path / "hub.toml"
    file.write_text(text.replace(mounts["secrets"], str(tmp_path)))
    configuration = load_configuration(str(file))
    assert configuration.access.publishers
    assert configuration.access.admins
    named = set(re.findall(rf"{mounts['secrets']}/([\w.-]+)", text))
    shown = re.findall(r"create secret generic (\S+)((?:[\s\\]+--from-file=\S+)+)", README)
    secrets = {frozenset(re.findall(r"=([\w.-]+)", files)) for _, files in shown}
    assert named in secrets
    (volume,) = [one for one in pod(hub)["volumes"] if one["name"] == "secrets"]
    assert {volume["secret"]["secretName"]} == {name for name, _ in shown}
    if "Deployment" in hub:
        assert configuration.store.url == "nats://hub@nats.nats.svc.cluster.local:4222"
        assert configuration.store.password_file == str(tmp_path / "nats-password")


def test_nodes_reach_nats_and_no_private_address_besides():
    _, nats, public = plain("networkpolicy")["NetworkPolicy"]["spec"]["egress"]
    (target,) = nats["to"]
    assert target["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "nats"}
    assert nats["ports"] == [{"protocol": "TCP", "port": 4222}]
    four, six = (one["ipBlock"] for one in public["to"])
    assert {"10.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"} <= {*four["except"]}
    assert {"fc00::/7", "fe80::/10"} <= {*six["except"]}


def test_the_overlay_of_the_readme_has_its_own_image_settings_and_namespace(overlay: Documents):
    assert container(overlay)["image"] == f"registry.example/rsnotify:{rsnotify.__version__}"
    assert overlay["ConfigMap"]["data"] == {"hub.toml": 'public_url = "https://own.example/"\n'}
    assert {one["metadata"]["namespace"] for one in overlay.values()} == {"rsnotify"}
    (settings,) = [one for one in pod(overlay)["volumes"] if one["name"] == "settings"]
    assert settings["configMap"]["name"] == overlay["ConfigMap"]["metadata"]["name"]


def test_the_service_monitor_selects_the_service_and_its_port(hub: Documents):
    monitor = plain("servicemonitor")["ServiceMonitor"]
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert set(monitor["spec"]) == {"selector", "endpoints"}
    assert monitor["spec"]["selector"] == {"matchLabels": hub["Service"]["metadata"]["labels"]}
    (endpoint,) = monitor["spec"]["endpoints"]
    assert set(endpoint) == ENDPOINT_FIELDS
    assert endpoint["port"] in {one["name"] for one in hub["Service"]["spec"]["ports"]}
    assert endpoint["path"] == "/metrics"


def test_the_chart_and_the_manifests_are_of_this_version(hub: Documents):
    # After a change of the version: `make manifests`.
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == rsnotify.__version__
    # Charts have semantic versions, such as 1.0.0-rc1 for 1.0.0rc1.
    assert chart["version"] == re.sub(r"(?<=\d)(?=(a|b|rc)\d)", "-", rsnotify.__version__)
    assert container(hub)["image"] == f"ghcr.io/rsnotify/rsnotify:{rsnotify.__version__}"


def test_every_value_of_the_chart_is_in_its_schema_and_used():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    assert {*values} | {"global"} == {*schema}
    templates = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    for name, value in values.items():
        within = [f"{name}.{key}" for key in value] if value and isinstance(value, dict) else [name]
        for one in [name] if name == "resources" else within:
            assert f".Values.{one}" in templates, one


def template(*options: str) -> Documents:
    return rendered("helm", "template", "rsnotify-hub", CHART, *options)


@pytest.mark.slow
def test_helm_renders_the_plain_manifests(hub: Documents):
    _need("helm")
    options = ["--set", "cluster.enabled=true"] if "Deployment" in hub else []
    assert template(*options) == hub
    everything = template(
        *options, "--set", "networkPolicy.enabled=true", "--set", "serviceMonitor.enabled=true"
    )
    assert everything["ServiceMonitor"] == plain("servicemonitor")["ServiceMonitor"]
    if "Deployment" in hub:
        assert everything["NetworkPolicy"] == plain("networkpolicy")["NetworkPolicy"]
    validate(everything, VERSIONS[-1])


@pytest.mark.slow
def test_the_values_of_the_chart_have_their_effects():
    _need("helm")
    subprocess.run(["helm", "lint", "--strict", "--quiet", CHART], check=True)
    made = template(
        *("--set", "publicUrl=https://own.example/", "--set", "existingSecret=own"),
        *("--set", "ingress.enabled=true", "--set", "ingress.tlsSecret=hub-tls"),
        *("--set", "ingress.className=nginx", "--set", "persistence.storageClass=fast"),
        *("--set", "image.tag=own", "--set-json", 'imagePullSecrets=[{"name":"registry"}]'),
        *("--set-json", 'tolerations=[{"operator":"Exists"}]', "--set", "nodeSelector.a=b"),
        *("--set", "settings=log_seconds = 5"),
    )  # fmt: skip
    validate(made, VERSIONS[-1])
    assert made["Ingress"]["spec"]["rules"][0]["host"] == "own.example"
    assert made["Ingress"]["spec"]["tls"] == [{"hosts": ["own.example"], "secretName": "hub-tls"}]
    assert container(made)["image"].endswith(":own")
    assert pod(made)["imagePullSecrets"] == [{"name": "registry"}]
    settings = tomllib.loads(made["ConfigMap"]["data"]["hub.toml"])
    assert settings["public_url"] == "https://own.example/"
    assert settings["log_seconds"] == 5
    refused = subprocess.run(
        ["helm", "template", CHART, "--set", "publicURL=https://own.example/"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "publicURL" in refused.stderr
