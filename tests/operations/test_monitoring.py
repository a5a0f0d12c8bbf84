"""deploy/prometheus, deploy/grafana and docs/runbook.md: what they name exists, and alerts fire."""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from rsnotify_hub.admin.views import HubReadings
from rsnotify_hub.application import JsonLogFormatter
from rsnotify_hub.metrics import Metrics
from rsnotify_hub.statistics import Statistics
from rsnotify_hub.store.nodes import NodeList, StreamInfo
from tests.reader import ROOT

RULES = ROOT / "deploy/prometheus/rsnotify-hub.rules.yml"
DASHBOARD = ROOT / "deploy/grafana/rsnotify-hub.json"
RUNBOOK = ROOT / "docs/runbook.md"
_NAME = re.compile(r"\b(?:rsnotify_hub|process)_\w+")
#: What fires each alert: series with their values, in the notation of promtool, one a minute.
FIRING = {
    "RsnotifyHubDown": {"up": "0x60"},
    "RsnotifyHubNothingPublished": {
        "rsnotify_hub_topics": "3x60",
        "rsnotify_hub_fragments_total": "5x60",
    },
    "RsnotifyHubWritesWait": {"rsnotify_hub_commit_queue": "101x60"},
    "RsnotifyHubFault": {'rsnotify_hub_refused_total{code="fault"}': "0x50 1x10"},
    "RsnotifyHubSubscriptionLags": {'rsnotify_hub_lag_seconds_worst{rank="1"}': "1000x60"},
    "RsnotifyHubDeliveriesFail": {
        'rsnotify_hub_deliveries_total{way="websub",outcome="failed"}': "0+60x60",
        'rsnotify_hub_deliveries_total{way="websub",outcome="delivered"}': "0+50x60",
    },
    "RsnotifyHubDeliveriesGivenUp": {
        'rsnotify_hub_deliveries_total{way="websub",outcome="given-up"}': "0x50 1x10"
    },
    "RsnotifyHubSubscribersCutOff": {
        'rsnotify_hub_deliveries_total{way="websocket",outcome="cut-off"}': "0+1x60",
    },
    "RsnotifyHubBrokerBehind": {"rsnotify_hub_mqtt_topics_behind": "1x60"},
    "RsnotifyHubFilesShort": {"process_open_fds": "91x60", "process_max_fds": "100x60"},
    "RsnotifyHubNodeCutOff": {"rsnotify_hub_nats_connected": "0x60"},
    "RsnotifyHubShardsFree": {"rsnotify_hub_shards_free": "1x60"},
    "RsnotifyHubShardsLost": {'rsnotify_hub_shards_moved_total{how="lost"}': "0+1x60"},
    "RsnotifyHubNodeBehind": {"rsnotify_hub_stream_behind": "1001x60"},
    "RsnotifyHubCopiesBehind": {"rsnotify_hub_stream_copies_behind": "1x60"},
}
#: A hub that has nothing to complain about.
HEALTHY = {
    "up": "1x60",
    "rsnotify_hub_topics": "3x60",
    "rsnotify_hub_fragments_total": "0+60x60",
    "rsnotify_hub_commit_queue": "2x60",
    'rsnotify_hub_refused_total{code="fault"}': "0x60",
    'rsnotify_hub_lag_seconds_worst{rank="1"}': "3x60",
    'rsnotify_hub_deliveries_total{way="websub",outcome="failed"}': "0+1x60",
    'rsnotify_hub_deliveries_total{way="websub",outcome="delivered"}': "0+60x60",
    'rsnotify_hub_deliveries_total{way="websub",outcome="given-up"}': "2x60",
    'rsnotify_hub_deliveries_total{way="websocket",outcome="cut-off"}': "20x60",
    "rsnotify_hub_mqtt_topics_behind": "0x60",
    "rsnotify_hub_xmpp_topics_behind": "0x60",
    "process_open_fds": "30x60",
    "process_max_fds": "1000x60",
    "rsnotify_hub_nats_connected": "1x60",
    "rsnotify_hub_shards_free": "0x60",
    'rsnotify_hub_shards_moved_total{how="lost"}': "1x60",
    "rsnotify_hub_stream_behind": "0x60",
    "rsnotify_hub_stream_copies_behind": "0x60",
}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def exposed() -> set[str]:
    """Return the names of the metrics that a node of a hub with everything exposes."""
    stream = StreamInfo(
        name="s", connected=True, trouble=None, records=0, bytes=0, copies=(), warnings=()
    )
    readings = HubReadings(
        version="1",
        statistics=Statistics(),
        logs=(),
        subscriptions={},
        lags=lambda: (1.0,),
        connections=0,
        websockets=0,
        event_streams=0,
        live_queue=0,
        delivery_queue=0,
        commit_queue=0,
        nodes=NodeList(rows=(), stream=stream),
        moved_shards={"lost": 0},
    )
    body = Metrics(lambda: readings).answer().body
    assert isinstance(body, bytes)
    # Refusals have a series once there was one.
    names = {"rsnotify_hub_refused_total"}
    for family in text_string_to_metric_families(body.decode()):
        names.update(sample.name for sample in family.samples)
    return names


def expressions() -> Iterator[tuple[str, str]]:
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def promtool(*arguments: str | Path) -> str:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_metric_of_the_alerts_and_the_dashboard_exists() -> None:
    exposes = exposed()
    for place, expression in expressions():
        names = set(_NAME.findall(expression))
        assert names or "up{" in expression, place
        assert names <= exposes, f"{place}: {names - exposes}"


def test_every_alert_has_a_section_in_the_runbook() -> None:
    sections = re.findall(r"^## (Rsnotify\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert sections == [rule["alert"] for rule in rules()]


def test_every_alert_says_what_happened_and_what_follows() -> None:
    for rule in rules():
        assert set(rule["annotations"]) == {"summary", "description"}, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_prometheus_accepts_the_configuration() -> None:
    assert "SUCCESS" in promtool("check", "config", RULES.with_name("scrape.yml"))


def test_every_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    def series(values: dict[str, str]) -> list[dict[str, str]]:
        found = []
        for name, each in values.items():
            base, _, labels = name.partition("{")
            inside = ",".join(filter(None, [labels.rstrip("}"), 'job="rsnotify-hub",instance="a"']))
            found.append({"series": f"{base}{{{inside}}}", "values": each})
        return found

    def names(firing: str | None) -> list[dict[str, Any]]:
        return [
            {"expr": f'count(ALERTS{{alertname="{each}",alertstate="firing"}}) or vector(0)',
             "eval_time": "55m",
             "exp_samples": [{"labels": "{}", "value": int(each == firing)}]}
            for each in FIRING
        ]  # fmt: skip

    assert set(FIRING) == {rule["alert"] for rule in rules()}
    situations: list[tuple[str | None, dict[str, str]]] = [
        (None, HEALTHY),
        *((alert, HEALTHY | values) for alert, values in FIRING.items()),
    ]
    tests = [
        {"interval": "1m", "input_series": series(values), "promql_expr_test": names(firing)}
        for firing, values in situations
    ]
    file = tmp_path / "tests.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": tests}))
    assert "SUCCESS" in promtool("test", "rules", file)


def test_the_log_shipping_reads_the_fields_of_the_log_and_joins_parts_that_exist() -> None:
    parts = yaml.safe_load((ROOT / "deploy/vector/rsnotify.yaml").read_text())
    known = {*parts["sources"], *parts["transforms"]}
    for part in (*parts["transforms"].values(), *parts["sinks"].values()):
        assert {*part["inputs"]} <= known
    record = logging.makeLogRecord({"msg": "text", "levelname": "WARNING", "name": "rsnotify.hub"})
    line = json.loads(JsonLogFormatter().format(record))
    read = re.findall(r"parse_timestamp\(\.(\w+)", parts["transforms"]["fields"]["source"])
    labels = re.findall(r"\{\{ ([a-z]\w*) \}\}", str(parts["sinks"]["loki"]["labels"]))
    assert [*read, *labels] == ["time", "level"]
    assert {*read, *labels} <= line.keys()
    # The journal of systemd names a program by its file.
    (program,) = parts["sources"]["journal"]["include_matches"]["SYSLOG_IDENTIFIER"]
    for unit in (ROOT / "deploy/systemd").glob("*.service"):
        assert re.search(rf"^ExecStart=\S+/{program} ", unit.read_text(), re.MULTILINE)
